# What the checks of symbols have in common.

# Runs a command, which must succeed; its output goes to `output`.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${ARGV}\n${errors}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Sets <out> to the names of the symbols that NM prints with these arguments.
function(symbols out)
  run("${NM}" ${ARGN})
  string(REGEX MATCHALL "[A-Za-z] [^ \n]+\n" found "${output}")
  list(TRANSFORM found REPLACE "^. ([^\n]+)\n$" "\\1")
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# Two lists, given by their variables, must have the same names; otherwise `missing` or `extra` says what the others are.
function(compare expected_list actual_list missing extra)
  set(lacks ${${expected_list}})
  list(REMOVE_ITEM lacks ${${actual_list}})
  set(more ${${actual_list}})
  list(REMOVE_ITEM more ${${expected_list}})
  if(lacks)
    message(SEND_ERROR "${missing}: ${lacks}")
  endif()
  if(more)
    message(SEND_ERROR "${extra}: ${more}")
  endif()
endfunction()
