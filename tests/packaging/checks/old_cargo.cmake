# A Cargo that is too old is found when CMake configures, with what to do, and one that is not Cargo at all, too.
cmake_policy(VERSION 3.22)

function(refused output_of_cargo expected)
  file(REMOVE_RECURSE "${WORK}")
  file(WRITE "${WORK}/cargo" "#!/bin/sh\n${output_of_cargo}\n")
  file(CHMOD "${WORK}/cargo" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${ROOT}" -B "${WORK}/build" -G "${GENERATOR}" "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}"
            "-DCMAKE_C_COMPILER=${C_COMPILER}" "-DMILLPOND_CARGO=${WORK}/cargo"
    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said
  )
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(status EQUAL 0 OR NOT said MATCHES "${expected}")
    message(SEND_ERROR "expected `${expected}`, and there was (${status}):\n${said}")
  endif()
endfunction()

refused("echo 'cargo 1.63.0 (fd9c4297c 2022-07-01)'; echo 'host: x86_64-unknown-linux-gnu'"
        "needs cargo [0-9.]+ or newer.*cargo is 1\\.63\\.0.*rustup update.*MILLPOND_CARGO")
refused("exit 1" "does not work")
