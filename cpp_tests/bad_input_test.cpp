// What a caller can get wrong, on every device type: each gets a status and a message, changes no
// output, and loses nothing (the fixture compares the counters).
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/devices.hpp"
#include "support/pattern.hpp"

namespace millpond_tests {
namespace {

constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();

class BadInput : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_OK(millpond_alloc(device_, kSize, &block_));
    ASSERT_OK(millpond_memset(device_, block_, 0x77, kSize));
  }
  void TearDown() override {
    if (block_ != nullptr) {
      std::vector<std::uint8_t> got(kSize);
      EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_D2H, got.data(), block_, kSize));
      EXPECT_EQ(kSize, first_other(got, 0x77, 0, kSize)) << "a refused call wrote to the block";
      EXPECT_OK(millpond_free(block_)) << "a refused call freed the block";
    }
    DeviceTest::TearDown();
  }
  std::uint8_t* inside(std::size_t offset) { return static_cast<std::uint8_t*>(block_) + offset; }
  template <typename Handle>
  static Handle handle(std::uintptr_t bits) {
    return reinterpret_cast<Handle>(bits);
  }

  static constexpr std::size_t kSize = 8192;
  void* block_ = nullptr;
  int mark_ = 0;  // its address marks an output that must stay as it is
  void* out_ = &mark_;
};
MILLPOND_FOR_ALL_DEVICES(BadInput);

// They should not; a process with other work to do must not end for it.
TEST_P(BadInput, CallbacksThatThrow) {
  static std::atomic<int> thrown;
  thrown = 0;
  std::uint64_t rescue = 0;
  ASSERT_OK(millpond_device_add_oom_callback(
      device_,
      [](void*, std::uint64_t) -> bool {
        ++thrown;
        throw std::runtime_error("from an out-of-memory callback");
      },
      nullptr, &rescue));
  // What no callback can help with calls none.
  EXPECT_FAILS(MILLPOND_E_OUT_OF_MEMORY, millpond_alloc(device_, std::size_t{1} << 50, &out_));
  EXPECT_EQ(0, thrown);
  // Nothing more is taken from the device.
  ASSERT_OK(millpond_device_set_limit(device_, 1));
  std::vector<void*> all;
  void* one = nullptr;
  while (millpond_alloc(device_, kSize, &one) == C_SUCCESS) all.push_back(one);
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, millpond_last_error_code());
  EXPECT_OK(millpond_device_set_limit(device_, 0));
  for (void* p : all) EXPECT_OK(millpond_free(p));
  EXPECT_OK(millpond_device_remove_oom_callback(device_, rescue));
  EXPECT_EQ(1, thrown);

  std::uint64_t segments = 0;
  const C_Status listens = millpond_device_add_segment_callback(
      device_, [](void*, std::uint32_t, void*, std::size_t) { throw ++thrown; }, nullptr,
      &segments);
  if (listens == C_SUCCESS) {
    EXPECT_LT(1, thrown) << "the segment of the fixture's block";
    EXPECT_OK(millpond_device_remove_segment_callback(device_, segments));
  }

  const int before = thrown;
  const C_Status queued = millpond_stream_add_callback(
      device_, nullptr, [](void*, C_Status) { throw std::string(++thrown % 2 + 1, 'x'); }, nullptr);
  if (queued == C_SUCCESS) {
    EXPECT_OK(millpond_device_synchronize(device_));
    EXPECT_EQ(before + 1, thrown);
  }
  EXPECT_EQ(0, std::uncaught_exceptions());
}

