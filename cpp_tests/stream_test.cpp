// Conformance of streams, events and stream-ordered memory, on every device type. A Gate decides
// what is pending, so that no test depends on how fast anything runs.
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "support/devices.hpp"
#include "support/pattern.hpp"

namespace millpond_tests {
namespace {

constexpr std::size_t kSize = 200000;

class Streams : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!can(MILLPOND_CAP_STREAMS)) GTEST_SKIP() << type_ << " has no streams";
  }
  /// Whether gates work here; says so when they do not.
  bool gates() const { return can(MILLPOND_CAP_CALLBACKS); }
  void* alloc_on(C_Stream on, std::size_t size) {
    void* out = nullptr;
    EXPECT_OK(millpond_pool_alloc(pool_, size, on, &out));
    return out;
  }
  /// A fill that does not wait behind a gate: a plugin's own fill may wait for the whole device.
  C_Status fill_on(C_Stream on, void* block, std::uint8_t value) {
    if (is_driver()) return millpond_memset_async(device_, on, block, value, kSize);
    const std::vector<std::uint8_t> bytes(kSize, value);  // pageable, so read on return
    return millpond_copy_async(device_, on, MILLPOND_COPY_H2D, block, bytes.data(), kSize);
  }
  C_Event event() {
    C_Event out = nullptr;
    EXPECT_OK(millpond_event_create(device_, &out));
    return out;
  }
  bool done(C_Stream of) {
    bool out = false;
    EXPECT_OK(millpond_stream_query(device_, of, &out));
    return out;
  }
  bool done(C_Event of) {
    bool out = false;
    EXPECT_OK(millpond_event_query(device_, of, &out));
    return out;
  }
};
MILLPOND_FOR_ALL_DEVICES(Streams);

/// Pinned memory of `kSize` zeros: a copy to it returns early everywhere. One to pageable memory
/// may wait for the stream, and CUDA's does.
class Landing {
 public:
  explicit Landing(millpond_device* device) : device_(device) {
    EXPECT_OK(millpond_host_alloc(device, kSize, &at_));
    if (at_ != nullptr) std::memset(at_, 0, kSize);
  }
  ~Landing() { EXPECT_OK(millpond_host_free(device_, at_)); }
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  void* at() const { return at_; }
  /// What has landed by now.
  std::vector<std::uint8_t> bytes() const {
    const auto* from = static_cast<const std::uint8_t*>(at_);
    return {from, from + kSize};
  }

 private:
  millpond_device* device_;
  void* at_ = nullptr;
};

/// Skips aloud where the device has no callbacks to hold a stream with.
#define NEED_GATES()                                                   \
  do {                                                                 \
    if (!gates()) GTEST_SKIP() << type_ << " has no stream callbacks"; \
  } while (0)

TEST_P(Streams, WorkRunsInOrder) {
  C_Stream queue = stream();
  void* a = alloc_on(queue, kSize);
  void* b = alloc_on(queue, kSize);
  const std::vector<std::uint8_t> from = pattern(1, kSize);
  std::vector<std::uint8_t> got(kSize);
  for (int round = 0; round < 20; ++round) {
    EXPECT_OK(millpond_memset_async(device_, queue, a, 0, kSize));
    EXPECT_OK(millpond_copy_async(device_, queue, MILLPOND_COPY_H2D, a, from.data(), kSize));
    EXPECT_OK(millpond_memset_async(device_, queue, b, 0xFF, kSize));
    EXPECT_OK(millpond_copy_async(device_, queue, MILLPOND_COPY_D2D, b, a, kSize));
    EXPECT_OK(millpond_copy_async(device_, queue, MILLPOND_COPY_D2H, got.data(), b, kSize));
    EXPECT_OK(millpond_stream_synchronize(device_, queue));
    ASSERT_EQ(from, got) << round;
  }
  EXPECT_TRUE(done(queue));
  EXPECT_OK(millpond_pool_free(pool_, a, queue));
  EXPECT_OK(millpond_pool_free(pool_, b, queue));
}

