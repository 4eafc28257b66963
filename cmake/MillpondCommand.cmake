# The `millpond` command, for packages: the target `millpond_command`. (`cargo install --path cli` needs no CMake.)
#
# A build of its own, which takes as long as the library's. MILLPOND_COMMAND names one that is there already.
set(MILLPOND_COMMAND "" CACHE FILEPATH "A `millpond` command to package, instead of building one")
mark_as_advanced(MILLPOND_COMMAND)
set(millpond_command "${MILLPOND_COMMAND}")
if(NOT millpond_command)
  set(millpond_command "${Millpond_BINARY_DIR}/bin/millpond")
  file(MAKE_DIRECTORY "${Millpond_BINARY_DIR}/bin")
  millpond_cargo("${millpond_command}" KIND bin FEATURE none FILE millpond)
  add_custom_target(millpond_command ALL DEPENDS "${millpond_command}")
endif()