TEST_P(BadInput, NullDevice) {
  bool done = false;
  C_Stream stream = nullptr;
  C_Event event = nullptr;
  millpond_pool* pool = nullptr;
  millpond_stats numbers{};
  numbers.struct_size = sizeof numbers;
  millpond_device_info about{};
  about.struct_size = sizeof about;
  const std::uint32_t bad = MILLPOND_E_INVALID_ARGUMENT;
  EXPECT_FAILS(bad, millpond_alloc(nullptr, 64, &out_));
  EXPECT_FAILS(bad, millpond_host_alloc(nullptr, 64, &out_));
  EXPECT_FAILS(bad, millpond_host_free(nullptr, block_));
  EXPECT_FAILS(bad, millpond_unified_alloc(nullptr, 64, &out_));
  EXPECT_FAILS(bad, millpond_unified_free(nullptr, block_));
  EXPECT_FAILS(bad, millpond_copy(nullptr, MILLPOND_COPY_H2D, block_, &mark_, 1));
  EXPECT_FAILS(bad, millpond_copy_async(nullptr, nullptr, MILLPOND_COPY_H2D, block_, &mark_, 1));
  EXPECT_FAILS(bad, millpond_copy_peer(nullptr, block_, device_, block_, 1));
  EXPECT_FAILS(bad, millpond_copy_peer(device_, block_, nullptr, block_, 1));
  EXPECT_FAILS(bad, millpond_copy_peer_async(nullptr, block_, device_, nullptr, block_, 1));
  EXPECT_FAILS(bad, millpond_copy_peer_async(device_, block_, nullptr, nullptr, block_, 1));
  EXPECT_FAILS(bad, millpond_memset(nullptr, block_, 0, 1));
  EXPECT_FAILS(bad, millpond_memset_async(nullptr, nullptr, block_, 0, 1));
  EXPECT_FAILS(bad, millpond_stream_create(nullptr, &stream));
  EXPECT_FAILS(bad, millpond_stream_query(nullptr, nullptr, &done));
  EXPECT_FAILS(bad, millpond_stream_synchronize(nullptr, nullptr));
  EXPECT_FAILS(bad, millpond_event_create(nullptr, &event));
  EXPECT_FAILS(bad, millpond_device_synchronize(nullptr));
  EXPECT_FAILS(bad, millpond_device_set_limit(nullptr, 0));
  EXPECT_FAILS(bad, millpond_device_get_stats(nullptr, &numbers));
  EXPECT_FAILS(bad, millpond_device_get_info(nullptr, &about));
  EXPECT_FAILS(bad, millpond_device_reset_peaks(nullptr));
  EXPECT_FAILS(bad, millpond_device_empty_cache(nullptr));
  EXPECT_FAILS(bad, millpond_device_get_default_pool(nullptr, &pool));
  EXPECT_FAILS(bad, millpond_pool_create(nullptr, nullptr, &pool));
  EXPECT_EQ(&mark_, out_);
}

TEST_P(BadInput, NullPool) {
  millpond_stats numbers{};
  numbers.struct_size = sizeof numbers;
  millpond_device* device = nullptr;
  const std::uint32_t bad = MILLPOND_E_INVALID_ARGUMENT;
  EXPECT_FAILS(bad, millpond_pool_alloc(nullptr, 64, nullptr, &out_));
  EXPECT_FAILS(bad, millpond_pool_free(nullptr, block_, nullptr));
  EXPECT_FAILS(bad, millpond_pool_empty_cache(nullptr));
  EXPECT_FAILS(bad, millpond_pool_set_limit(nullptr, 0));
  EXPECT_FAILS(bad, millpond_pool_get_stats(nullptr, &numbers));
  EXPECT_FAILS(bad, millpond_pool_reset_peaks(nullptr));
  EXPECT_FAILS(bad, millpond_pool_get_device(nullptr, &device));
  EXPECT_OK(millpond_pool_destroy(nullptr));
  EXPECT_OK(millpond_pool_release(nullptr));
  EXPECT_EQ(&mark_, out_);
}

