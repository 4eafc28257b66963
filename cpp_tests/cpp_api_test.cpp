// The C++ face: owners, errors, callbacks.
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"
#include "support/pattern.hpp"

namespace millpond_tests {
namespace {

using millpond::Buffer;
using millpond::CopyKind;
using millpond::Device;
using millpond::Error;
using millpond::Event;
using millpond::PinnedBuffer;
using millpond::Pool;
using millpond::PoolView;
using millpond::Stream;
using millpond::StreamView;

template <typename T>
constexpr bool kMovesOnly =
    std::is_nothrow_move_constructible<T>::value&& std::is_nothrow_move_assignable<T>::value &&
    !std::is_copy_constructible<T>::value && !std::is_copy_assignable<T>::value;
static_assert(kMovesOnly<Stream> && kMovesOnly<Event> && kMovesOnly<Pool> && kMovesOnly<Buffer> &&
                  kMovesOnly<PinnedBuffer> && kMovesOnly<millpond::UnifiedBuffer> &&
                  kMovesOnly<millpond::OomCallback> && kMovesOnly<millpond::OomHandler>,
              "owners move and do not copy");
static_assert(std::is_trivially_copyable<Device>::value &&
                  std::is_nothrow_destructible<Pool>::value,
              "a device handle is a value");

class Cpp : public ::testing::Test {
 protected:
  void SetUp() override { before_ = device_.stats(); }
  void TearDown() override {
    device_.synchronize();
    EXPECT_EQ(before_.blocks.current, device_.stats().blocks.current);
    EXPECT_EQ(before_.allocated_bytes.current, device_.stats().allocated_bytes.current);
  }
  std::uint64_t blocks() const { return device_.stats().blocks.current - before_.blocks.current; }

  Device device_{"host", 0};
  millpond_stats before_{};
};

/// Runs `call` and gives the code of the Error it throws; 0 when it throws none.
template <typename Call>
std::uint32_t code_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_NE(C_SUCCESS, error.status());
    EXPECT_STRNE("", error.what());
    EXPECT_EQ(status_of(error.code()), error.status());
    return error.code();
  }
  return MILLPOND_OK;
}

TEST_F(Cpp, ErrorsCarryCodeStatusAndMessage) {
  EXPECT_EQ(MILLPOND_E_UNKNOWN_DEVICE, code_of([] { Device("host", 99); }));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_DEVICE, code_of([] { Device("nowhere"); }));
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of([] { Device().synchronize(); }));
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of([] { (void)PoolView().allocate(1); }));
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY,
            code_of([this] { (void)device_.allocate(static_cast<std::size_t>(-1)); }));
  try {
    Device("nowhere");
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(nullptr, std::strstr(error.what(), "nowhere")) << error.what();
    EXPECT_STREQ("MILLPOND_E_UNKNOWN_DEVICE", static_cast<const Error&>(error).code_name());
  }
}

TEST_F(Cpp, DevicesAreValues) {
  EXPECT_EQ(device_, Device(std::string("host"), 0));
  EXPECT_NE(device_, Device("host", 1));
  EXPECT_FALSE(Device());
  EXPECT_EQ("host", device_.type());
  EXPECT_EQ(1, Device("host", 1).ordinal());
  EXPECT_TRUE(device_.can(MILLPOND_CAP_HOST_ACCESS | MILLPOND_CAP_STREAMS));
  EXPECT_TRUE(millpond::DeviceTypes::contains("cpu"));
  EXPECT_FALSE(millpond::DeviceTypes::contains("nowhere"));
  EXPECT_EQ(2u, millpond::DeviceTypes::device_count("host"));
}

TEST_F(Cpp, BuffersFreeOnceWhateverMovesThem) {
  {
    Stream stream(device_);
    Buffer a = device_.default_pool().allocate(1000, stream);
    EXPECT_EQ(1u, blocks());
    EXPECT_EQ(1000u, a.size());
    EXPECT_EQ(stream.get(), a.stream());
    void* const address = a.data();
    Buffer b(std::move(a));
    EXPECT_FALSE(a);  // NOLINT: moved-from is empty, and says so
    EXPECT_EQ(nullptr, a.data());
    EXPECT_EQ(0u, a.size());
    EXPECT_EQ(address, b.data());
    Buffer c = device_.allocate(500);
    EXPECT_EQ(2u, blocks());
    c = std::move(b);
    EXPECT_EQ(1u, blocks()) << "assigning freed the old block";
    EXPECT_EQ(address, c.data());
    Buffer& same = c;
    c = std::move(same);
    EXPECT_EQ(address, c.data()) << "moving to itself keeps the block";
    c.reset();
    EXPECT_EQ(0u, blocks());
    c.reset();
    EXPECT_FALSE(device_.allocate(0));
  }
  EXPECT_EQ(0u, blocks());
}