TEST_P(Streams, PageableSourceIsReadBeforeTheCallReturns) {
  C_Stream queue = stream();
  void* block = alloc_on(queue, kSize);
  std::vector<std::uint8_t> from = pattern(1, kSize);
  Gate gate;
  if (gates() && !is_driver()) {
    EXPECT_OK(gate.close(device_, queue));
  }
  EXPECT_OK(millpond_copy_async(device_, queue, MILLPOND_COPY_H2D, block, from.data(), kSize));
  from.assign(kSize, 0xDD);
  gate.open();
  EXPECT_OK(millpond_stream_synchronize(device_, queue));
  std::vector<std::uint8_t> got(kSize);
  EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_D2H, got.data(), block, kSize));
  EXPECT_EQ(pattern(1, kSize), got);
  EXPECT_OK(millpond_pool_free(pool_, block, queue));
}

TEST_P(Streams, CopiesReturnBeforeTheyAreDone) {
  NEED_GATES();
  C_Stream queue = stream();
  void* block = alloc_on(queue, kSize);
  EXPECT_OK(fill_on(queue, block, 0x21));
  const Landing got(device_);
  Gate gate;
  EXPECT_OK(gate.close(device_, queue));
  EXPECT_OK(millpond_copy_async(device_, queue, MILLPOND_COPY_D2H, got.at(), block, kSize));
  if (GetParam().plugin.empty()) {  // a plugin has no fill that returns early
    EXPECT_OK(millpond_memset_async(device_, queue, block, 0x22, kSize));
  }
  EXPECT_FALSE(done(queue));
  EXPECT_EQ(kSize, first_other(got.bytes(), 0, 0, kSize));
  gate.open();
  EXPECT_OK(millpond_stream_synchronize(device_, queue));
  EXPECT_TRUE(done(queue));
  EXPECT_EQ(kSize, first_other(got.bytes(), 0x21, 0, kSize));
  EXPECT_OK(millpond_pool_free(pool_, block, queue));
}

TEST_P(Streams, StreamsRunBesideEachOther) {
  NEED_GATES();
  C_Stream held = stream();
  C_Stream free_one = stream();
  Gate gate;
  EXPECT_OK(gate.close(device_, held));
  void* block = alloc_on(free_one, kSize);
  EXPECT_OK(fill_on(free_one, block, 1));
  EXPECT_OK(millpond_stream_synchronize(device_, free_one));  // hangs if one waits for the other
  EXPECT_FALSE(done(held));
  gate.open();
  EXPECT_OK(millpond_stream_synchronize(device_, held));
  EXPECT_OK(millpond_pool_free(pool_, block, free_one));
}

TEST_P(Streams, EventsOrderStreams) {
  NEED_GATES();
  C_Stream first = stream();
  C_Stream then = stream();
  C_Event point = event();
  EXPECT_TRUE(done(point)) << "an event that never recorded";
  EXPECT_OK(millpond_event_synchronize(device_, point));
  void* block = alloc_on(first, kSize);
  EXPECT_OK(fill_on(first, block, 0x01));
  Gate gate;
  EXPECT_OK(gate.close(device_, first));
  EXPECT_OK(fill_on(first, block, 0x02));
  EXPECT_OK(millpond_event_record(device_, first, point));
  EXPECT_OK(millpond_stream_wait_event(device_, then, point));
  const Landing got(device_);
  EXPECT_OK(millpond_copy_async(device_, then, MILLPOND_COPY_D2H, got.at(), block, kSize));
  EXPECT_FALSE(done(point));
  EXPECT_FALSE(done(then));
  gate.open();
  EXPECT_OK(millpond_event_synchronize(device_, point));
  EXPECT_TRUE(done(point));
  EXPECT_OK(millpond_stream_synchronize(device_, then));
  EXPECT_EQ(kSize, first_other(got.bytes(), 0x02, 0, kSize));
  EXPECT_OK(millpond_event_destroy(device_, point));
  EXPECT_OK(millpond_pool_free(pool_, block, then));
}