TEST_P(BadInput, NullOutputs) {
  const std::uint32_t bad = MILLPOND_E_INVALID_ARGUMENT;
  EXPECT_FAILS(bad, millpond_alloc(device_, 64, nullptr));
  EXPECT_FAILS(bad, millpond_alloc(device_, 0, nullptr));
  EXPECT_FAILS(bad, millpond_pool_alloc(pool_, 64, nullptr, nullptr));
  EXPECT_FAILS(bad, millpond_host_alloc(device_, 64, nullptr));
  EXPECT_FAILS(bad, millpond_unified_alloc(device_, 64, nullptr));
  EXPECT_FAILS(bad, millpond_stream_create(device_, nullptr));
  EXPECT_FAILS(bad, millpond_stream_query(device_, nullptr, nullptr));
  EXPECT_FAILS(bad, millpond_event_create(device_, nullptr));
  EXPECT_FAILS(bad, millpond_device_get(type_.c_str(), 0, nullptr));
  EXPECT_FAILS(bad, millpond_device_get_count(type_.c_str(), nullptr));
  EXPECT_FAILS(bad, millpond_device_get_info(device_, nullptr));
  EXPECT_FAILS(bad, millpond_device_get_stats(device_, nullptr));
  EXPECT_FAILS(bad, millpond_device_get_default_pool(device_, nullptr));
  EXPECT_FAILS(bad, millpond_device_type_get_count(nullptr));
  EXPECT_FAILS(bad, millpond_pool_create(device_, nullptr, nullptr));
  EXPECT_FAILS(bad, millpond_pool_get_device(pool_, nullptr));
  EXPECT_FAILS(bad, millpond_pool_get_stats(pool_, nullptr));
  EXPECT_FAILS(bad, millpond_get_block(block_, nullptr));
}

TEST_P(BadInput, StructSizes) {
  const std::uint32_t bad = MILLPOND_E_INVALID_ARGUMENT;
  millpond_stats numbers{};
  EXPECT_FAILS(bad, millpond_device_get_stats(device_, &numbers));
  EXPECT_FAILS(bad, millpond_pool_get_stats(pool_, &numbers));
  millpond_device_info about{};
  EXPECT_FAILS(bad, millpond_device_get_info(device_, &about));
  millpond_block_info found{};
  EXPECT_FAILS(bad, millpond_get_block(block_, &found));
  millpond_pool_options options{};
  millpond_pool* pool = nullptr;
  EXPECT_FAILS(bad, millpond_pool_create(device_, &options, &pool));
}

TEST_P(BadInput, SizeZeroGivesNull) {
  EXPECT_OK(millpond_alloc(device_, 0, &out_));
  EXPECT_EQ(nullptr, out_);
  out_ = &mark_;
  EXPECT_OK(millpond_pool_alloc(pool_, 0, nullptr, &out_));
  EXPECT_EQ(nullptr, out_);
  EXPECT_OK(millpond_free(nullptr));
  EXPECT_OK(millpond_free_sized(nullptr, 0));
  EXPECT_OK(millpond_pool_free(pool_, nullptr, nullptr));
}

TEST_P(BadInput, SizesNearTheLargest) {
  for (std::size_t less : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{4095},
                           std::size_t{2} << 20, kHuge / 2, kHuge - kHuge / 4}) {
    EXPECT_FAILS(MILLPOND_E_OUT_OF_MEMORY, millpond_alloc(device_, kHuge - less, &out_)) << less;
    EXPECT_FAILS(MILLPOND_E_OUT_OF_MEMORY, millpond_pool_alloc(pool_, kHuge - less, nullptr, &out_))
        << less;
    EXPECT_NE(C_SUCCESS, millpond_host_alloc(device_, kHuge - less, &out_)) << less;
    EXPECT_NE(C_SUCCESS, millpond_unified_alloc(device_, kHuge - less, &out_)) << less;
  }
  EXPECT_EQ(&mark_, out_);
}