TEST_F(Cpp, ReleasedBuffersAreTheCallers) {
  Buffer buffer = device_.allocate(64);
  void* const block = buffer.release();
  EXPECT_FALSE(buffer);
  EXPECT_EQ(1u, blocks());
  EXPECT_OK(millpond_free(block));
}

TEST_F(Cpp, BuffersOutliveTheirStream) {
  Buffer buffer;
  {
    Stream stream(device_);
    buffer = device_.default_pool().allocate(1000, stream);
  }
  EXPECT_EQ(1u, blocks());
  buffer.reset();
  EXPECT_EQ(0u, blocks());
}

TEST_F(Cpp, BuffersCanBeFreedOnAnotherStream) {
  Stream first(device_), then(device_);
  Buffer buffer = device_.default_pool().allocate(1000, first);
  buffer.record_stream(then);
  buffer.set_stream(then);
  EXPECT_EQ(then.get(), buffer.stream());
  Buffer unordered = device_.allocate(10);
  unordered.set_stream(then);
  EXPECT_EQ(nullptr, unordered.stream());
}

TEST_F(Cpp, PoolsRefuseToGoWithLiveBlocks) {
  Pool pool(device_, 64u << 20, "test");
  EXPECT_EQ(device_, pool.device());
  Buffer buffer = pool.allocate(5000);
  EXPECT_EQ(5000u, pool.stats().requested_bytes.current);
  EXPECT_EQ(64u << 20, pool.stats().limit_bytes);
  EXPECT_EQ(MILLPOND_E_BUSY, code_of([&pool] { pool.destroy(); }));
  EXPECT_TRUE(pool);
  buffer.reset();
  Pool moved = std::move(pool);
  EXPECT_FALSE(pool);  // NOLINT: moved-from is empty, and says so
  EXPECT_EQ(C_SUCCESS, moved.destroy());
  EXPECT_FALSE(moved);
}

TEST_F(Cpp, BuffersMayOutliveTheirPool) {
  Stream stream(device_);
  Buffer buffer;
  PoolView view;
  {
    Pool pool(device_, 64u << 20, "short-lived");
    buffer = pool.allocate(5000, stream);
    view = pool;
  }
  ASSERT_TRUE(buffer);
  EXPECT_EQ(1u, view.stats().blocks.current);
  EXPECT_EQ(MILLPOND_E_NOT_PERMITTED, code_of([&] { (void)view.allocate(10, stream); }));
  EXPECT_EQ(MILLPOND_E_NOT_PERMITTED, code_of([&] { millpond::PoolScope scope(view); }));
  buffer.reset();
  EXPECT_EQ(0u, view.stats().blocks.current);
  EXPECT_EQ(C_SUCCESS, device_.empty_cache());
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of([&] { (void)view.stats(); }));
  {
    Pool empty(device_);
    view = empty;
  }
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of([&] { (void)view.stats(); }));
}

TEST_F(Cpp, StreamsEventsAndCopies) {
  Stream stream(device_), other(device_);
  Event point(device_);
  EXPECT_TRUE(point.done());
  const std::vector<std::uint8_t> bytes = pattern(1, 4096);
  Buffer a = device_.default_pool().allocate(4096, stream);
  PinnedBuffer back(device_, 4096);
  stream.memset(a.data(), 0, 4096);
  stream.copy(CopyKind::kHostToDevice, a.data(), bytes.data(), 4096);
  stream.record(point);
  other.wait(point);
  other.copy(CopyKind::kDeviceToHost, back.data(), a.data(), 4096);
  other.synchronize();
  EXPECT_TRUE(point.done());
  EXPECT_TRUE(other.done());
  EXPECT_EQ(0, std::memcmp(bytes.data(), back.data(), 4096));
  Device second("host", 1);
  Buffer there = second.allocate(4096);
  stream.copy_to(second, there.data(), a.data(), 4096);
  stream.synchronize();
  std::vector<std::uint8_t> got(4096);
  second.copy(CopyKind::kDeviceToHost, got.data(), there.data(), 4096);
  EXPECT_EQ(bytes, got);
  second.memset(there.data(), 0, 4096);
  second.copy_from(device_, there.data(), a.data(), 4096);
  second.copy(CopyKind::kDeviceToHost, got.data(), there.data(), 4096);
  EXPECT_EQ(bytes, got);
}

