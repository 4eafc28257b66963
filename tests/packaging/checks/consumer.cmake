# Configures, builds and tests one consumer project in WORK, then builds again: the second build must do nothing.
cmake_policy(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${ARGV}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(config "")
set(test_config "")
if(CONFIG)
  set(config --config "${CONFIG}")
  set(test_config -C "${CONFIG}")
endif()

separate_arguments(OPTIONS UNIX_COMMAND "${OPTIONS}")
file(REMOVE_RECURSE "${WORK}")
run("${CMAKE_COMMAND}" --no-warn-unused-cli -S "${CONSUMER}" -B "${WORK}" -G "${GENERATOR}" "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}"
    "-DCMAKE_C_COMPILER=${C_COMPILER}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_PREFIX_PATH=${PREFIX}"
    "-DCMAKE_BUILD_TYPE=${CONFIG}" "-DMILLPOND_ROOT=${ROOT}" "-DMILLPOND_VERSION=${VERSION}" ${OPTIONS})
run("${CMAKE_COMMAND}" --build "${WORK}" ${config})
run("${CMAKE_CTEST_COMMAND}" --test-dir "${WORK}" --output-on-failure --no-tests=error ${test_config})

run("${CMAKE_COMMAND}" --build "${WORK}" ${config})
if(GENERATOR MATCHES "Ninja" AND NOT output MATCHES "no work to do")
  message(FATAL_ERROR "a second build had something to do")
elseif(output MATCHES "Cargo:")
  message(FATAL_ERROR "a second build ran Cargo again")
endif()
