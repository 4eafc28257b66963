// For small test programs that end in unusual ways, where GoogleTest would be in the way: REQUIRE
// leaves the program with a message and status 1.
#ifndef MILLPOND_TESTS_PROGRAMS_EXPECT_HPP
#define MILLPOND_TESTS_PROGRAMS_EXPECT_HPP

#include <unistd.h>

#include <cstdio>

#define REQUIRE(condition)                                                         \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                    \
    }                                                                              \
  } while (0)

#endif  // MILLPOND_TESTS_PROGRAMS_EXPECT_HPP