TEST_F(Cpp, PoolsServeStreamsOfTheirOwnDevice) {
  const Device second("host", 1);
  const PoolView pool = device_.default_pool();
  EXPECT_EQ(MILLPOND_E_UNKNOWN_STREAM,
            code_of([&] { (void)pool.allocate(100, second.default_stream()); }));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_STREAM,
            code_of([&] { (void)pool.allocate_zeroed(100, second.default_stream()); }));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_STREAM,
            code_of([&] { (void)pool.allocate_batch({100}, second.default_stream()); }));
  const Stream theirs(second);
  EXPECT_EQ(MILLPOND_E_UNKNOWN_STREAM, code_of([&] { (void)pool.allocate(100, theirs); }));
  EXPECT_TRUE(pool.allocate(100, device_.default_stream()));
  EXPECT_TRUE(pool.allocate(100));
  EXPECT_TRUE(second.default_pool().allocate(100, theirs));
}

TEST_F(Cpp, MovedStreamsEndOnce) {
  Stream stream(device_);
  const C_Stream raw = stream.get();
  Stream moved(std::move(stream));
  EXPECT_FALSE(stream);  // NOLINT: moved-from is empty, and says so
  EXPECT_EQ(raw, moved.get());
  moved = Stream(device_);
  bool done = false;
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_STREAM, millpond_stream_query(device_.get(), raw, &done));
  Event event(device_);
  const C_Event first = event.get();
  event = Event(device_);
  EXPECT_FAILS(MILLPOND_E_UNKNOWN_EVENT, millpond_event_query(device_.get(), first, &done));
}

TEST_F(Cpp, CallbacksAreFreedAfterTheyRan) {
  Stream stream(device_);
  auto alive = std::make_shared<int>(0);
  for (int i = 0; i < 10; ++i) {
    stream.add_callback([alive](C_Status status) { *alive += status == C_SUCCESS ? 1 : 100; });
  }
  stream.synchronize();
  // The library may drop the last function object just after the stream is done.
  device_.synchronize();
  EXPECT_EQ(10, *alive);
  for (int i = 0; i < 1000 && alive.use_count() > 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(1, alive.use_count());
}

TEST_F(Cpp, ExceptionsStayOutOfTheLibrary) {
  Stream stream(device_);
  std::atomic<bool> after{false};
  stream.add_callback([](C_Status) { throw std::runtime_error("from a callback"); });
  stream.add_callback([](C_Status) { throw 7; });
  stream.add_callback([&after](C_Status) { after = true; });
  stream.synchronize();
  EXPECT_TRUE(after.load());
}

TEST_F(Cpp, RefusedCallbacksAreNotKept) {
  auto alive = std::make_shared<int>(0);
  const StreamView nowhere(device_, reinterpret_cast<C_Stream>(0x1230));
  EXPECT_EQ(MILLPOND_E_UNKNOWN_STREAM,
            code_of([&] { nowhere.add_callback([alive](C_Status) { ++*alive; }); }));
  EXPECT_EQ(1, alive.use_count());
  EXPECT_EQ(0, *alive);
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT,
            code_of([this] { device_.default_stream().add_callback(nullptr); }));
}

TEST_F(Cpp, OutOfMemoryCallbacksFreeWhatTheyCanSpare) {
  device_.empty_cache();
  device_.set_limit(64u << 20);
  Buffer cached = device_.allocate(40u << 20);
  std::vector<std::uint64_t> asked;
  millpond::OomCallback callback(device_, [&](std::uint64_t size_bytes) {
    asked.push_back(size_bytes);
    if (!cached) throw std::runtime_error("nothing to spare");
    cached = Buffer();
    return true;
  });
  EXPECT_TRUE(callback);
  Buffer block = device_.allocate(36u << 20);
  EXPECT_TRUE(block);
  EXPECT_FALSE(cached);
  const auto too_much = [&] { (void)device_.allocate(48u << 20); };
  millpond::OomCallback moved = std::move(callback);
  EXPECT_EQ(std::uint32_t{MILLPOND_E_OUT_OF_MEMORY}, code_of(too_much));
  EXPECT_EQ((std::vector<std::uint64_t>{36u << 20, 48u << 20}), asked);
  moved = millpond::OomCallback();
  EXPECT_EQ(std::uint32_t{MILLPOND_E_OUT_OF_MEMORY}, code_of(too_much));
  EXPECT_EQ(2u, asked.size());
  EXPECT_EQ(std::uint32_t{MILLPOND_E_INVALID_ARGUMENT},
            code_of([&] { millpond::OomCallback none(device_, nullptr); }));
  device_.set_limit(0);
}

