# Shared by the consumer projects: the program that uses Millpond, under a given name and target spelling.
enable_testing()
set(common "${CMAKE_CURRENT_LIST_DIR}")

function(millpond_test_program name library)
  add_executable(${name} "${common}/main.c" "${common}/use_millpond.c")
  target_compile_definitions(${name} PRIVATE "MILLPOND_EXPECTED_VERSION=\"${MILLPOND_VERSION}\"")
  target_link_libraries(${name} PRIVATE ${library})
  add_test(NAME ${name} COMMAND ${name})
endfunction()