TEST_P(BadInput, ForeignPointers) {
  // Not on the heap: there a plugin's memory may have been, and a freed block has another answer.
  static std::uint8_t heap[64];
  int local = 0;
  void* const foreign[] = {heap, &local, handle<void*>(1), handle<void*>(kHuge),
                           handle<void*>(kHuge / 2)};
  millpond_block_info found{};
  found.struct_size = sizeof found;
  for (void* pointer : foreign) {
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_free(pointer));
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_free_sized(pointer, 64));
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_pool_free(pool_, pointer, nullptr));
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_record_stream(pointer, nullptr));
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_get_block(pointer, &found));
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_host_free(device_, pointer));
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_memset(device_, pointer, 0, 1));
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER,
                 millpond_copy(device_, MILLPOND_COPY_H2D, pointer, heap, 1));
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER,
                 millpond_copy(device_, MILLPOND_COPY_D2D, block_, pointer, 1));
  }
  if (can(MILLPOND_CAP_UNIFIED)) {
    EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_unified_free(device_, heap));
  }
}

TEST_P(BadInput, PointersInsideABlock) {
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_free(inside(1)));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_free(inside(4096)));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_free_sized(inside(32), kSize));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_pool_free(pool_, inside(kSize - 1), nullptr));
}

/// Both codes say "not a live block"; which one depends on whether the memory is still known.
void expect_gone(C_Status status) {
  EXPECT_EQ(C_ERROR, status);
  const std::uint32_t code = millpond_last_error_code();
  EXPECT_TRUE(code == MILLPOND_E_DOUBLE_FREE || code == MILLPOND_E_UNKNOWN_POINTER)
      << millpond_error_name(code);
}

TEST_P(BadInput, DoubleFree) {
  for (std::size_t size : {std::size_t{1}, std::size_t{5000}, std::size_t{9} << 20}) {
    void* gone = nullptr;
    ASSERT_OK(millpond_pool_alloc(pool_, size, nullptr, &gone));
    ASSERT_OK(millpond_pool_free(pool_, gone, nullptr));
    expect_gone(millpond_pool_free(pool_, gone, nullptr));
    expect_gone(millpond_free(gone));
    ASSERT_OK(millpond_alloc(device_, size, &gone));
    ASSERT_OK(millpond_free(gone));
    expect_gone(millpond_free(gone));
    expect_gone(millpond_free_sized(gone, size));
  }
  void* pinned = nullptr;
  ASSERT_OK(millpond_host_alloc(device_, 4096, &pinned));
  ASSERT_OK(millpond_host_free(device_, pinned));
  expect_gone(millpond_host_free(device_, pinned));
}

TEST_P(BadInput, UseAfterFree) {
  void* gone = nullptr;
  ASSERT_OK(millpond_alloc(device_, 100, &gone));
  ASSERT_OK(millpond_free(gone));
  expect_gone(millpond_memset(device_, gone, 0, 1));
  expect_gone(millpond_copy(device_, MILLPOND_COPY_H2D, gone, &mark_, 1));
  expect_gone(millpond_record_stream(gone, nullptr));
}

TEST_P(BadInput, AnotherPool) {
  millpond_pool* other = nullptr;
  ASSERT_OK(millpond_pool_create(device_, nullptr, &other));
  void* block = nullptr;
  ASSERT_OK(millpond_alloc(device_, 100, &block));
  EXPECT_OK(millpond_pool_free(other, block, nullptr)) << "any pool of the device will do";
  EXPECT_OK(millpond_pool_destroy(other));
  millpond_device* elsewhere = second();
  if (elsewhere == nullptr) return;
  ASSERT_OK(millpond_device_get_default_pool(elsewhere, &other));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_pool_free(other, block_, nullptr));
}