TEST_F(Cpp, WhatIsThrownSaysWhoHoldsTheMemory) {
  device_.empty_cache();
  device_.set_limit(64u << 20);
  {
    const millpond::Pool weights(device_, 0, "weights");
    const Buffer held = weights.allocate(48u << 20, device_.default_stream());
    std::vector<std::uint32_t> reasons;
    millpond::OomHandler handler(device_, [&](const millpond_oom_report& report) {
      reasons.push_back(report.reason);
      return false;
    });
    try {
      (void)device_.allocate(36u << 20);
      ADD_FAILURE() << "there is no room";
    } catch (const millpond::Error& e) {
      const millpond_oom_report* report = e.oom_report();
      ASSERT_NE(nullptr, report);
      EXPECT_EQ(std::uint32_t{MILLPOND_OOM_DEVICE_LIMIT}, report->reason);
      EXPECT_EQ(36u << 20, report->requested_bytes);
      EXPECT_STREQ("pool 'weights'", report->pools[0].label);
      EXPECT_NE(std::string::npos,
                std::string(e.what()).find("biggest holder: pool 'weights', 48.0 MiB"));
      EXPECT_NE(std::string::npos, millpond::to_string(*report).find("advice: "));
      EXPECT_EQ(report->requested_bytes, device_.last_oom().requested_bytes);
    }
    EXPECT_EQ((std::vector<std::uint32_t>{MILLPOND_OOM_DEVICE_LIMIT}), reasons);
    // Another failure has no report, and the last one stays.
    try {
      (void)millpond::Device("nonesuch", 0);
    } catch (const millpond::Error& e) {
      EXPECT_EQ(nullptr, e.oom_report());
    }
    EXPECT_EQ(36u << 20, device_.last_oom().requested_bytes);
    millpond::MemoryResource resource(device_);
    try {
      (void)resource.allocate(36u << 20);
      ADD_FAILURE() << "there is no room";
    } catch (const millpond::BadAlloc& e) {
      ASSERT_NE(nullptr, e.oom_report());
      EXPECT_STREQ("the default pool", e.oom_report()->pool_label);
    }
  }
  device_.set_limit(0);
}

TEST_F(Cpp, ArraysOfElements) {
  auto array = millpond::make_device_array<float>(device_, 1000);
  EXPECT_EQ(1u, blocks());
  array[999] = 1.5f;  // the host device is visible to the host
  array.reset();
  EXPECT_EQ(0u, blocks());
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of([this] {
              (void)millpond::make_device_array<double>(device_, static_cast<std::size_t>(-1) / 4);
            }));
}

TEST_F(Cpp, BlocksComeZeroedAndInBatches) {
  const PoolView pool = device_.default_pool();
  Stream stream(device_);
  const Buffer zeroed = pool.allocate_zeroed(1000, stream);
  stream.synchronize();
  EXPECT_EQ(std::vector<std::uint8_t>(1000),
            std::vector<std::uint8_t>(zeroed.as<std::uint8_t>(),
                                      zeroed.as<std::uint8_t>() + zeroed.size()));
  const std::vector<Buffer> batch = pool.allocate_batch({100, 0, 3u << 20}, stream);
  ASSERT_EQ(3u, batch.size());
  EXPECT_EQ(100u, batch[0].size());
  EXPECT_FALSE(batch[1]);
  EXPECT_EQ(3u << 20, batch[2].size());
  EXPECT_EQ(3u, blocks());
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of([&] {
              (void)pool.allocate_batch({100, static_cast<std::size_t>(-1)}, stream);
            }));
  EXPECT_EQ(3u, blocks());
}

TEST_F(Cpp, RegistrationsMoveAndEnd) {
  using millpond::HostRegistration;
  static_assert(kMovesOnly<HostRegistration>, "an owner");
  std::vector<std::uint8_t> own(5000);
  HostRegistration a(device_, own.data(), own.size());
  HostRegistration b(std::move(a));
  EXPECT_FALSE(a);  // NOLINT: moved-from is empty, and says so
  const auto again = [&] { HostRegistration(device_, own.data() + 4000, 10); };
  EXPECT_EQ(MILLPOND_E_BUSY, code_of(again));
  EXPECT_EQ(C_SUCCESS, b.end());
  EXPECT_FALSE(b);
  EXPECT_EQ(0u, code_of(again));
}

