// Streams, events and callbacks over the table of a plugin, and frees while work is queued.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "support/pattern.hpp"
#include "support/table.hpp"

namespace millpond_tests {
namespace {

TEST_P(Driven, StreamsRunInOrder) {
  NEED(create_stream);
  NEED(async_memory_copy_h2d);
  NEED(async_memory_copy_d2d);
  NEED(async_memory_copy_d2h);
  NEED(synchronize_stream);
  C_Stream queue = stream();
  void* a = alloc(kSize);
  void* b = alloc(kSize);
  std::vector<std::uint8_t> from(kSize), got(kSize);
  for (std::uint64_t round = 0; round < 10; ++round) {
    from = pattern(round, kSize);
    EXPECT_EQ(C_SUCCESS, at().async_memory_copy_h2d(&device_, queue, a, from.data(), kSize));
    from.assign(kSize, 0xDD);  // a pageable source has been read by now
    EXPECT_EQ(C_SUCCESS, at().async_memory_copy_d2d(&device_, queue, b, a, kSize));
    EXPECT_EQ(C_SUCCESS, at().async_memory_copy_d2h(&device_, queue, got.data(), b, kSize));
    EXPECT_EQ(C_SUCCESS, at().synchronize_stream(&device_, queue));
    ASSERT_EQ(pattern(round, kSize), got);
  }
  if (at().query_stream != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().query_stream(&device_, queue));
  }
  free(a, kSize);
  free(b, kSize);
}

/// Holds a stream back, and remembers what the callback was given.
struct Held {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  int calls = 0;
  int id = -1;
  C_Stream stream = nullptr;
  C_Status status = C_INTERNAL_ERROR;

  static void wait(C_Device device, C_Stream stream, void* user_data, C_Status* status) {
    Held& self = *static_cast<Held*>(user_data);
    std::unique_lock<std::mutex> lock(self.mutex);
    self.calls += 1;
    self.id = device != nullptr ? device->id : -2;
    self.stream = stream;
    self.status = status != nullptr ? *status : C_INTERNAL_ERROR;
    self.changed.wait(lock, [&self] { return self.open; });
  }
  void release() {
    const std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
};

TEST_P(Driven, EventsAndCallbacks) {
  NEED(create_stream);
  NEED(stream_add_callback);
  NEED(create_event);
  NEED(query_event);
  NEED(query_stream);
  NEED(stream_wait_event);
  NEED(async_memory_copy_d2h);
  C_Stream first = stream();
  C_Stream then = stream();
  C_Event point = nullptr;
  ASSERT_EQ(C_SUCCESS, at().create_event(&device_, &point));
  EXPECT_EQ(C_SUCCESS, at().query_event(&device_, point)) << "never recorded";
  void* block = alloc(kSize);
  write(block, std::vector<std::uint8_t>(kSize, 0x01));
  const std::vector<std::uint8_t> two(kSize, 0x02);
  std::vector<std::uint8_t> got(kSize, 0);
  Held held;
  EXPECT_EQ(C_SUCCESS, at().stream_add_callback(&device_, first, &Held::wait, &held));
  EXPECT_EQ(C_SUCCESS, at().async_memory_copy_h2d(&device_, first, block, two.data(), kSize));
  EXPECT_EQ(C_SUCCESS, at().record_event(&device_, first, point));
  EXPECT_EQ(C_SUCCESS, at().stream_wait_event(&device_, then, point));
  EXPECT_EQ(C_SUCCESS, at().async_memory_copy_d2h(&device_, then, got.data(), block, kSize));
  EXPECT_NE(C_SUCCESS, at().query_event(&device_, point));
  EXPECT_NE(C_SUCCESS, at().query_stream(&device_, first));
  EXPECT_NE(C_SUCCESS, at().query_stream(&device_, then));
  held.release();
  EXPECT_EQ(C_SUCCESS, at().synchronize_event(&device_, point));
  EXPECT_EQ(C_SUCCESS, at().query_event(&device_, point));
  EXPECT_EQ(C_SUCCESS, at().synchronize_stream(&device_, then));
  EXPECT_EQ(kSize, first_other(got, 0x02, 0, kSize));
  EXPECT_EQ(1, held.calls);
  EXPECT_EQ(0, held.id);
  EXPECT_EQ(first, held.stream);
  EXPECT_EQ(C_SUCCESS, held.status);
  EXPECT_EQ(C_SUCCESS, at().destroy_event(&device_, point));
  free(block, kSize);
}

TEST_P(Driven, AFreeWaitsForQueuedWork) {
  NEED(create_stream);
  NEED(stream_add_callback);
  NEED(async_memory_copy_d2h);
  if (!ours()) GTEST_SKIP() << "asked of our own plugin only";
  C_Stream queue = stream();
  void* block = alloc(kSize);
  write(block, std::vector<std::uint8_t>(kSize, 0x44));
  std::vector<std::uint8_t> got(kSize, 0);
  Held held;
  EXPECT_EQ(C_SUCCESS, at().stream_add_callback(&device_, queue, &Held::wait, &held));
  EXPECT_EQ(C_SUCCESS, at().async_memory_copy_d2h(&device_, queue, got.data(), block, kSize));
  // The free may wait for the stream itself, so the gate opens from another thread.
  std::thread opener([&held] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    held.release();
  });
  free(block, kSize);
  C_Stream other = stream();
  void* next = alloc(kSize);
  const std::vector<std::uint8_t> harm(kSize, 0xEE);
  EXPECT_EQ(C_SUCCESS, at().async_memory_copy_h2d(&device_, other, next, harm.data(), kSize));
  opener.join();
  EXPECT_EQ(C_SUCCESS, at().synchronize_device(&device_));
  EXPECT_EQ(kSize, first_other(got, 0x44, 0, kSize)) << "reused while it was still being read";
  free(next, kSize);
}

}  // namespace
}  // namespace millpond_tests
