// What the tests of the entry points share: a device, streams that Millpond makes, numbers and
// blocks.
#ifndef MILLPOND_TORCH_TESTS_PLUGGABLE_TEST_HPP
#define MILLPOND_TORCH_TESTS_PLUGGABLE_TEST_HPP

#include <gtest/gtest.h>
#include <millpond/millpond.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "pluggable.hpp"

namespace entry_points {

using millpond_torch::Block;
using millpond_torch::PoolId;
using millpond_torch::Stats;
using millpond_torch::Stream;

constexpr ssize_t kMiB = 1 << 20;

inline Stats stats(int device = 0) {
  Stats out{};
  out.struct_size = sizeof out;
  EXPECT_EQ(0, millpond_torch_stats(device, &out)) << millpond_torch_last_error();
  return out;
}

inline std::vector<Block> blocks(int device = 0) {
  std::vector<Block> out(1000);
  out.resize(millpond_torch_blocks(device, out.data(), out.size()));
  return out;
}

inline millpond_device* device() {
  const char* type = std::getenv("MILLPOND_TORCH_DEVICE");
  millpond_device* out = nullptr;
  EXPECT_EQ(C_SUCCESS, millpond_device_get(type != nullptr ? type : "cuda", 0, &out));
  return out;
}

class Pluggable : public ::testing::Test {
 protected:
  void SetUp() override {
    std::size_t count = 0;
    if (millpond_torch_device_count(&count) != 0 || count == 0) {
      GTEST_SKIP() << "no device: " << millpond_torch_last_error();
    }
    millpond_torch_init(static_cast<int>(count));
  }
  void TearDown() override {
    for (Stream s : streams_) {
      EXPECT_EQ(C_SUCCESS, millpond_stream_destroy(device(), reinterpret_cast<C_Stream>(s)));
    }
    if (!IsSkipped()) {
      EXPECT_TRUE(blocks().empty());
      EXPECT_EQ(0u, stats().blocks.current);
    }
  }
  Stream stream() {
    C_Stream out = nullptr;
    EXPECT_EQ(C_SUCCESS, millpond_stream_create(device(), &out));
    streams_.push_back(reinterpret_cast<Stream>(out));
    return streams_.back();
  }

 private:
  std::vector<Stream> streams_;
};

}  // namespace entry_points

#endif