TEST_P(BadInput, CopiesPastABlocksEnd) {
  const std::uint32_t range = MILLPOND_E_OUT_OF_RANGE;
  millpond_block_info found{};
  found.struct_size = sizeof found;
  ASSERT_OK(millpond_get_block(block_, &found));
  const std::size_t past = found.size_bytes + 1;
  std::vector<std::uint8_t> heap(past);  // a plugin's min chunk may be large
  EXPECT_FAILS(range, millpond_copy(device_, MILLPOND_COPY_H2D, block_, heap.data(), past));
  EXPECT_FAILS(range, millpond_copy(device_, MILLPOND_COPY_D2H, heap.data(), block_, past));
  EXPECT_FAILS(range, millpond_copy(device_, MILLPOND_COPY_D2H, heap.data(), inside(kSize - 1),
                                    found.size_bytes));
  EXPECT_FAILS(range, millpond_copy(device_, MILLPOND_COPY_D2D, block_, block_, past));
  EXPECT_FAILS(range, millpond_copy(device_, MILLPOND_COPY_D2H, heap.data(), inside(8), kHuge));
  EXPECT_FAILS(range, millpond_copy(device_, MILLPOND_COPY_D2H, heap.data(), inside(8), kHuge - 8));
  EXPECT_FAILS(range,
               millpond_copy_async(device_, nullptr, MILLPOND_COPY_H2D, block_, heap.data(), past));
  EXPECT_FAILS(range, millpond_memset(device_, block_, 0, past));
  EXPECT_FAILS(range, millpond_memset_async(device_, nullptr, inside(1), 0, kHuge));
  millpond_device* other = second();
  if (other == nullptr) return;
  void* there = nullptr;
  ASSERT_OK(millpond_alloc(other, kSize, &there));
  EXPECT_FAILS(range, millpond_copy_peer(other, there, device_, block_, past));
  EXPECT_FAILS(range, millpond_copy_peer_async(other, there, device_, nullptr, block_, past));
  EXPECT_OK(millpond_free(there));
}

TEST_P(BadInput, BlocksOfAnotherDevice) {
  millpond_device* other = second();
  if (other == nullptr) GTEST_SKIP() << type_ << " has one device";
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_memset(other, block_, 0, 1));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER,
               millpond_copy(other, MILLPOND_COPY_H2D, block_, &mark_, 1));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_POINTER, millpond_copy_peer(other, block_, device_, block_, 1));
}

TEST_P(BadInput, CopyArguments) {
  const std::uint32_t bad = MILLPOND_E_INVALID_ARGUMENT;
  std::uint8_t byte = 0;
  EXPECT_FAILS(bad, millpond_copy(device_, 3, block_, &byte, 1));
  EXPECT_FAILS(bad, millpond_copy(device_, 0xFFFFFFFFu, block_, &byte, 1));
  EXPECT_FAILS(bad, millpond_copy_async(device_, nullptr, 7, block_, &byte, 1));
  EXPECT_FAILS(bad, millpond_copy(device_, MILLPOND_COPY_H2D, block_, nullptr, 1));
  EXPECT_FAILS(bad, millpond_copy(device_, MILLPOND_COPY_D2H, nullptr, block_, 1));
  EXPECT_NE(C_SUCCESS, millpond_copy(device_, MILLPOND_COPY_H2D, nullptr, &byte, 1));
  EXPECT_NE(C_SUCCESS, millpond_copy(device_, MILLPOND_COPY_D2H, &byte, nullptr, 1));
  EXPECT_NE(C_SUCCESS, millpond_memset(device_, nullptr, 0, 1));
}

TEST_P(BadInput, UnknownStreams) {
  if (!can(MILLPOND_CAP_STREAMS)) GTEST_SKIP() << type_ << " has no streams";
  C_Stream gone = nullptr;
  ASSERT_OK(millpond_stream_create(device_, &gone));
  ASSERT_OK(millpond_stream_destroy(device_, gone));
  C_Event event = nullptr;
  ASSERT_OK(millpond_event_create(device_, &event));
  const std::uint32_t unknown = MILLPOND_E_UNKNOWN_STREAM;
  bool done = false;
  std::uint8_t byte = 0;
  for (C_Stream bad : {gone, is_driver() ? gone : handle<C_Stream>(0x12345678)}) {
    EXPECT_FAILS(unknown, millpond_pool_alloc(pool_, 64, bad, &out_));
    EXPECT_FAILS(unknown, millpond_pool_free(pool_, block_, bad));
    EXPECT_FAILS(unknown, millpond_record_stream(block_, bad));
    EXPECT_FAILS(unknown, millpond_stream_query(device_, bad, &done));
    EXPECT_FAILS(unknown, millpond_stream_synchronize(device_, bad));
    EXPECT_FAILS(unknown, millpond_stream_wait_event(device_, bad, event));
    EXPECT_FAILS(unknown, millpond_event_record(device_, bad, event));
    EXPECT_FAILS(unknown, millpond_memset_async(device_, bad, block_, 0, 1));
    EXPECT_FAILS(unknown, millpond_copy_async(device_, bad, MILLPOND_COPY_H2D, block_, &byte, 1));
    EXPECT_FAILS(unknown, millpond_stream_destroy(device_, bad));
    EXPECT_FAILS(unknown, millpond_stream_add_callback(
                              device_, bad, [](void*, C_Status) {}, nullptr));
  }
  EXPECT_OK(millpond_stream_destroy(device_, nullptr));
  EXPECT_OK(millpond_event_destroy(device_, event));
  EXPECT_EQ(&mark_, out_);
}

