// Errors of the C++ interface: one exception type, and one function that turns a status into it.
//
// Built without exceptions (-fno-exceptions), nothing terminates: a call that returns a C_Status
// returns the failure, a call that returns an object or a pointer returns an empty one, and
// millpond_last_error_code() / _message() hold the reason on the same thread. With exceptions, a
// returned C_Status is always C_SUCCESS, since everything else is thrown.
//
// The two forms are different types, each in an inline namespace, so that a program may have files
// of both. Pass handles of the C API from one to the other. For the same reason nothing of this
// namespace can be forward-declared: include the header.
#ifndef MILLPOND_CPP_ERROR_HPP
#define MILLPOND_CPP_ERROR_HPP

#include <cstdint>
#include <stdexcept>
#include <string>

#include "millpond/millpond.h"

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define MILLPOND_CPP_EXCEPTIONS 1
#define MILLPOND_CPP_ABI exceptions
#else
#define MILLPOND_CPP_EXCEPTIONS 0
#define MILLPOND_CPP_ABI no_exceptions
#endif

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// A failed call: what() is the library's message for a person.
class Error : public std::runtime_error {
 public:
  /// An error with the given parts: `code` is one of MILLPOND_E_*.
  Error(C_Status status, std::uint32_t code, const std::string& message)
      : std::runtime_error(message), status_(status), code_(code) {}

  /// The status that the C call returned; never C_SUCCESS.
  C_Status status() const noexcept { return status_; }
  /// The stable number, one of MILLPOND_E_*.
  std::uint32_t code() const noexcept { return code_; }
  /// The name of code(), such as "MILLPOND_E_OUT_OF_MEMORY". Static storage.
  const char* code_name() const noexcept { return millpond_error_name(code_); }

 private:
  C_Status status_;
  std::uint32_t code_;
};

/// Throws Error, with the calling thread's last error, unless `status` is C_SUCCESS. Call it on the
/// thread that made the failing call, before its next call. Returns `status`.
inline C_Status check(C_Status status) {
#if MILLPOND_CPP_EXCEPTIONS
  if (status != C_SUCCESS) {
    throw Error(status, millpond_last_error_code(), millpond_last_error_message());
  }
#endif
  return status;
}

namespace detail {

/// Fails a call that this header itself refuses, before the library sees it.
inline C_Status refuse(std::uint32_t code, const char* message) {
#if MILLPOND_CPP_EXCEPTIONS
  throw Error(C_ERROR, code, message);
#else
  (void)code;
  (void)message;
  return C_ERROR;
#endif
}

}  // namespace detail

/// The version of the linked library, "major.minor.patch". Static storage.
inline const char* version() noexcept { return millpond_version(); }

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_ERROR_HPP
