// Errors of the C++ interface: one exception type, and one function that turns a status into it.
//
// Built without exceptions (-fno-exceptions), nothing terminates: a call that returns a C_Status
// returns the failure, a call that returns an object or a pointer returns an empty one, and
// millpond_last_error_code() / _message() hold the reason on the same thread. A call that succeeds
// does not clear them (as with errno), so they tell nothing of whether a call has failed. With
// exceptions, a returned C_Status is always C_SUCCESS, since everything else is thrown.
//
// The two forms are different types, each in an inline namespace, so that a program may have files
// of both. Pass handles of the C API from one to the other. For the same reason nothing of this
// namespace can be forward-declared: include the header.
#ifndef MILLPOND_CPP_ERROR_HPP
#define MILLPOND_CPP_ERROR_HPP

#if defined(_MSVC_LANG) ? _MSVC_LANG < 201703L : __cplusplus < 201703L
#error \
    "Millpond's C++ headers need C++17: compile with -std=c++17 or newer; CMake's target says so by itself"
#endif

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "millpond/millpond.h"

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define MILLPOND_CPP_EXCEPTIONS 1
#define MILLPOND_CPP_ABI exceptions
#define MILLPOND_CPP_CHECKED  // a failure is thrown
#else
#define MILLPOND_CPP_EXCEPTIONS 0
#define MILLPOND_CPP_ABI no_exceptions
#define MILLPOND_CPP_CHECKED [[nodiscard]]  // nothing else tells of a failure
#endif

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// The report as text for people: several lines, with advice at the end. Empty when
/// it cannot be made.
inline std::string to_string(const millpond_oom_report& report) {
  std::size_t size = 0;
  if (millpond_oom_report_text(&report, nullptr, 0, &size) != C_SUCCESS) return {};
  std::string text(size, '\0');
  if (millpond_oom_report_text(&report, &text[0], size, nullptr) != C_SUCCESS) return {};
  text.resize(size - 1);  // without the NUL
  return text;
}

/// A failed call: what() is the library's message for a person.
class Error : public std::runtime_error {
 public:
  /// An error with the given parts: `code` is one of MILLPOND_E_*.
  Error(C_Status status, std::uint32_t code, const std::string& message)
      : std::runtime_error(message), status_(status), code_(code) {}
  /// The same with the report of why there was no memory; it may be none.
  Error(C_Status status, std::uint32_t code, const std::string& message,
        std::shared_ptr<const millpond_oom_report> report)
      : std::runtime_error(message), status_(status), code_(code), report_(std::move(report)) {}

  /// The status that the C call returned; never C_SUCCESS.
  MILLPOND_CPP_CHECKED C_Status status() const noexcept { return status_; }
  /// The stable number, one of MILLPOND_E_*.
  std::uint32_t code() const noexcept { return code_; }
  /// The name of code(), such as "MILLPOND_E_OUT_OF_MEMORY". Static storage.
  const char* code_name() const noexcept { return millpond_error_name(code_); }
  /// Of a request that found no memory: why, and who holds it. Lives as long as any copy of this
  /// error. NULL for other failures, and where the host had no memory for it.
  const millpond_oom_report* oom_report() const noexcept { return report_.get(); }

 private:
  C_Status status_;
  std::uint32_t code_;
  std::shared_ptr<const millpond_oom_report> report_;  // shared: copying an error must not throw
};

namespace detail {

/// The report of the calling thread's last call, if that was a request that found no memory.
inline std::shared_ptr<const millpond_oom_report> last_oom() noexcept {
  std::unique_ptr<millpond_oom_report> report(new (std::nothrow) millpond_oom_report());
  if (!report || millpond_last_error_code() != MILLPOND_E_OUT_OF_MEMORY) return nullptr;
  report->struct_size = sizeof *report;
  if (millpond_last_oom(report.get()) != C_SUCCESS) return nullptr;
#if MILLPOND_CPP_EXCEPTIONS
  try {
    return std::shared_ptr<const millpond_oom_report>(std::move(report));
  } catch (...) {  // no memory for the count of owners
    return nullptr;
  }
#else
  return std::shared_ptr<const millpond_oom_report>(std::move(report));
#endif
}

}  // namespace detail

/// Throws Error, with the calling thread's last error, unless `status` is C_SUCCESS. Call it on the
/// thread that made the failing call, before its next call. Returns `status`.
inline C_Status check(C_Status status) {
#if MILLPOND_CPP_EXCEPTIONS
  if (status != C_SUCCESS) {
    // The message first: what looks for the report may fail and leave another.
    const std::string message = millpond_last_error_message();
    const std::uint32_t code = millpond_last_error_code();
    throw Error(status, code, message, detail::last_oom());
  }
#endif
  return status;
}

namespace detail {

/// Fails a call that this header itself refuses, before the library sees it.
inline C_Status refuse(std::uint32_t code, const char* message) {
  millpond_last_error_set(code, message);
  const C_Status status = code == MILLPOND_E_OUT_OF_MEMORY ? C_FAILED : C_ERROR;
#if MILLPOND_CPP_EXCEPTIONS
  throw Error(status, code, message);
#else
  return status;
#endif
}

/// Refuses a function to call back that is empty or, where there was no room for it, not `made`.
inline C_Status refuse_function(bool made) {
  return made ? refuse(MILLPOND_E_INVALID_ARGUMENT, "no function to call back")
              : refuse(MILLPOND_E_OUT_OF_MEMORY, "the host has no memory for the function");
}

}  // namespace detail

/// The version of the linked library, "major.minor.patch". Static storage.
inline const char* version() noexcept { return millpond_version(); }

/// The same as a number, as MILLPOND_VERSION_NUMBER of the header.
inline std::uint32_t version_number() noexcept { return millpond_version_number(); }

/// PyTorch runs on devices of `type` ("": of all types); see millpond_set_pytorch_options.
MILLPOND_CPP_CHECKED inline C_Status set_pytorch_options(const std::string& type = {}) {
  return check(millpond_set_pytorch_options(type.empty() ? nullptr : type.c_str()));
}

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_ERROR_HPP
