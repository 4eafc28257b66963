# The target Millpond::plugin: libmillpond-plugin.so, a module that exports InitPlugin and nothing else.
#
# Linked by the C compiler from the same code as the archive, so Rust compiles once for both. Where the archive cannot have
# the entry in it (MillpondArchive.cmake), Cargo makes the plugin by itself.
# It is built with all targets only where it is installed or tested; elsewhere when something depends on it:
# add_dependencies(your_target Millpond::plugin).
# A host that exports millpond_* itself cannot take over the plugin's calls: it has none to such names.

set(millpond_plugin_name "${CMAKE_SHARED_MODULE_PREFIX}millpond-plugin${CMAKE_SHARED_MODULE_SUFFIX}")
set(millpond_plugin_file "${Millpond_BINARY_DIR}/plugin/${millpond_plugin_name}")
file(MAKE_DIRECTORY "${Millpond_BINARY_DIR}/plugin")
if(MILLPOND_INSTALL OR MILLPOND_BUILD_TESTS)
  set(all ALL)
else()
  set(all "")
endif()

if(millpond_has_plugin)
  set(millpond_plugin_stub "${Millpond_BINARY_DIR}/rust/plugin.c")
  # Its one line asks for the entry, which brings the rest. Not all linkers have an option for that.
  file(CONFIGURE OUTPUT "${millpond_plugin_stub}" CONTENT
       "void InitPlugin(void*);\nvoid (*millpond_plugin_entry)(void*) = InitPlugin;\n" @ONLY)
  add_library(millpond_plugin MODULE "${millpond_plugin_stub}")
  if(NOT all)
    set_target_properties(millpond_plugin PROPERTIES EXCLUDE_FROM_ALL TRUE)
  endif()
  add_dependencies(millpond_plugin millpond) # which makes the archive
  set(millpond_plugin_map "${Millpond_SOURCE_DIR}/cmake/plugin.map")
  set_target_properties(
    millpond_plugin
    PROPERTIES OUTPUT_NAME millpond-plugin LIBRARY_OUTPUT_DIRECTORY "$<1:${Millpond_BINARY_DIR}/plugin>" NO_SONAME TRUE
               LINKER_LANGUAGE C INTERPROCEDURAL_OPTIMIZATION OFF LINK_DEPENDS "${millpond_plain};${millpond_plugin_map}"
  )
  # A host may close the plugin without `finalize`, while threads of streams still run: the code stays then. (A
  # destructor that waits for them would wait under the loader's lock, which a thread may need in order to end.)
  target_link_options(
    millpond_plugin
    PRIVATE "LINKER:--version-script=${millpond_plugin_map}" "LINKER:--gc-sections" "LINKER:-z,defs"
            "LINKER:-z,nodelete" "LINKER:-z,relro" "LINKER:-z,now"
  )
  target_link_libraries(millpond_plugin PRIVATE "${millpond_plain}" Threads::Threads ${CMAKE_DL_LIBS} m gcc_s)
  add_library(Millpond::plugin ALIAS millpond_plugin)
  add_library(millpond::plugin ALIAS millpond_plugin)
else()
  # Cargo links it, so CMake sees an imported MODULE.
  millpond_cargo(
    "${millpond_plugin_file}" KIND cdylib FEATURE plugin FILE
    "${CMAKE_SHARED_LIBRARY_PREFIX}millpond${CMAKE_SHARED_LIBRARY_SUFFIX}"
  )
  add_custom_target(millpond_plugin ${all} DEPENDS "${millpond_plugin_file}")
  add_library(Millpond::plugin MODULE IMPORTED GLOBAL)
  set_target_properties(Millpond::plugin PROPERTIES IMPORTED_LOCATION "${millpond_plugin_file}")
  add_dependencies(Millpond::plugin millpond_plugin)
  add_library(millpond::plugin ALIAS Millpond::plugin)
endif()