TEST_F(Cpp, PinnedBuffersMoveAndFree) {
  PinnedBuffer a(device_, 5000);
  std::memset(a.data(), 1, a.size());
  PinnedBuffer b(std::move(a));
  EXPECT_FALSE(a);  // NOLINT: moved-from is empty, and says so
  EXPECT_EQ(5000u, b.size());
  b = PinnedBuffer(device_, 10);
  EXPECT_EQ(10u, b.size());
  EXPECT_FALSE(PinnedBuffer(device_, 0));
}

TEST_F(Cpp, PinnedBuffersMayEndBeforeTheirCopies) {
  const std::size_t size = std::size_t{1} << 20;
  Buffer block = device_.allocate(size);
  Stream stream(device_);
  std::atomic<bool> open{false};
  stream.add_callback([&open](C_Status) {
    while (!open) std::this_thread::yield();
  });
  const void* first = nullptr;
  {
    PinnedBuffer source(device_, size);
    first = source.data();
    std::memset(source.data(), 5, size);
    stream.copy(millpond::CopyKind::kHostToDevice, block.data(), source.data(), size);
    millpond::record_host_stream(source.as<char>() + 1, stream);
  }
  EXPECT_LE(size, device_.host_stats().pending_bytes);
  PinnedBuffer other(device_, size);
  EXPECT_NE(first, other.data());
  std::memset(other.data(), 6, size);
  open = true;
  stream.synchronize();
  EXPECT_EQ(5, block.as<char>()[size - 1]);  // the host device is visible to the host
  EXPECT_EQ(MILLPOND_E_UNKNOWN_POINTER,
            code_of([&] { millpond::record_host_stream(&size, stream); }));
  other = PinnedBuffer();
  device_.empty_host_cache();
  EXPECT_EQ(0u, device_.host_stats().pending_bytes);
}

TEST_F(Cpp, StatisticsAreToldByClassNameStreamAndAsText) {
  Pool pool(device_);
  Stream stream(device_);
  const Buffer small = pool.allocate(1000, stream);
  const Buffer large = pool.allocate(std::size_t{3} << 20, stream);
  const millpond_memory_stats told = pool.memory_stats();
  EXPECT_EQ(1u, told.allocation.small_pool.current);
  EXPECT_EQ(1000u, told.requested_bytes.small_pool.current);
  EXPECT_EQ(std::uint64_t{3} << 20, told.requested_bytes.large_pool.peak);
  EXPECT_EQ(told.allocated_bytes.all.current,
            millpond::statistic(told, "allocated_bytes.all.current"));
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT,
            code_of([&] { (void)millpond::statistic(told, "no.such.name"); }));
  EXPECT_LE(2u, device_.memory_stats().allocation.all.current);
  ASSERT_EQ(1u, pool.stream_stats().size());
  EXPECT_EQ(2u, pool.stream_stats()[0].block_count);
  EXPECT_EQ(stream.get(), pool.stream_stats()[0].stream);
  EXPECT_EQ(2u, pool.stream_stats()[0].peak_count);
  EXPECT_FALSE(device_.stream_stats().empty());
  pool.reset_accumulated();
  EXPECT_EQ(0u, pool.memory_stats().allocation.all.allocated);
  EXPECT_EQ(2u, pool.memory_stats().allocation.all.current);
  const std::string json = device_.stats_text();
  EXPECT_EQ('{', json.front());
  EXPECT_EQ('}', json.back());
  const std::string page = device_.stats_text(MILLPOND_STATS_PROMETHEUS);
  EXPECT_NE(std::string::npos, page.find("# TYPE millpond_allocated_bytes gauge\n"));
  const PinnedBuffer pinned(device_, 100);
  const millpond_host_memory_stats host = device_.host_memory_stats();
  EXPECT_LE(1u, millpond::statistic(host, "active_requests.current"));
}

