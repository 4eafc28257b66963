// Snapshots through the C++ header, on every device type. What is in them is tested in
// tests/contract/snapshots.rs, and with PyTorch's own tools in torch/tests/test_snapshot.py.
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/devices.hpp"

namespace millpond_tests {
namespace {

class Snapshots : public DeviceTest {
 protected:
  millpond::Device device() const { return millpond::Device(device_); }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};
MILLPOND_FOR_ALL_DEVICES(Snapshots);

TEST_P(Snapshots, ASnapshotTellsBlocksAndTheNamesOfPools) {
  const millpond::Pool own(device(), 0, "the \"weights\"");
  const millpond::Buffer block = own.allocate(123'457);
  const std::string json = device().snapshot();
  EXPECT_TRUE(has(json, "\"schema\":\"millpond.snapshot\",\"version\":1"));
  EXPECT_TRUE(has(json, "\"name\":\"the \\\"weights\\\"\""));
  EXPECT_TRUE(has(json, "\"requested_bytes\":123457,\"state\":\"live\""));
  const auto address = reinterpret_cast<std::uintptr_t>(block.data());
  EXPECT_TRUE(has(json, "{\"address\":" + std::to_string(address) + ","));
  const std::string pickle = device().snapshot(millpond::SnapshotFormat::kTorchPickle);
  EXPECT_TRUE(has(pickle, "device_traces") && has(pickle, "active_allocated"));
}

TEST_P(Snapshots, AFileHasWhatAFunctionGets) {
  const std::string path = ::testing::TempDir() + "millpond_snapshot_" +
                           std::to_string(::testing::UnitTest::GetInstance()->random_seed());
  for (const auto format :
       {millpond::SnapshotFormat::kJson, millpond::SnapshotFormat::kTorchPickle}) {
    EXPECT_OK(device().write_snapshot(path, format));
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    EXPECT_GT(bytes.str().size(), 200u);
    EXPECT_EQ(bytes.str().substr(0, 2), device().snapshot(format).substr(0, 2));
    EXPECT_EQ(0, std::remove(path.c_str()));
  }
}

template <typename Call>
std::uint32_t code_of(Call call) {
  try {
    call();
  } catch (const millpond::Error& e) {
    return e.code();
  }
  return MILLPOND_OK;
}

TEST_P(Snapshots, WhatFailsIsToldWithItsReason) {
  EXPECT_EQ(MILLPOND_E_SYSTEM,
            code_of([&] { device().write_snapshot("/nowhere/at/all/snapshot.json"); }));
  EXPECT_TRUE(has(millpond_last_error_message(), "/nowhere/at/all/snapshot.json"));
  const auto json = millpond::SnapshotFormat::kJson;
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of([&] { device().send_snapshot(json, nullptr); }));
  EXPECT_EQ(MILLPOND_E_SYSTEM, code_of([&] {
              device().send_snapshot(json, [](const void*, std::size_t) { return false; });
            }));
  EXPECT_EQ(MILLPOND_E_SYSTEM, code_of([&] {
              device().send_snapshot(json, [](const void*, std::size_t) -> bool {
                throw std::runtime_error("enough");
              });
            }));
}

}  // namespace
}  // namespace millpond_tests
