# The target `millpond_shared` (Millpond::shared): libmillpond.so.0, for programs and adapters that share one pond.
#
# Linked by the C compiler from the same code as the archive, so Rust compiles once for both. cmake/millpond.map is what
# it exports, with a version node for each minor release; everything else is hidden.
# It stays loaded to the end of the process: threads of its streams may still run when somebody closes it.

set(millpond_map "${Millpond_SOURCE_DIR}/cmake/millpond.map")
# The name that programs are linked to. It changes only when a function is taken away or means something else
# (docs/packages.md), whatever the version says.
set(MILLPOND_SOVERSION 0)

set(millpond_shared_stub "${Millpond_BINARY_DIR}/rust/shared.c")
file(CONFIGURE OUTPUT "${millpond_shared_stub}" CONTENT "typedef int millpond_everything_is_in_the_other_file;\n" @ONLY)
add_library(millpond_shared SHARED "${millpond_shared_stub}")
if(MILLPOND_LOCALIZE AND MILLPOND_CAN_LOCALIZE)
  target_sources(millpond_shared PRIVATE "${millpond_object}")
else()
  # From an archive the linker takes what is asked for.
  file(STRINGS "${millpond_map}" functions REGEX "^ +millpond_")
  set(wanted "")
  foreach(function IN LISTS functions)
    string(REGEX REPLACE "[ ;]" "" function "${function}")
    string(APPEND wanted "-u ${function}\n")
  endforeach()
  file(CONFIGURE OUTPUT "${Millpond_BINARY_DIR}/rust/shared.rsp" CONTENT "@wanted@" @ONLY)
  target_link_options(millpond_shared PRIVATE "LINKER:@${Millpond_BINARY_DIR}/rust/shared.rsp")
  target_link_libraries(millpond_shared PRIVATE "${millpond_plain}")
endif()
add_dependencies(millpond_shared millpond) # which makes the object, or the archive
set_target_properties(
  millpond_shared
  PROPERTIES OUTPUT_NAME millpond EXPORT_NAME shared VERSION ${Millpond_VERSION} SOVERSION ${MILLPOND_SOVERSION}
             LINKER_LANGUAGE C INTERPROCEDURAL_OPTIMIZATION OFF LINK_DEPENDS "${millpond_map}"
)
target_link_options(
  millpond_shared
  PRIVATE "LINKER:--version-script=${millpond_map}" "LINKER:--gc-sections" "LINKER:-z,defs" "LINKER:-z,nodelete"
          "LINKER:-z,relro" "LINKER:-z,now"
)
target_link_libraries(millpond_shared PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m gcc_s)
target_include_directories(
  millpond_shared
  INTERFACE "$<BUILD_INTERFACE:${Millpond_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>"
)
target_compile_features(millpond_shared INTERFACE cxx_std_17) # without effect on C
add_library(Millpond::shared ALIAS millpond_shared)
add_library(millpond::shared ALIAS millpond_shared)
