// Expectations about statuses: every failure must carry the code that was asked for, the status
// that belongs to the code, and a message for a person.
#ifndef MILLPOND_TESTS_CHECK_HPP
#define MILLPOND_TESTS_CHECK_HPP

#include <gtest/gtest.h>

#include <cstdint>

#include "millpond/millpond.h"

namespace millpond_tests {

/// The status that the C API promises for a code.
inline C_Status status_of(std::uint32_t code) {
  switch (code) {
    case MILLPOND_OK:
      return C_SUCCESS;
    case MILLPOND_E_OUT_OF_MEMORY:
    case MILLPOND_E_DEVICE:
    case MILLPOND_E_SYSTEM:
      return C_FAILED;
    case MILLPOND_E_INTERNAL:
      return C_INTERNAL_ERROR;
    default:
      return C_ERROR;
  }
}

inline ::testing::AssertionResult succeeded(const char* call, C_Status status) {
  if (status == C_SUCCESS) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << call << " gave status " << static_cast<int>(status)
                                       << ", " << millpond_error_name(millpond_last_error_code())
                                       << ": " << millpond_last_error_message();
}

inline ::testing::AssertionResult failed_with(const char*, const char* call, std::uint32_t code,
                                              C_Status status) {
  const std::uint32_t got = status == C_SUCCESS ? MILLPOND_OK : millpond_last_error_code();
  if (got != code) {
    return ::testing::AssertionFailure()
           << call << " gave " << (got == MILLPOND_OK ? "success" : millpond_error_name(got))
           << ", expected " << millpond_error_name(code)
           << " (message: " << millpond_last_error_message() << ")";
  }
  if (status != status_of(code)) {
    return ::testing::AssertionFailure()
           << call << " gave status " << static_cast<int>(status) << " for "
           << millpond_error_name(code) << ", expected " << static_cast<int>(status_of(code));
  }
  if (millpond_last_error_message()[0] == '\0') {
    return ::testing::AssertionFailure() << call << " failed without a message";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace millpond_tests

#define EXPECT_OK(call) EXPECT_PRED_FORMAT1(::millpond_tests::succeeded, call)
#define ASSERT_OK(call) ASSERT_PRED_FORMAT1(::millpond_tests::succeeded, call)
/// The call fails with exactly this MILLPOND_E_* code.
#define EXPECT_FAILS(code, call) EXPECT_PRED_FORMAT2(::millpond_tests::failed_with, code, call)

#endif  // MILLPOND_TESTS_CHECK_HPP
