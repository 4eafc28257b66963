# Fetches the packages, compiles SOURCE against the headers in them, and runs it. See CMakeLists.txt.
include("${CMAKE_CURRENT_LIST_DIR}/fetch.cmake")
separate_arguments(WHEELS UNIX_COMMAND "${WHEELS}")
separate_arguments(LIBRARIES UNIX_COMMAND "${LIBRARIES}")
fetch_wheels("${CACHE}" folders ${WHEELS})

set(flags "")
foreach(folder IN LISTS folders)
  if(NOT IS_DIRECTORY "${folder}")
    message(FATAL_ERROR "${folder} is not in its package")
  endif()
  list(APPEND flags -isystem "${folder}")
endforeach()
foreach(include IN LISTS INCLUDES)
  list(APPEND flags "-I${include}")
endforeach()

get_filename_component(parent "${WORK}" DIRECTORY)
file(MAKE_DIRECTORY "${parent}")
execute_process(
  COMMAND "${COMPILER}" "-std=c++${STANDARD}" -Wall -Wextra -Werror ${flags} "${SOURCE}" "${ARCHIVE}" ${LIBRARIES} -o
          "${WORK}" RESULT_VARIABLE status
)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${SOURCE} does not compile with ${WHEELS}")
endif()
execute_process(COMMAND "${WORK}" RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${WORK} failed (${status})")
endif()
