# The target `millpond` (Millpond::millpond): a STATIC library.
#
# Two Rust archives in one program collide on the runtime's own symbols. So, where the tools can, the archive is
# linked into one object whose only global symbols are millpond_*. That object is the library's one source file,
# which makes it an ordinary CMake library that install(EXPORT) understands. Elsewhere the plain archive is used.

set(millpond_plain "${Millpond_BINARY_DIR}/rust/libmillpond.a")
set(millpond_object "${Millpond_BINARY_DIR}/rust/millpond.o")

set(millpond_localize_arguments
    "-DLD=${CMAKE_LINKER}" "-DNM=${CMAKE_NM}" "-DOBJCOPY=${CMAKE_OBJCOPY}" -P "${Millpond_SOURCE_DIR}/cmake/localize.cmake"
)

# Sets <out> to whether the localising step works with this machine's tools: it is tried on a two-function archive.
function(millpond_probe_localize out)
  if(NOT (CMAKE_LINKER AND CMAKE_NM AND CMAKE_OBJCOPY))
    set(${out} FALSE PARENT_SCOPE)
    return()
  endif()
  set(dir "${Millpond_BINARY_DIR}/rust/probe")
  file(MAKE_DIRECTORY "${dir}")
  file(WRITE "${dir}/probe.c" "int other_symbol(void) { return 1; }\nint millpond_probe(void) { return other_symbol(); }\n")
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  try_compile(compiled "${dir}" "${dir}/probe.c" COPY_FILE "${dir}/libprobe.a")
  set(status 1)
  if(compiled)
    execute_process(
      COMMAND "${CMAKE_COMMAND}" "-DARCHIVE=${dir}/libprobe.a" "-DOUTPUT=${dir}/probe.o" ${millpond_localize_arguments}
      RESULT_VARIABLE status OUTPUT_VARIABLE ignored ERROR_VARIABLE ignored
    )
  endif()
  if(status EQUAL 0)
    set(${out} TRUE PARENT_SCOPE)
  else()
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()

if(MILLPOND_LOCALIZE AND NOT DEFINED MILLPOND_CAN_LOCALIZE)
  millpond_probe_localize(millpond_can_localize)
  set(MILLPOND_CAN_LOCALIZE ${millpond_can_localize} CACHE INTERNAL "ld -r and objcopy can localise symbols")
  if(NOT MILLPOND_CAN_LOCALIZE)
    message(STATUS "Millpond: this linker cannot localise symbols; another Rust library in the same program may collide")
  endif()
endif()

# With the plugin's entry in it, which is compiled once with the rest and is global nowhere but in the plugin. As it
# comes from Cargo it would be global in the archive, and collide with the entry of a plugin that links Millpond.
if(MILLPOND_LOCALIZE AND MILLPOND_CAN_LOCALIZE)
  set(millpond_has_plugin TRUE)
  millpond_cargo("${millpond_plain}" KIND staticlib FEATURE capi,plugin FILE libmillpond.a)
else()
  set(millpond_has_plugin FALSE)
  millpond_cargo("${millpond_plain}" KIND staticlib FEATURE capi FILE libmillpond.a)
endif()

if(MILLPOND_LOCALIZE AND MILLPOND_CAN_LOCALIZE)
  add_custom_command(
    OUTPUT "${millpond_object}"
    COMMAND "${CMAKE_COMMAND}" "-DARCHIVE=${millpond_plain}" "-DOUTPUT=${millpond_object}" ${millpond_localize_arguments}
    DEPENDS "${millpond_plain}" "${Millpond_SOURCE_DIR}/cmake/localize.cmake"
    COMMENT "Localising the symbols of libmillpond.a"
    VERBATIM
  )
  set_source_files_properties("${millpond_object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  add_library(millpond STATIC "${millpond_object}")
else()
  # A library of one empty file, replaced by Cargo's archive after each link.
  set(stub "${Millpond_BINARY_DIR}/rust/stub.c")
  if(NOT EXISTS "${stub}")
    file(WRITE "${stub}" "extern int millpond_stub;\nint millpond_stub;\n")
  endif()
  set_source_files_properties("${stub}" PROPERTIES OBJECT_DEPENDS "${millpond_plain}")
  add_custom_target(millpond_cargo_archive DEPENDS "${millpond_plain}")
  add_library(millpond STATIC "${stub}")
  add_dependencies(millpond millpond_cargo_archive)
  add_custom_command(
    TARGET millpond POST_BUILD COMMAND "${CMAKE_COMMAND}" -E copy "${millpond_plain}" "$<TARGET_FILE:millpond>" VERBATIM
  )
endif()

add_library(Millpond::millpond ALIAS millpond)
add_library(millpond::millpond ALIAS millpond)
set_target_properties(millpond PROPERTIES LINKER_LANGUAGE C INTERPROCEDURAL_OPTIMIZATION OFF)
target_include_directories(
  millpond INTERFACE "$<BUILD_INTERFACE:${Millpond_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>"
)
# Rust also names gcc_s and c: the compiler driver brings both, and a named gcc_s would break a fully static link.
target_compile_features(millpond INTERFACE cxx_std_17) # without effect on C
target_link_libraries(millpond INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
# A shared library that links Millpond keeps it to itself: two such copies in one process would bind to each other.
target_link_options(millpond INTERFACE "$<$<PLATFORM_ID:Linux>:LINKER:--exclude-libs,libmillpond.a>")
# The archive is one object, of which a program needs what it calls: without this it gets all of it, half as much again.
target_link_options(millpond INTERFACE "$<$<PLATFORM_ID:Linux>:LINKER:--gc-sections>")
