# The archive defines exactly the functions that the C header declares; the plugin exports InitPlugin and nothing else.
cmake_policy(VERSION 3.22)
include("${CMAKE_CURRENT_LIST_DIR}/symbols.cmake")

# The preprocessor takes the comments away, which name functions too.
run("${C_COMPILER}" -std=c11 -E -P "-I${ROOT}/include" "${ROOT}/include/millpond/millpond.h")
string(REGEX MATCHALL "millpond_[a-z0-9_]+ *\\(" declared "${output}")
list(TRANSFORM declared REPLACE " *\\($" "")
list(REMOVE_DUPLICATES declared)
if(NOT declared)
  message(FATAL_ERROR "found no function in millpond.h")
endif()

symbols(defined --defined-only --extern-only "${ARCHIVE}")
if(NOT LOCALIZED)
  list(FILTER defined INCLUDE REGEX "^millpond_")
endif()

compare(declared defined "declared in millpond.h, not defined by the archive"
        "defined by the archive, not declared in millpond.h")

symbols(exported -D --defined-only "${PLUGIN}")
if(NOT exported STREQUAL "InitPlugin")
  message(SEND_ERROR "the plugin exports `${exported}`, not just InitPlugin")
endif()
list(LENGTH declared count)
message("${count} functions declared and defined; the plugin exports ${exported}")