TEST_P(BadInput, UnknownEvents) {
  if (!can(MILLPOND_CAP_STREAMS)) GTEST_SKIP() << type_ << " has no streams";
  C_Event gone = nullptr;
  ASSERT_OK(millpond_event_create(device_, &gone));
  ASSERT_OK(millpond_event_destroy(device_, gone));
  C_Stream queue = stream();
  bool done = false;
  const std::uint32_t unknown = MILLPOND_E_UNKNOWN_EVENT;
  for (C_Event bad : {gone, is_driver() ? gone : handle<C_Event>(0x12345678)}) {
    EXPECT_FAILS(unknown, millpond_event_query(device_, bad, &done));
    EXPECT_FAILS(unknown, millpond_event_synchronize(device_, bad));
    EXPECT_FAILS(unknown, millpond_event_record(device_, queue, bad));
    EXPECT_FAILS(unknown, millpond_stream_wait_event(device_, queue, bad));
    EXPECT_FAILS(unknown, millpond_event_destroy(device_, bad));
  }
  EXPECT_NE(C_SUCCESS, millpond_event_record(device_, queue, nullptr));
  EXPECT_NE(C_SUCCESS, millpond_event_query(device_, nullptr, &done));
  EXPECT_OK(millpond_event_destroy(device_, nullptr));
}

TEST_P(BadInput, StreamsOfAnotherDevice) {
  millpond_device* other = second();
  if (other == nullptr) GTEST_SKIP() << type_ << " has one device";
  if (!can(MILLPOND_CAP_STREAMS)) GTEST_SKIP() << type_ << " has no streams";
  C_Stream theirs = nullptr;
  ASSERT_OK(millpond_stream_create(other, &theirs));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_STREAM, millpond_pool_alloc(pool_, 64, theirs, &out_));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_STREAM, millpond_pool_free(pool_, block_, theirs));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_STREAM, millpond_stream_synchronize(device_, theirs));
  EXPECT_OK(millpond_stream_destroy(other, theirs));
}

TEST_P(BadInput, NullCallback) {
  if (!can(MILLPOND_CAP_STREAMS)) GTEST_SKIP() << type_ << " has no streams";
  EXPECT_FAILS(MILLPOND_E_INVALID_ARGUMENT,
               millpond_stream_add_callback(device_, stream(), nullptr, nullptr));
}

TEST_P(BadInput, DevicesThatDoNotExist) {
  millpond_device* device = device_;
  std::size_t count = 77;
  const std::uint32_t unknown = MILLPOND_E_UNKNOWN_DEVICE;
  for (std::int32_t ordinal : {-1, 1000, std::numeric_limits<std::int32_t>::max(),
                               std::numeric_limits<std::int32_t>::min()}) {
    EXPECT_FAILS(unknown, millpond_device_get(type_.c_str(), ordinal, &device)) << ordinal;
  }
  EXPECT_FAILS(unknown, millpond_device_get("no such type", 0, &device));
  EXPECT_FAILS(unknown, millpond_device_get("", 0, &device));
  EXPECT_FAILS(unknown, millpond_device_get_count("no such type", &count));
  EXPECT_FAILS(MILLPOND_E_INVALID_ARGUMENT, millpond_device_get(nullptr, 0, &device));
  EXPECT_FAILS(MILLPOND_E_INVALID_ARGUMENT, millpond_device_get_count(nullptr, &count));
  EXPECT_EQ(device_, device);
  EXPECT_EQ(77u, count);
  const std::string long_name(100000, 'x');
  EXPECT_FAILS(unknown, millpond_device_get(long_name.c_str(), 0, &device));
}

