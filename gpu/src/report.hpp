// Rows of the table: what was checked, what came out, what was wanted, and whether it is so. A row
// is a line with tabs on stdout, which `gpu/check` reads.
#ifndef MILLPOND_GPU_REPORT_HPP
#define MILLPOND_GPU_REPORT_HPP

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "driver.hpp"
#include "millpond/millpond.h"

namespace gpu {

/// Ends the program if a call of Millpond failed.
inline void check(C_Status status) {
  if (status != C_SUCCESS) fail(std::string("Millpond: ") + millpond_last_error_message());
}

inline std::string number(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f %s", value < 10 ? 2 : value < 1000 ? 1 : 0, value, unit);
  return text;
}

inline std::string bytes(std::uint64_t count) {
  const double value = static_cast<double>(count);
  if (count >= std::uint64_t{1} << 30) return number(value / (1 << 30), "GiB");
  if (count >= 1 << 20) return number(value / (1 << 20), "MiB");
  return std::to_string(count) + " B";
}

class Report {
 public:
  explicit Report(const char* group) : group_(group) {}

  /// A check. `why` is added to the value when it failed.
  void row(const std::string& name, const std::string& value, const std::string& goal, bool good,
           const std::string& why = "") {
    if (!good) ++failed_;
    print(name, good || why.empty() ? value : value + ": " + why, goal, good ? "pass" : "fail");
  }

  /// A number to compare with, which nothing is wanted of.
  void info(const std::string& name, const std::string& value, const std::string& note = "") {
    print(name, value, note, "info");
  }

  void skip(const std::string& name, const std::string& why) { print(name, why, "", "skip"); }

  int status() const { return failed_ == 0 ? 0 : 1; }

 private:
  void print(const std::string& name, const std::string& value, const std::string& goal,
             const char* state) {
    std::printf("row\t%s: %s\t%s\t%s\t%s\n", group_, name.c_str(), value.c_str(), goal.c_str(),
                state);
    std::fflush(stdout);
  }

  const char* group_;
  int failed_ = 0;
};

}  // namespace gpu

#endif  // MILLPOND_GPU_REPORT_HPP
