# Install rules. Everything that is installed finds its neighbours relative to itself: a prefix may be moved.
#
# Install components: `dev` (archive, headers, CMake and pkg-config files), `shared` (what a program needs that was linked
# to the shared library), `command` and `plugin`. The plugin has a directory of
# its own, because PaddlePaddle loads every library that it finds in CUSTOM_DEVICE_ROOT.
include(CMakePackageConfigHelpers)

set(millpond_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/millpond")
set(millpond_plugin_dir "${CMAKE_INSTALL_LIBDIR}/millpond")
set(millpond_generated "${Millpond_BINARY_DIR}/package")

install(TARGETS millpond EXPORT millpond-targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev)
install(DIRECTORY "${Millpond_SOURCE_DIR}/include/millpond" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT dev
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT millpond-targets NAMESPACE Millpond:: DESTINATION "${millpond_cmake_dir}" COMPONENT dev)
if(MILLPOND_BUILD_SHARED)
  install(TARGETS millpond_shared EXPORT millpond-shared-targets
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT shared NAMELINK_COMPONENT dev)
  install(EXPORT millpond-shared-targets NAMESPACE Millpond:: DESTINATION "${millpond_cmake_dir}" COMPONENT dev)
endif()
if(MILLPOND_BUILD_COMMAND)
  install(PROGRAMS "${millpond_command}" DESTINATION "${CMAKE_INSTALL_BINDIR}" RENAME millpond COMPONENT command)
endif()
install(PROGRAMS "${millpond_plugin_file}" DESTINATION "${millpond_plugin_dir}" COMPONENT plugin)
# `cmake --install --strip` and CPack strip what CMake has linked; these Cargo has.
function(millpond_strip file component)
  if(CMAKE_STRIP)
    install(
      CODE "if(CMAKE_INSTALL_DO_STRIP)
  execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-unneeded \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${file}\")
endif()"
      COMPONENT ${component}
    )
  endif()
endfunction()
get_filename_component(millpond_plugin_base "${millpond_plugin_file}" NAME)
millpond_strip("${millpond_plugin_dir}/${millpond_plugin_base}" plugin)
if(MILLPOND_BUILD_COMMAND)
  millpond_strip("${CMAKE_INSTALL_BINDIR}/millpond" command)
endif()

# Lower case names serve both find_package(Millpond) and find_package(millpond).
get_filename_component(millpond_plugin_name "${millpond_plugin_file}" NAME)
set(millpond_plugin_path "${millpond_plugin_dir}/${millpond_plugin_name}")
set(millpond_torch_path "${CMAKE_INSTALL_LIBDIR}/${CMAKE_SHARED_LIBRARY_PREFIX}millpond-torch${CMAKE_SHARED_LIBRARY_SUFFIX}")
configure_package_config_file(
  "${Millpond_SOURCE_DIR}/cmake/millpond-config.cmake.in" "${millpond_generated}/millpond-config.cmake"
  INSTALL_DESTINATION "${millpond_cmake_dir}" PATH_VARS millpond_plugin_path millpond_torch_path NO_CHECK_REQUIRED_COMPONENTS_MACRO
)
# Before 1.0 a new minor version may break callers.
if(Millpond_VERSION_MAJOR EQUAL 0)
  set(millpond_compatibility SameMinorVersion)
else()
  set(millpond_compatibility SameMajorVersion)
endif()
write_basic_package_version_file("${millpond_generated}/millpond-config-version.cmake" COMPATIBILITY ${millpond_compatibility})
install(FILES "${millpond_generated}/millpond-config.cmake" "${millpond_generated}/millpond-config-version.cmake"
        DESTINATION "${millpond_cmake_dir}" COMPONENT dev)

# pkg-config: the prefix is found from the file's own place.
set(millpond_pc_dir "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH millpond_pc_prefix "${millpond_pc_dir}" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" millpond_pc_prefix "${millpond_pc_prefix}")
file(RELATIVE_PATH millpond_pc_libdir "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_LIBDIR}")
file(RELATIVE_PATH millpond_pc_includedir "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
set(millpond_pc_libs "-pthread -lm")
foreach(lib IN LISTS CMAKE_DL_LIBS)
  string(APPEND millpond_pc_libs " -l${lib}")
endforeach()
set(millpond_pc_flags "")
set(millpond_pc_archive "-lmillpond")
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  # By its whole name: of two libraries with one name the linker takes the shared one.
  set(millpond_pc_archive "-l:libmillpond.a")
  set(millpond_pc_flags " -Wl,--exclude-libs,libmillpond.a -Wl,--gc-sections")
endif()
set(millpond_pc_files millpond)
if(MILLPOND_BUILD_SHARED)
  list(APPEND millpond_pc_files millpond-shared)
endif()
foreach(name IN LISTS millpond_pc_files)
  configure_file("${Millpond_SOURCE_DIR}/cmake/${name}.pc.in" "${millpond_generated}/${name}.pc" @ONLY)
  install(FILES "${millpond_generated}/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)
endforeach()

install(FILES "${Millpond_SOURCE_DIR}/LICENSE-MIT" "${Millpond_SOURCE_DIR}/LICENSE-APACHE"
        DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/millpond" COMPONENT dev)
