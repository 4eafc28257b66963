# The example plugin, in the variants that it can be built in, as a foreign device type.
if(NOT TARGET millpond_example_plugin AND EXISTS "${Millpond_SOURCE_DIR}/examples/foreign_plugin/CMakeLists.txt")
  add_subdirectory("${Millpond_SOURCE_DIR}/examples/foreign_plugin" foreign_plugin)
endif()
millpond_test_plugin(foreign millpond_example_plugin)
millpond_test_plugin(foreign_minimal millpond_example_plugin_minimal)

# Plugins written against PaddlePaddle's own header, as other people write them.
include("${Millpond_SOURCE_DIR}/cpp_tests/foreign/foreign.cmake")
