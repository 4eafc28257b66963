# Build step: runs `cargo rustc` for one kind of library, and copies its file and its list of sources to the build tree.
#
# A copy with a time stamp of its own makes "nothing changed" visible to Ninja and Make, which Cargo's file does not
# (Cargo leaves it alone when it is fresh), and several build trees can share one Cargo target directory.
# Inputs: CARGO SOURCE_DIR TARGET_DIR TRIPLE KIND FEATURE FILE OUTPUT FLAGS SYSROOT LINKER DEBUG_INFO OBJCOPY.
cmake_policy(VERSION 3.22)

# No path of this machine may end up in panic messages or debug information of what users install.
if(DEFINED ENV{CARGO_HOME})
  set(cargo_home "$ENV{CARGO_HOME}")
else()
  set(cargo_home "$ENV{HOME}/.cargo")
endif()
set(rust_flags "--remap-path-prefix=${cargo_home}=/cargo" "--remap-path-prefix=${SOURCE_DIR}=/millpond")
if(SYSROOT)
  list(APPEND rust_flags "--remap-path-prefix=${SYSROOT}/lib/rustlib/src/rust=/rustc")
endif()

# Less inlining than the compiler's 250: it makes a program a tenth smaller, and a warm pair of calls, whose functions say
# themselves that they are to be inlined, takes as many instructions (docs/decisions/size.md). Who names a threshold gets that one.
if(NOT "$ENV{RUSTFLAGS}$ENV{CARGO_ENCODED_RUSTFLAGS}" MATCHES "inline-threshold")
  list(APPEND rust_flags "-Cllvm-args=-inline-threshold=45")
endif()

# Cargo takes flags from one source only, the environment before its configuration: add to the one the user uses.
set(config "")
string(ASCII 31 separator)
list(JOIN rust_flags "${separator}" encoded)
if(DEFINED ENV{CARGO_ENCODED_RUSTFLAGS})
  set(ENV{CARGO_ENCODED_RUSTFLAGS} "$ENV{CARGO_ENCODED_RUSTFLAGS}${separator}${encoded}")
elseif(DEFINED ENV{RUSTFLAGS})
  string(REGEX REPLACE " +" "${separator}" flags "$ENV{RUSTFLAGS}")
  set(ENV{CARGO_ENCODED_RUSTFLAGS} "${flags}${separator}${encoded}")
else()
  list(JOIN rust_flags "','" list)
  set(config --config "build.rustflags=['${list}']")
endif()

if(LINKER) # cross-compiling: the plugin is linked by the C compiler of the toolchain file
  string(TOUPPER "${TRIPLE}" variable)
  string(REPLACE "-" "_" variable "CARGO_TARGET_${variable}_LINKER")
  if(NOT DEFINED ENV{${variable}})
    set(ENV{${variable}} "${LINKER}")
  endif()
endif()

# Debug information, where the build type asks for it; else none, as Cargo.toml says.
if(DEBUG_INFO)
  list(APPEND config --config "profile.release.debug='line-tables-only'" --config "profile.release.strip='none'")
endif()

separate_arguments(FLAGS UNIX_COMMAND "${FLAGS}")
set(print "")
if(KIND STREQUAL "cdylib" AND NOT TRIPLE MATCHES "apple|windows")
  # A host may close the plugin without `finalize`, while threads of streams still run: the code stays then. (A
  # destructor that waits for them would wait under the loader's lock, which a thread may need in order to end.)
  set(print -C link-arg=-Wl,-z,nodelete)
endif()
if(KIND STREQUAL "staticlib")
  # What the archive needs from the system, in Rust's own words; a packaging test compares it with what we export.
  set(print --print "native-static-libs=${TARGET_DIR}/native-static-libs.txt")
  file(MAKE_DIRECTORY "${TARGET_DIR}")
endif()

if(KIND STREQUAL "bin")
  set(what --package millpond-cli --bin "${FILE}")
else()
  set(what --package millpond --lib --crate-type ${KIND} --no-default-features --features ${FEATURE})
endif()
execute_process(
  COMMAND
    "${CARGO}" rustc --manifest-path "${SOURCE_DIR}/Cargo.toml" ${what} --locked --release --target ${TRIPLE}
    --target-dir "${TARGET_DIR}" ${config} ${FLAGS} -- ${print}
  WORKING_DIRECTORY "${SOURCE_DIR}"
  RESULT_VARIABLE status
)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "Millpond: cargo failed (${status}); its messages are above")
endif()

set(made "${TARGET_DIR}/${TRIPLE}/release/${FILE}")
file(COPY_FILE "${made}" "${OUTPUT}")
if(KIND STREQUAL "staticlib" AND NOT DEBUG_INFO AND OBJCOPY)
  # The standard library comes with its own, which Cargo removes from what it links, and an archive is not linked.
  execute_process(COMMAND "${OBJCOPY}" --strip-debug "${OUTPUT}" RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "Millpond: ${OBJCOPY} --strip-debug ${OUTPUT} failed (${status})")
  endif()
endif()
file(TOUCH "${OUTPUT}")

# Cargo's list of sources names Cargo's file as its target; ours must name the copy.
string(REGEX REPLACE "\\.[a-z]+$" "" list "${made}")
string(APPEND list ".d")
file(READ "${list}" sources)
string(FIND "${sources}" ": " colon)
if(colon LESS 0)
  message(FATAL_ERROR "Millpond: ${list} is not a list of sources")
endif()
string(SUBSTRING "${sources}" ${colon} -1 sources)
string(REPLACE " " "\\ " target "${OUTPUT}")
file(WRITE "${OUTPUT}.d" "${target}${sources}")
