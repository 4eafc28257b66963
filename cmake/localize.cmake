# Build step: links ARCHIVE into the one object OUTPUT, whose only global definitions are the archive's millpond_*.
# Inputs: ARCHIVE OUTPUT LD NM OBJCOPY.
cmake_policy(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status ERROR_VARIABLE errors OUTPUT_VARIABLE output)
  if(NOT status EQUAL 0)
    list(GET ARGV 0 tool)
    message(FATAL_ERROR "Millpond: ${tool} failed (${status}): ${errors}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# The archive itself says what it exports; a packaging test compares that with the header.
set(nm "${NM}")
if(NM MATCHES "llvm-nm")
  # Rust's objects bring the code of a newer LLVM along, on which an older llvm-nm fails.
  list(APPEND nm --no-llvm-bc)
endif()
run(${nm} --defined-only --extern-only "${ARCHIVE}")
string(REGEX MATCHALL "[TDBR] millpond_[a-z0-9_]+" symbols "${output}")
list(TRANSFORM symbols REPLACE "^. " "")
list(REMOVE_DUPLICATES symbols)
list(SORT symbols)
if(NOT symbols)
  message(FATAL_ERROR "Millpond: ${ARCHIVE} defines no millpond_* symbol")
endif()
list(JOIN symbols "\n" lines)
file(WRITE "${OUTPUT}.exports" "${lines}\n")

# -u pulls in each export; groups are resolved now, so that a second Rust archive cannot replace their members later.
# No --gc-sections here: the final link does that, with the sections kept apart.
list(TRANSFORM symbols PREPEND "--undefined=")
run("${LD}" -r --force-group-allocation ${symbols} -o "${OUTPUT}.all" "${ARCHIVE}")
run("${OBJCOPY}" "--keep-global-symbols=${OUTPUT}.exports" --remove-section=.llvmbc --remove-section=.llvmcmd
    "${OUTPUT}.all" "${OUTPUT}")
file(REMOVE "${OUTPUT}.all")
