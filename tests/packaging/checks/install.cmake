# Installs the build to STAGE and moves the result to PREFIX: nothing may depend on where it was installed to.
cmake_policy(VERSION 3.22)

file(REMOVE_RECURSE "${STAGE}" "${PREFIX}")
set(config "")
if(CONFIG)
  set(config --config "${CONFIG}")
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${STAGE}" ${config} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "install failed (${status})")
endif()
file(RENAME "${STAGE}" "${PREFIX}")

foreach(file "${LIBDIR}/libmillpond.a" "${LIBDIR}/millpond/libmillpond-plugin.so" "${LIBDIR}/pkgconfig/millpond.pc"
             "${LIBDIR}/cmake/millpond/millpond-config.cmake" "${INCLUDEDIR}/millpond/millpond.h")
  if(NOT EXISTS "${PREFIX}/${file}")
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()
