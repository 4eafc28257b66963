# The target Millpond::plugin: libmillpond-plugin.so, a module that exports InitPlugin and nothing else.
#
# Cargo links it, so CMake sees an imported MODULE. It is built with all targets only where it is installed or tested;
# elsewhere when something depends on it: add_dependencies(your_target Millpond::plugin).
# Without the feature `capi`, so that a host that exports millpond_* itself cannot take over the plugin's calls.

set(millpond_plugin_file "${Millpond_BINARY_DIR}/plugin/libmillpond-plugin${CMAKE_SHARED_MODULE_SUFFIX}")
file(MAKE_DIRECTORY "${Millpond_BINARY_DIR}/plugin")
millpond_cargo(
  "${millpond_plugin_file}" KIND cdylib FEATURE plugin FILE
  "${CMAKE_SHARED_LIBRARY_PREFIX}millpond${CMAKE_SHARED_LIBRARY_SUFFIX}"
)
if(MILLPOND_INSTALL OR MILLPOND_BUILD_TESTS)
  add_custom_target(millpond_plugin ALL DEPENDS "${millpond_plugin_file}")
else()
  add_custom_target(millpond_plugin DEPENDS "${millpond_plugin_file}")
endif()

add_library(Millpond::plugin MODULE IMPORTED GLOBAL)
set_target_properties(Millpond::plugin PROPERTIES IMPORTED_LOCATION "${millpond_plugin_file}")
add_dependencies(Millpond::plugin millpond_plugin)
add_library(millpond::plugin ALIAS Millpond::plugin)