TEST_P(Streams, AnEventStandsForItsLastRecordOnly) {
  NEED_GATES();
  C_Stream queue = stream();
  C_Event point = event();
  EXPECT_OK(millpond_event_record(device_, queue, point));
  Gate gate;
  EXPECT_OK(gate.close(device_, queue));
  EXPECT_OK(millpond_event_synchronize(device_, point));  // hangs if it waits for the gate
  EXPECT_OK(millpond_event_record(device_, queue, point));
  EXPECT_FALSE(done(point));
  gate.open();
  EXPECT_OK(millpond_event_synchronize(device_, point));
  EXPECT_OK(millpond_event_destroy(device_, point));
}

TEST_P(Streams, QueuedWaitsOutliveTheirEvent) {
  NEED_GATES();
  C_Stream first = stream();
  C_Stream then = stream();
  C_Event point = event();
  Gate gate;
  EXPECT_OK(gate.close(device_, first));
  EXPECT_OK(millpond_event_record(device_, first, point));
  EXPECT_OK(millpond_stream_wait_event(device_, then, point));
  EXPECT_OK(millpond_event_destroy(device_, point));
  EXPECT_FALSE(done(then));
  gate.open();
  EXPECT_OK(millpond_stream_synchronize(device_, then));
}

struct Calls {
  std::atomic<int> count{0};
  std::vector<int> order;
  int number = 0;
};
struct Call {
  Calls* calls;
  int number;
  C_Status status;
};
void note(void* user_data, C_Status status) {
  Call* call = static_cast<Call*>(user_data);
  call->status = status;
  call->calls->order.push_back(call->number);
  call->calls->count.fetch_add(1);
}

TEST_P(Streams, CallbacksRunOnceAndInOrder) {
  NEED_GATES();
  C_Stream queue = stream();
  Calls calls;
  std::vector<Call> entries;
  for (int i = 0; i < 50; ++i) entries.push_back({&calls, i, C_ERROR});
  for (Call& entry : entries) {
    EXPECT_OK(millpond_stream_add_callback(device_, queue, &note, &entry));
  }
  EXPECT_OK(millpond_stream_synchronize(device_, queue));
  ASSERT_EQ(50, calls.count.load());
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(i, calls.order[static_cast<std::size_t>(i)]);
    EXPECT_EQ(C_SUCCESS, entries[static_cast<std::size_t>(i)].status);
  }
}

TEST_P(Streams, DestroyedStreamsFinishTheirWork) {
  NEED_GATES();
  C_Stream queue = nullptr;
  ASSERT_OK(millpond_stream_create(device_, &queue));
  void* block = alloc_on(queue, kSize);
  Gate gate;
  Calls calls;
  Call entry{&calls, 0, C_ERROR};
  EXPECT_OK(gate.close(device_, queue));
  EXPECT_OK(fill_on(queue, block, 0x33));
  EXPECT_OK(millpond_stream_add_callback(device_, queue, &note, &entry));
  // Ending a stream may wait for its work, so the gate opens from another thread.
  std::thread opener([&gate] { gate.open(); });
  EXPECT_OK(millpond_stream_destroy(device_, queue));
  opener.join();
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_EQ(1, calls.count.load());
  std::vector<std::uint8_t> got(kSize);
  EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_D2H, got.data(), block, kSize));
  EXPECT_EQ(kSize, first_other(got, 0x33, 0, kSize)) << "a block outlives its stream";
  EXPECT_OK(millpond_free(block));
}

TEST_P(Streams, DeviceSynchronizeWaitsForEveryStream) {
  NEED_GATES();
  C_Stream queues[3] = {stream(), stream(), stream()};
  Calls calls[3];
  Call entries[3] = {{&calls[0], 0, C_ERROR}, {&calls[1], 0, C_ERROR}, {&calls[2], 0, C_ERROR}};
  Gate gate;
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(gate.close(device_, queues[i]));
    EXPECT_OK(millpond_stream_add_callback(device_, queues[i], &note, &entries[i]));
  }
  std::thread opener([&gate] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  EXPECT_OK(millpond_device_synchronize(device_));
  for (const Calls& call : calls) EXPECT_EQ(1, call.count.load());
  opener.join();
}