TEST_F(Cpp, LatenciesAreToldWhileTheyAreOn) {
  EXPECT_EQ(0u, device_.latency(MILLPOND_LATENCY_ALLOC).count);
  EXPECT_EQ(C_SUCCESS, device_.set_options("latency_histograms:true"));
  {
    Pool pool(device_);
    Stream stream(device_);
    const Buffer buffer = pool.allocate(1000, stream);
  }
  device_.set_options("latency_histograms:false");
  const millpond_latency told = device_.latency(MILLPOND_LATENCY_ALLOC);
  EXPECT_EQ(1u, told.count);
  EXPECT_EQ(told.max_ns, millpond::quantile(told, 1));
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of([&] { (void)millpond::quantile(told, 2); }));
  device_.reset_latencies();
  EXPECT_EQ(0u, device_.latency(MILLPOND_LATENCY_ALLOC).count);
}

}  // namespace
TEST(CppOwners, AnEmptyStreamIsNotTheDefaultOne) {
  const Device device("host", 0);
  const PoolView pool = device.default_pool();
  Stream empty, moved(device);
  const Stream taken(std::move(moved));
  Stream assigned(device);
  Stream from(device);
  assigned = std::move(from);
  for (const Stream* stream : {&empty, &moved, &from}) {
    EXPECT_FALSE(*stream);
    EXPECT_NE(nullptr, stream->get());
    EXPECT_THROW((void)pool.allocate(100, *stream), Error);
    EXPECT_EQ(static_cast<std::uint32_t>(MILLPOND_E_UNKNOWN_STREAM), millpond_last_error_code());
    EXPECT_THROW(stream->synchronize(), Error);
    const StreamView view = *stream;  // also without the owner around it
    EXPECT_THROW((void)pool.allocate(100, view), Error);
  }
  EXPECT_TRUE(taken && assigned);
  EXPECT_TRUE(pool.allocate(100, StreamView()));
}

TEST(CppOwners, ManyBlocksAreFreedInOneCall) {
  const Device device("host", 0);
  const PoolView pool = device.default_pool();
  const Stream stream(device);
  const std::uint64_t before = device.stats().blocks.current;
  std::vector<Buffer> blocks = pool.allocate_batch({100, 0, 5000, 3u << 20}, stream);
  blocks[0].reset();  // each may be freed by itself
  pool.free_batch(blocks, stream);
  for (const Buffer& block : blocks) EXPECT_FALSE(block);
  EXPECT_EQ(before, device.stats().blocks.current);
  // What cannot be freed stays with its owner, and what comes after it, too.
  blocks = pool.allocate_batch({100, 200, 300}, stream);
  void* const gone = blocks[1].data();
  ASSERT_EQ(C_SUCCESS, millpond_pool_free(pool.get(), gone, stream.get()));
  EXPECT_THROW(pool.free_batch(blocks, stream), Error);
  EXPECT_FALSE(blocks[0]);
  EXPECT_TRUE(blocks[1] && blocks[2]);
  EXPECT_EQ(gone, blocks[1].release());
}

TEST(CppOwners, TheUsableSizeIsThereForTheAsking) {
  const Device device("host", 0);
  Buffer block = device.allocate(100);
  const std::size_t usable = block.usable_size();
  EXPECT_GE(usable, 512u);
  EXPECT_EQ(usable, millpond::usable_size(block.data()));
  EXPECT_TRUE(block.try_expand(usable));
  EXPECT_THROW((void)Buffer().usable_size(), Error);
  void* const raw = block.release();
  EXPECT_THROW(millpond::free_sized(raw, usable - 1), Error);
  EXPECT_EQ(C_SUCCESS, millpond::free_sized(raw, usable));
}

TEST(CppOwners, SmallNumbersAndNames) {
  EXPECT_EQ(static_cast<std::uint32_t>(MILLPOND_VERSION_NUMBER), millpond::version_number());
  const Device device("host", 0);
  const millpond::StreamPriorities range = device.stream_priorities();
  EXPECT_GE(range.least, range.greatest);
  const std::uint32_t tag = millpond::tag_number("cpp_api_test");
  EXPECT_STREQ("cpp_api_test", millpond::tag_name(tag));
  EXPECT_STREQ("", millpond::tag_name(0));
  EXPECT_NE(nullptr, millpond::statistic_name(0));
  EXPECT_EQ(nullptr, millpond::statistic_name(100000));
  EXPECT_NE(nullptr, millpond::host_statistic_name(0));
  EXPECT_STREQ("alloc", millpond::latency_name(MILLPOND_LATENCY_ALLOC));
  EXPECT_LT(millpond::latency_bucket_start(1), millpond::latency_bucket_start(2));
  { const millpond::PinnedBuffer pinned(device, 1u << 20); }
  device.reset_host_peaks();
  EXPECT_EQ(device.host_stats().requested_bytes.current, device.host_stats().requested_bytes.peak);
  const Stream stream(device);
  Event event(device);
  stream.record(event);
  EXPECT_FALSE(event.is_held());
}

}  // namespace millpond_tests
