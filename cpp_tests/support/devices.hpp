// The device types that the conformance suite runs over, and the fixture that its tests share.
// A new type is one line in devices.cpp.
#ifndef MILLPOND_TESTS_DEVICES_HPP
#define MILLPOND_TESTS_DEVICES_HPP

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "millpond/millpond.h"
#include "support/check.hpp"

namespace millpond_tests {

/// One device type to run over.
struct DeviceCase {
  std::string label;   ///< the name that the test shows
  std::string type;    ///< the device type; of a plugin it is what loading returns
  std::string plugin;  ///< a shared object to load first; empty for a built-in type
};

inline void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.label; }

/// All types of this build and run.
std::vector<DeviceCase> device_cases();
/// The suffix of a parameterised test's name.
std::string case_name(const ::testing::TestParamInfo<DeviceCase>& info);

/// Opens the first device of the case, and checks when the test ends that nothing it allocated was
/// lost or counted twice. Skips aloud when the machine has no such device.
class DeviceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override;
  void TearDown() override;

  millpond_device_info info(millpond_device* device) const;
  millpond_stats stats() const { return stats(device_); }
  millpond_stats stats(millpond_device* device) const;
  bool can(std::uint32_t caps) const { return (info(device_).caps & caps) == caps; }
  /// The driver's own streams and events are used, also those that others have made: a number that
  /// is none cannot be told, and copies from and to pageable memory may wait for the stream.
  bool is_driver() const { return type_ == "cuda"; }
  /// Device 1 of the same type; NULL where there is only one.
  millpond_device* second() const;
  /// A stream that goes with the test.
  C_Stream stream();

  std::string type_;
  millpond_device* device_ = nullptr;
  millpond_pool* pool_ = nullptr;  ///< the default pool

 private:
  millpond_stats before_{};
  std::vector<C_Stream> streams_;
};

}  // namespace millpond_tests

#define MILLPOND_FOR_ALL_DEVICES(Suite)                                                           \
  INSTANTIATE_TEST_SUITE_P(Devices, Suite, ::testing::ValuesIn(::millpond_tests::device_cases()), \
                           ::millpond_tests::case_name);                                          \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Suite)

#endif  // MILLPOND_TESTS_DEVICES_HPP