// In the next three tests `reader` still reads a block behind a gate when it is freed. Whoever gets
// the memory next overwrites it on its own stream; the reader must not see that.
class Reuse : public Streams {
 protected:
  void SetUp() override {
    Streams::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    NEED_GATES();
    writer_ = stream();
    reader_ = stream();
    got_ = std::make_unique<Landing>(device_);
  }
  void TearDown() override {
    got_.reset();
    Streams::TearDown();
  }
  void queue_read(void* block) {
    EXPECT_OK(millpond_stream_synchronize(device_, writer_));
    EXPECT_OK(gate_.close(device_, reader_));
    EXPECT_OK(millpond_copy_async(device_, reader_, MILLPOND_COPY_D2H, got_->at(), block, kSize));
  }
  void overwrite_on(C_Stream on) {
    for (int i = 0; i < 8; ++i) {
      blocks_.push_back(alloc_on(on, kSize));
      EXPECT_OK(fill_on(on, blocks_.back(), 0xEE));
    }
    // Long enough for an overwrite that does not wait; a correct one cannot come before the gate.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  void expect_unharmed(C_Stream on) {
    gate_.open();
    EXPECT_OK(millpond_device_synchronize(device_));
    EXPECT_EQ(kSize, first_other(got_->bytes(), 0x44, 0, kSize))
        << "reused while it was still being read";
    for (void* block : blocks_) EXPECT_OK(millpond_pool_free(pool_, block, on));
  }

  C_Stream writer_ = nullptr;
  C_Stream reader_ = nullptr;
  std::unique_ptr<Landing> got_;
  std::vector<void*> blocks_;
  Gate gate_;
};
MILLPOND_FOR_ALL_DEVICES(Reuse);

TEST_P(Reuse, RecordedStreamsHoldABlockBack) {
  void* block = alloc_on(writer_, kSize);
  EXPECT_OK(fill_on(writer_, block, 0x44));
  queue_read(block);
  EXPECT_OK(millpond_record_stream(block, reader_));
  EXPECT_OK(millpond_pool_free(pool_, block, writer_));
  overwrite_on(writer_);
  expect_unharmed(writer_);
}

TEST_P(Reuse, AnotherStreamWaitsForTheStreamOfTheFree) {
  void* block = alloc_on(reader_, kSize);
  EXPECT_OK(fill_on(reader_, block, 0x44));
  queue_read(block);
  EXPECT_OK(millpond_pool_free(pool_, block, reader_));
  overwrite_on(writer_);
  expect_unharmed(writer_);
}

TEST_P(Reuse, AFreeOnAnotherStreamHonoursBoth) {
  void* block = alloc_on(reader_, kSize);
  EXPECT_OK(fill_on(reader_, block, 0x44));
  queue_read(block);
  EXPECT_OK(millpond_pool_free(pool_, block, writer_));
  overwrite_on(writer_);
  expect_unharmed(writer_);
}

TEST_P(Reuse, AnUnorderedFreeWaitsForEveryStream) {
  void* block = nullptr;
  ASSERT_OK(millpond_alloc(device_, kSize, &block));
  EXPECT_OK(millpond_memset(device_, block, 0x44, kSize));
  queue_read(block);
  EXPECT_OK(millpond_free(block));
  overwrite_on(writer_);
  expect_unharmed(writer_);
}

TEST_P(Reuse, OnItsOwnStreamMemoryComesBackAtOnce) {
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_OK(millpond_device_empty_cache(device_));
  EXPECT_OK(gate_.close(device_, reader_));
  void* block = alloc_on(reader_, 3 << 20);
  EXPECT_OK(millpond_pool_free(pool_, block, reader_));
  const std::uint64_t reserved = stats().reserved_bytes.current;
  for (int i = 0; i < 20; ++i) {
    block = alloc_on(reader_, 3 << 20);
    EXPECT_OK(millpond_pool_free(pool_, block, reader_));
  }
  EXPECT_EQ(reserved, stats().reserved_bytes.current) << "the pending stream kept its own memory";
  gate_.open();
}

}  // namespace
}  // namespace millpond_tests
