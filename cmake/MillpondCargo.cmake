# millpond_cargo(): one custom command that makes one kind of library from the crate.
#
# Each kind has its own target directory and its own `cargo rustc` call: Cargo drops link-time optimisation without
# a word when it makes an rlib in the same call, and two kinds would write the same `.d` file.

find_program(MILLPOND_CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" DOC "Cargo, of Rust 1.88 or newer")
if(NOT MILLPOND_CARGO)
  message(FATAL_ERROR "Millpond needs Rust (cargo 1.88 or newer) to build; see https://rustup.rs. "
                      "If it is installed elsewhere, set MILLPOND_CARGO to the path of cargo.")
endif()

execute_process(
  COMMAND "${MILLPOND_CARGO}" -vV
  WORKING_DIRECTORY "${Millpond_SOURCE_DIR}"
  OUTPUT_VARIABLE millpond_cargo_version
  RESULT_VARIABLE millpond_cargo_status
)
if(NOT millpond_cargo_status EQUAL 0 OR NOT millpond_cargo_version MATCHES "host: ([^\n]+)")
  message(FATAL_ERROR "Millpond: `${MILLPOND_CARGO} -vV` does not work (${millpond_cargo_status})")
endif()
set(millpond_host_triple "${CMAKE_MATCH_1}")

# Cargo would say so too, but only in the middle of the build.
file(STRINGS "${Millpond_SOURCE_DIR}/Cargo.toml" millpond_msrv REGEX "^rust-version = " LIMIT_COUNT 1)
string(REGEX MATCH "[0-9.]+" millpond_msrv "${millpond_msrv}")
string(REGEX MATCH "cargo ([0-9.]+)" millpond_cargo_release "${millpond_cargo_version}")
if(CMAKE_MATCH_1 VERSION_LESS millpond_msrv)
  message(
    FATAL_ERROR
      "Millpond needs cargo ${millpond_msrv} or newer, and ${MILLPOND_CARGO} is ${CMAKE_MATCH_1}. `rustup update` brings a "
      "newer one; a distribution's own Rust may be too old, and https://rustup.rs installs another beside it. If there is "
      "one elsewhere, set MILLPOND_CARGO to the path of its cargo."
  )
endif()

# Naming the target even for a native build keeps Cargo's output in a place that no user configuration moves.
set(MILLPOND_RUST_TARGET "" CACHE STRING "Rust target triple; empty: the machine that builds")
mark_as_advanced(MILLPOND_CARGO MILLPOND_RUST_TARGET)
if(MILLPOND_RUST_TARGET)
  set(millpond_triple "${MILLPOND_RUST_TARGET}")
elseif(CMAKE_CROSSCOMPILING)
  message(FATAL_ERROR "Millpond: set MILLPOND_RUST_TARGET when cross-compiling, for example to aarch64-unknown-linux-gnu")
else()
  set(millpond_triple "${millpond_host_triple}")
endif()

# The standard library's sources, when installed, would put their local path into panic messages.
get_filename_component(millpond_rust_bin "${MILLPOND_CARGO}" DIRECTORY)
find_program(MILLPOND_RUSTC rustc HINTS "${millpond_rust_bin}")
mark_as_advanced(MILLPOND_RUSTC)
set(millpond_sysroot "")
if(MILLPOND_RUSTC)
  execute_process(
    COMMAND "${MILLPOND_RUSTC}" --print sysroot
    WORKING_DIRECTORY "${Millpond_SOURCE_DIR}"
    OUTPUT_VARIABLE millpond_sysroot
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
  )
endif()

# millpond_cargo(<output> KIND <staticlib|cdylib|bin> FEATURE <feature>[,<feature>] FILE <Cargo's file name>)
function(millpond_cargo output)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "KIND;FEATURE;FILE" "")
  get_filename_component(name "${output}" NAME)
  add_custom_command(
    OUTPUT "${output}"
    COMMAND
      "${CMAKE_COMMAND}" "-DCARGO=${MILLPOND_CARGO}" "-DSOURCE_DIR=${Millpond_SOURCE_DIR}"
      "-DTARGET_DIR=${MILLPOND_CARGO_TARGET_DIR}/${arg_KIND}" "-DTRIPLE=${millpond_triple}" "-DKIND=${arg_KIND}"
      "-DFEATURE=${arg_FEATURE}" "-DFILE=${arg_FILE}" "-DOUTPUT=${output}" "-DFLAGS=${MILLPOND_CARGO_FLAGS}"
      "-DSYSROOT=${millpond_sysroot}" "-DLINKER=$<$<BOOL:${MILLPOND_RUST_TARGET}>:${CMAKE_C_COMPILER}>"
      "-DDEBUG_INFO=$<CONFIG:Debug,RelWithDebInfo>" "-DOBJCOPY=$<$<BOOL:${CMAKE_OBJCOPY}>:${CMAKE_OBJCOPY}>"
      -P "${Millpond_SOURCE_DIR}/cmake/cargo_build.cmake"
    DEPENDS "${Millpond_SOURCE_DIR}/Cargo.toml" "${Millpond_SOURCE_DIR}/Cargo.lock"
            "${Millpond_SOURCE_DIR}/cmake/cargo_build.cmake"
    DEPFILE "${output}.d"
    COMMENT "Cargo: ${name} (release, feature ${arg_FEATURE})"
    VERBATIM
  )
endfunction()
