// Memory over the table of a plugin: contents, copies, fills, what is refused, and several threads.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "support/pattern.hpp"
#include "support/table.hpp"

namespace millpond_tests {
namespace {

TEST_P(Driven, MemoryHoldsWhatIsCopied) {
  std::vector<std::pair<void*, std::size_t>> blocks;
  std::size_t min = 256;
  if (at().device_min_chunk_size != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().device_min_chunk_size(&device_, &min));
  }
  for (std::size_t size : {std::size_t{1}, std::size_t{255}, std::size_t{4096}, kSize + 7}) {
    blocks.emplace_back(alloc(size), size);
    EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(blocks.back().first) %
                      (min < 256 ? min : std::size_t{256}));
    write(blocks.back().first, pattern(size, size));
  }
  for (const auto& block : blocks) {
    EXPECT_EQ(pattern(block.second, block.second), read(block.first, block.second));
  }
  if (at().memory_copy_d2d != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().memory_copy_d2d(&device_, blocks[3].first, blocks[2].first, 4096));
    EXPECT_EQ(pattern(4096, 4096), read(blocks[3].first, 4096));
  }
  for (const auto& block : blocks) free(block.first, block.second);
}

TEST_P(Driven, MemsetFillsItsRange) {
  NEED(device_memory_set);
  void* block = alloc(kSize);
  write(block, std::vector<std::uint8_t>(kSize, 0x11));
  EXPECT_EQ(C_SUCCESS,
            at().device_memory_set(&device_, static_cast<std::uint8_t*>(block) + 5, 0xEE, 1000));
  const std::vector<std::uint8_t> got = read(block, kSize);
  EXPECT_EQ(5u, first_other(got, 0x11, 0, 5));
  EXPECT_EQ(1005u, first_other(got, 0xEE, 5, 1005));
  EXPECT_EQ(kSize, first_other(got, 0x11, 1005, kSize));
  free(block, kSize);
}

TEST_P(Driven, HostAndUnifiedMemory) {
  const auto round = [this](C_Status (*take)(C_Device, void**, std::size_t),
                            C_Status (*give)(C_Device, void*, std::size_t)) {
    if (take == nullptr) return;
    ASSERT_NE(nullptr, give);
    void* host = nullptr;
    ASSERT_EQ(C_SUCCESS, take(&device_, &host, 10000));
    ASSERT_NE(nullptr, host);
    const std::vector<std::uint8_t> bytes = pattern(3, 10000);
    std::memcpy(host, bytes.data(), 10000);
    void* block = alloc(10000);
    EXPECT_EQ(C_SUCCESS, at().memory_copy_h2d(&device_, block, host, 10000));
    EXPECT_EQ(bytes, read(block, 10000));
    free(block, 10000);
    EXPECT_EQ(C_SUCCESS, give(&device_, host, 10000));
  };
  round(at().host_memory_allocate, at().host_memory_deallocate);
  round(at().unified_memory_allocate, at().unified_memory_deallocate);
}

TEST_P(Driven, CopiesBetweenDevices) {
  NEED(memory_copy_p2p);
  if (count() < 2) GTEST_SKIP() << "one device";
  C_Device_st other = {1};
  if (at().init_device != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().init_device(&other));
  }
  void* here = alloc(kSize);
  void* there = nullptr;
  ASSERT_EQ(C_SUCCESS, at().device_memory_allocate(&other, &there, kSize));
  write(here, pattern(7, kSize));
  EXPECT_EQ(C_SUCCESS, at().memory_copy_p2p(&other, &device_, there, here, kSize));
  std::vector<std::uint8_t> got(kSize);
  EXPECT_EQ(C_SUCCESS, at().memory_copy_d2h(&other, got.data(), there, kSize));
  EXPECT_EQ(pattern(7, kSize), got);
  if (at().async_memory_copy_p2p != nullptr && at().create_stream != nullptr) {
    C_Stream queue = stream();
    write(here, pattern(8, kSize));
    EXPECT_EQ(C_SUCCESS, at().async_memory_copy_p2p(&other, &device_, queue, there, here, kSize));
    EXPECT_EQ(C_SUCCESS, at().synchronize_stream(&device_, queue));
    EXPECT_EQ(C_SUCCESS, at().memory_copy_d2h(&other, got.data(), there, kSize));
    EXPECT_EQ(pattern(8, kSize), got);
  }
  EXPECT_EQ(C_SUCCESS, at().device_memory_deallocate(&other, there, kSize));
  free(here, kSize);
}

TEST_P(Driven, RunningOutIsAStatus) {
  NEED(device_memory_stats);
  std::size_t total = 0, left = 0;
  EXPECT_EQ(C_SUCCESS, at().device_memory_stats(&device_, &total, &left));
  int mark = 0;
  void* out = &mark;
  // Failure, or success with a null pointer: both tell a host that nothing is left.
  const C_Status status = at().device_memory_allocate(&device_, &out, total + (total >> 1));
  if (status == C_SUCCESS) {
    EXPECT_EQ(nullptr, out);
  } else {
    EXPECT_EQ(&mark, out) << "an output was written by a failed call";
  }
  void* block = alloc(1000);
  free(block, 1000);
}

TEST_P(Driven, ManyThreadsCopyAtOnce) {
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      if (at().set_device != nullptr) {
        EXPECT_EQ(C_SUCCESS, at().set_device(&device_));
      }
      for (std::uint64_t i = 0; i < 50; ++i) {
        const std::size_t size = 1000 + i * 997;
        void* block = alloc(size);
        write(block, pattern(t * 100 + i, size));
        EXPECT_EQ(pattern(t * 100 + i, size), read(block, size));
        free(block, size);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace millpond_tests
