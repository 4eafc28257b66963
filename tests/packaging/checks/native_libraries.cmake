# Every system library that Rust says the archive needs is in the link interface of CMake and of pkg-config,
# or comes with the C compiler, or is empty in every C library that still has it.
cmake_policy(VERSION 3.22)

file(READ "${RUST_LIBS}" needed)
string(REGEX MATCHALL "-l[a-z_+]+" needed "${needed}")
list(TRANSFORM needed REPLACE "^-l" "")
if(NOT "c" IN_LIST needed)
  message(FATAL_ERROR "${RUST_LIBS} does not look right: ${needed}")
endif()
list(REMOVE_ITEM needed c gcc_s) # the compiler driver links these, in the kind that suits -static
list(REMOVE_ITEM needed util rt) # named by Rust for glibc before 2.34; Rust's library uses nothing of them

separate_arguments(INTERFACE UNIX_COMMAND "${INTERFACE}")
list(TRANSFORM INTERFACE REPLACE "^Threads::Threads$" "pthread")
set(missing ${needed})
list(REMOVE_ITEM missing ${INTERFACE})
if(missing)
  message(SEND_ERROR "Rust needs ${missing}; CMake's interface has only ${INTERFACE}")
endif()

if(EXISTS "${BUILD}/package/millpond.pc") # made where install rules are
  file(STRINGS "${BUILD}/package/millpond.pc" line REGEX "^Libs:")
  string(REGEX MATCHALL "-l[a-z_]+|-pthread" libs "${line}")
  list(TRANSFORM libs REPLACE "^-l?" "")
  set(missing ${needed})
  list(REMOVE_ITEM missing ${libs})
  if(missing)
    message(SEND_ERROR "Rust needs ${missing}; millpond.pc has only ${libs}")
  endif()
endif()
message("needed: ${needed}")