TEST(BadInputOfTypes, NamesAndPlugins) {
  char name[32] = "kept";
  std::size_t count = 0;
  ASSERT_OK(millpond_device_type_get_count(&count));
  EXPECT_FAILS(MILLPOND_E_OUT_OF_RANGE, millpond_device_type_get_name(count, name, sizeof name));
  EXPECT_FAILS(MILLPOND_E_INVALID_ARGUMENT, millpond_device_type_get_name(0, nullptr, 32));
  EXPECT_FAILS(MILLPOND_E_INVALID_ARGUMENT, millpond_device_type_get_name(0, name, 1));
  EXPECT_FAILS(MILLPOND_E_INVALID_ARGUMENT,
               millpond_device_type_register(nullptr, name, sizeof name));
  EXPECT_FAILS(MILLPOND_E_INVALID_ARGUMENT, millpond_device_type_load(nullptr, name, sizeof name));
  EXPECT_FAILS(MILLPOND_E_SYSTEM,
               millpond_device_type_load("/no/such/plugin.so", name, sizeof name));
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_DEVICE, millpond_device_type_unregister("no such type"));
  EXPECT_FAILS(MILLPOND_E_INVALID_ARGUMENT, millpond_device_type_unregister(nullptr));
  EXPECT_STREQ("kept", name);
}

// An InitPlugin that fills nothing, and one without the one function that matters most.
void fills_nothing(CustomRuntimeParams*) {}
C_Status no_count(std::size_t* count) {
  *count = 1;
  return C_SUCCESS;
}
void throws_at_once(CustomRuntimeParams*) { throw std::runtime_error("no plugin"); }
void fills_too_little(CustomRuntimeParams* params) {
  params->device_type = const_cast<char*>("too_little");
  params->version = {0, 1, 1};
  params->interface->get_device_count = &no_count;
}

TEST(BadInputOfTypes, PluginsThatCannotServe) {
  char name[32] = "kept";
  EXPECT_FAILS(MILLPOND_E_PLUGIN_REFUSED,
               millpond_device_type_register(&fills_nothing, name, sizeof name));
  EXPECT_FAILS(MILLPOND_E_PLUGIN_REFUSED,
               millpond_device_type_register(&throws_at_once, name, sizeof name));
  EXPECT_NE(nullptr, std::strstr(millpond_last_error_message(), "threw"))
      << millpond_last_error_message();
  EXPECT_EQ(0, std::uncaught_exceptions());
  EXPECT_FAILS(MILLPOND_E_PLUGIN_REFUSED,
               millpond_device_type_register(&fills_too_little, name, sizeof name));
  EXPECT_NE(nullptr, std::strstr(millpond_last_error_message(), "device_memory_allocate"))
      << "the message must name what is missing: " << millpond_last_error_message();
  EXPECT_STREQ("kept", name);
}

TEST(BadInputOfTypes, ErrorsHaveNames) {
  EXPECT_STREQ("MILLPOND_E_OUT_OF_MEMORY", millpond_error_name(MILLPOND_E_OUT_OF_MEMORY));
  EXPECT_STREQ("MILLPOND_E_INTERNAL", millpond_error_name(MILLPOND_E_INTERNAL));
  EXPECT_STREQ("unknown", millpond_error_name(999));
  EXPECT_NE(nullptr, millpond_last_error_message());
  EXPECT_NE('\0', millpond_version()[0]);
}

}  // namespace
}  // namespace millpond_tests
