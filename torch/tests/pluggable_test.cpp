// The functions that PyTorch calls, called as PyTorch calls them: its signatures, its order, its
// threads. Run on the host device (MILLPOND_TORCH_DEVICE=host), where Millpond itself, linked in
// beside, makes the streams; on `cuda` with MILLPOND_TORCH_DEVICE=cuda and a driver, real or fake.
#include "pluggable.hpp"

#include <dlfcn.h>
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

namespace {

using millpond_torch::Block;
using millpond_torch::PoolId;
using millpond_torch::Stats;
using millpond_torch::Stream;

constexpr ssize_t kMiB = 1 << 20;

Stats stats(int device = 0) {
  Stats out{};
  out.struct_size = sizeof out;
  EXPECT_EQ(0, millpond_torch_stats(device, &out)) << millpond_torch_last_error();
  return out;
}

std::vector<Block> blocks(int device = 0) {
  std::vector<Block> out(1000);
  out.resize(millpond_torch_blocks(device, out.data(), out.size()));
  return out;
}

millpond_device* device() {
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

TEST_F(Pluggable, AllocatesAndFrees) {
  void* a = millpond_torch_alloc(1000, 0, nullptr);
  ASSERT_NE(nullptr, a);
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(a) % 512);
  EXPECT_EQ(1000u, stats().requested_bytes.current);
  EXPECT_EQ(1u, stats().blocks.current);
  millpond_torch_free(a, 1000, 0, nullptr);
  void* b = millpond_torch_alloc(1000, 0, nullptr);
  EXPECT_EQ(a, b) << "a freed block is used again on its stream";
  millpond_torch_free(b, 1000, 0, nullptr);
}

TEST_F(Pluggable, NothingIsNothing) {
  EXPECT_EQ(nullptr, millpond_torch_alloc(0, 0, nullptr));
  millpond_torch_free(nullptr, 0, 0, nullptr);
  millpond_torch_record_stream(nullptr, nullptr);
  EXPECT_TRUE(blocks().empty());
}

TEST_F(Pluggable, StreamsHaveTheirOwnOrder) {
  Stream one = stream();
  Stream two = stream();
  void* a = millpond_torch_alloc(3 * kMiB, 0, one);
  void* b = millpond_torch_alloc(3 * kMiB, 0, two);
  EXPECT_NE(a, b);
  millpond_torch_record_stream(a, two);
  millpond_torch_free(a, 3 * kMiB, 0, one);
  millpond_torch_free(b, 3 * kMiB, 0, two);
}

TEST_F(Pluggable, AUseThatCannotBeNotedIsHeardOf) {
  void* a = millpond_torch_alloc(1000, 0, nullptr);
  const auto no_stream = reinterpret_cast<Stream>(UINTPTR_MAX);
  EXPECT_THROW(millpond_torch_record_stream(a, no_stream), std::runtime_error);
  EXPECT_STRNE("", millpond_torch_last_error());
  // A tensor of memory from elsewhere.
  int elsewhere = 0;
  EXPECT_NO_THROW(millpond_torch_record_stream(&elsewhere, stream()));
  millpond_torch_free(a, 1000, 0, nullptr);
}

TEST_F(Pluggable, OutOfMemoryThrowsWhatPyTorchCanShow) {
  const std::uint64_t before = stats().out_of_memory_count;
  try {
    (void)millpond_torch_alloc(ssize_t{1} << 50, 0, nullptr);
    FAIL() << "a petabyte";
  } catch (const std::bad_alloc& e) {
    EXPECT_NE(nullptr, std::strstr(e.what(), "1125899906842624")) << e.what();
    EXPECT_NE(nullptr, std::strstr(e.what(), "device 0")) << e.what();
    EXPECT_NE(nullptr, std::strstr(e.what(), "the device has no more than")) << e.what();
    EXPECT_NE(nullptr, std::strstr(e.what(), "advice: no freeing helps")) << e.what();
  }
  EXPECT_GE(stats().out_of_memory_count, before);
  void* after = millpond_torch_alloc(kMiB, 0, nullptr);
  EXPECT_NE(nullptr, after);
  millpond_torch_free(after, kMiB, 0, nullptr);
}

TEST_F(Pluggable, NoTensorIsEverMadeAtAddress0) {
  setenv("MILLPOND_TORCH_OOM", "null", 1);
  EXPECT_THROW((void)millpond_torch_alloc(ssize_t{1} << 50, 0, nullptr), std::bad_alloc);
  unsetenv("MILLPOND_TORCH_OOM");
  EXPECT_THROW((void)millpond_torch_alloc(-1, 0, nullptr), std::bad_alloc);
  EXPECT_THROW((void)millpond_torch_alloc(100, 63, nullptr), std::bad_alloc);
  EXPECT_THROW((void)millpond_torch_alloc(100, -1, nullptr), std::bad_alloc);
  EXPECT_THROW((void)millpond_torch_alloc(100, 64, nullptr), std::bad_alloc);
}

TEST_F(Pluggable, TheTextOfOutOfMemoryBeginsAsTrainersExpect) {
  const char* type = std::getenv("MILLPOND_TORCH_DEVICE");
  const bool cuda = type == nullptr || std::strcmp(type, "cuda") == 0;
  try {
    (void)millpond_torch_alloc(ssize_t{1} << 50, 0, nullptr);
    FAIL() << "a petabyte";
  } catch (const std::bad_alloc& e) {
    const std::string want = cuda ? "CUDA out of memory. " : "Out of memory. ";
    EXPECT_EQ(want, std::string(e.what()).substr(0, want.size()));
  }
  try {
    (void)millpond_torch_alloc(100, 63, nullptr);
    FAIL() << "a device that is not there";
  } catch (const std::bad_alloc& e) {
    EXPECT_EQ(nullptr, std::strstr(e.what(), "ut of memory")) << e.what();
  }
}

TEST_F(Pluggable, SegmentsOfAMemPoolFailWithNullAndGoBackToTheDevice) {
  EXPECT_EQ(nullptr, millpond_torch_segment_alloc(ssize_t{1} << 50, 0, nullptr));
  EXPECT_STRNE("", millpond_torch_last_error());
  EXPECT_EQ(nullptr, millpond_torch_segment_alloc(100, 63, nullptr));
  EXPECT_EQ(nullptr, millpond_torch_segment_alloc(-1, 0, nullptr));
  millpond_torch_reset();
  ASSERT_EQ(0u, stats().reserved_bytes.current);
  void* p = millpond_torch_segment_alloc(20 * kMiB, 0, nullptr);
  ASSERT_NE(nullptr, p);
  EXPECT_EQ(1u, blocks().size());
  millpond_torch_segment_free(p, 20 * kMiB, 0, nullptr);
  EXPECT_EQ(0u, stats().reserved_bytes.current) << "PyTorch's own allocator calls no reset of ours";
}

TEST_F(Pluggable, ABlockOutlivesItsStream) {
  C_Stream mine = nullptr;
  ASSERT_EQ(C_SUCCESS, millpond_stream_create(device(), &mine));
  void* p = millpond_torch_alloc(kMiB, 0, reinterpret_cast<Stream>(mine));
  ASSERT_EQ(C_SUCCESS, millpond_stream_destroy(device(), mine));
  millpond_torch_free(p, kMiB, 0, reinterpret_cast<Stream>(mine));
  EXPECT_TRUE(blocks().empty()) << millpond_torch_last_error();
}

TEST_F(Pluggable, AForeignPointerIsToldAndNothingIsLost) {
  void* a = millpond_torch_alloc(4096, 0, nullptr);
  int local = 0;
  millpond_torch_free(&local, 4, 0, nullptr);
  EXPECT_STRNE("", millpond_torch_last_error());
  millpond_torch_free(static_cast<char*>(a) + 512, 4, 0, nullptr);
  EXPECT_EQ(1u, blocks().size());
  millpond_torch_free(a, 4096, 0, nullptr);
  EXPECT_TRUE(blocks().empty());
  millpond_torch_free(a, 4096, 0, nullptr);  // twice
  EXPECT_STRNE("", millpond_torch_last_error());
}

TEST_F(Pluggable, ResetGivesTheCacheBack) {
  void* a = millpond_torch_alloc(64 * kMiB, 0, nullptr);
  millpond_torch_free(a, 64 * kMiB, 0, nullptr);
  EXPECT_GE(stats().reserved_bytes.current, static_cast<std::uint64_t>(64 * kMiB));
  millpond_torch_reset();
  EXPECT_EQ(0u, stats().reserved_bytes.current);
}

TEST_F(Pluggable, TheMemoryFractionBoundsTheDevice) {
  std::uint64_t total = 0;
  std::uint64_t free = 0;
  ASSERT_EQ(0, millpond_torch_memory(0, &total, &free));
  millpond_torch_reset();
  millpond_torch_memory_fraction(64.0 * kMiB / static_cast<double>(total), 0);
  void* fits = millpond_torch_alloc(32 * kMiB, 0, nullptr);
  EXPECT_THROW((void)millpond_torch_alloc(64 * kMiB, 0, nullptr), std::bad_alloc);
  millpond_torch_memory_fraction(1.0, 0);
  EXPECT_EQ(0u, stats().limit_bytes);
  void* now = millpond_torch_alloc(64 * kMiB, 0, nullptr);
  millpond_torch_free(fits, 32 * kMiB, 0, nullptr);
  millpond_torch_free(now, 64 * kMiB, 0, nullptr);
  millpond_torch_memory_fraction(-1.0, 0);
  EXPECT_NE(nullptr, std::strstr(millpond_torch_last_error(), "between 0 and 1"));
}

TEST_F(Pluggable, TheBaseOfABlockIsFound) {
  void* a = millpond_torch_alloc(5000, 0, nullptr);
  std::size_t size = 0;
  EXPECT_EQ(a, millpond_torch_base_alloc(static_cast<char*>(a) + 4321, &size));
  EXPECT_GE(size, 5000u);
  EXPECT_EQ(a, millpond_torch_base_alloc(a, nullptr));
  millpond_torch_free(a, 5000, 0, nullptr);
}

TEST_F(Pluggable, PoolsTakeTheStreamsThatTheirFilterAccepts) {
  const PoolId id{0, 7};
  Stream mine = stream();
  millpond_torch_begin_allocate_to_pool(0, id, [mine](Stream s) { return s == mine; });
  void* inside = millpond_torch_alloc(kMiB, 0, mine);
  void* outside = millpond_torch_alloc(kMiB, 0, nullptr);
  millpond_torch_end_allocate_to_pool(0, id);
  void* later = millpond_torch_alloc(kMiB, 0, mine);
  std::set<std::uint64_t> in_pool;
  for (const Block& b : blocks()) {
    if (b.pool_second == 7) in_pool.insert(b.address);
  }
  EXPECT_EQ(std::set<std::uint64_t>{reinterpret_cast<std::uintptr_t>(inside)}, in_pool);

  millpond_torch_free(outside, kMiB, 0, nullptr);
  millpond_torch_free(later, kMiB, 0, mine);
  // Released while a block of it lives, as PyTorch does when a graph dies before its tensors.
  millpond_torch_release_pool(0, id);
  millpond_torch_free(inside, kMiB, 0, mine);
  EXPECT_TRUE(blocks().empty());
}

TEST_F(Pluggable, APoolKeepsItsMemoryUntilItIsReleased) {
  const PoolId id{3, 0};
  Stream mine = stream();
  millpond_torch_reset();
  std::vector<void*> first;
  for (int round = 0; round < 3; ++round) {
    millpond_torch_begin_allocate_to_pool(0, id, [mine](Stream s) { return s == mine; });
    void* a = millpond_torch_alloc(8 * kMiB, 0, mine);
    first.push_back(a);
    millpond_torch_free(a, 8 * kMiB, 0, mine);
    millpond_torch_end_allocate_to_pool(0, id);
    // Another stream's request must not get the pool's memory.
    void* b = millpond_torch_alloc(8 * kMiB, 0, nullptr);
    EXPECT_NE(a, b);
    millpond_torch_free(b, 8 * kMiB, 0, nullptr);
  }
  EXPECT_EQ(first[0], first[1]);
  EXPECT_EQ(first[0], first[2]);
  // PyTorch releases once for each begin, in any order.
  for (int round = 0; round < 3; ++round) {
    void* b = millpond_torch_alloc(8 * kMiB, 0, mine);
    EXPECT_NE(first[0], b) << "release " << round << " was not the last one";
    millpond_torch_free(b, 8 * kMiB, 0, mine);
    millpond_torch_reset();
    EXPECT_EQ(static_cast<std::uint64_t>(8 * kMiB), stats().reserved_bytes.current);
    millpond_torch_release_pool(0, id);
  }
  millpond_torch_reset();
  EXPECT_EQ(0u, stats().reserved_bytes.current);
}

TEST_F(Pluggable, AFilterThatWasBegunLastCountsFirst) {
  const PoolId one{0, 41};
  const PoolId two{0, 42};
  const auto all = [](Stream) { return true; };
  const auto served_by = [](void* p) {
    for (const Block& b : blocks()) {
      if (b.address == reinterpret_cast<std::uintptr_t>(p)) return b.pool_second;
    }
    return std::uint64_t{0};
  };
  millpond_torch_begin_allocate_to_pool(0, one, all);
  millpond_torch_begin_allocate_to_pool(0, two, all);
  millpond_torch_begin_allocate_to_pool(0, one, all);  // the older pool again
  void* p = millpond_torch_alloc(kMiB, 0, nullptr);
  EXPECT_EQ(41u, served_by(p));
  millpond_torch_end_allocate_to_pool(0, one);
  void* q = millpond_torch_alloc(kMiB, 0, nullptr);
  EXPECT_EQ(42u, served_by(q));
  millpond_torch_end_allocate_to_pool(0, two);
  millpond_torch_end_allocate_to_pool(0, one);
  for (PoolId id : {one, two, one}) millpond_torch_release_pool(0, id);
  for (void* block : {p, q}) millpond_torch_free(block, kMiB, 0, nullptr);
}

TEST_F(Pluggable, PoolsNest) {
  const PoolId outer{0, 1};
  const PoolId inner{0, 2};
  const auto all = [](Stream) { return true; };
  millpond_torch_begin_allocate_to_pool(0, outer, all);
  void* a = millpond_torch_alloc(1000, 0, nullptr);
  millpond_torch_begin_allocate_to_pool(0, inner, all);
  void* b = millpond_torch_alloc(1000, 0, nullptr);
  millpond_torch_end_allocate_to_pool(0, inner);
  void* c = millpond_torch_alloc(1000, 0, nullptr);
  millpond_torch_end_allocate_to_pool(0, outer);
  for (const Block& block : blocks()) {
    const unsigned long long want = block.address == reinterpret_cast<std::uintptr_t>(b) ? 2 : 1;
    EXPECT_EQ(want, block.pool_second);
  }
  for (void* p : {a, b, c}) millpond_torch_free(p, 1000, 0, nullptr);
  millpond_torch_release_pool(0, inner);
  millpond_torch_release_pool(0, outer);
  millpond_torch_end_allocate_to_pool(0, outer);
  EXPECT_STRNE("", millpond_torch_last_error());
  millpond_torch_release_pool(0, outer);  // twice: nothing
}

/// The part of the driver that PyTorch makes graphs with.
struct Driver {
  using Handle = void*;
  int (*cuInit)(unsigned);
  int (*cuDevicePrimaryCtxRetain)(Handle*, int);
  int (*cuDevicePrimaryCtxRelease_v2)(int);
  int (*cuCtxPushCurrent_v2)(Handle);
  int (*cuCtxPopCurrent_v2)(Handle*);
  int (*cuStreamCreate)(Handle*, unsigned);
  int (*cuStreamDestroy_v2)(Handle);
  int (*cuStreamQuery)(Handle);
  int (*cuStreamSynchronize)(Handle);
  int (*cuStreamBeginCapture_v2)(Handle, unsigned);
  int (*cuStreamEndCapture)(Handle, Handle*);
  int (*cuGraphInstantiateWithFlags)(Handle*, Handle, unsigned long long);
  int (*cuGraphLaunch)(Handle, Handle);
  int (*cuGraphDestroy)(Handle);
  int (*cuGraphExecDestroy)(Handle);
  int (*cuMemsetD8Async)(unsigned long long, unsigned char, std::size_t, Handle);
  int (*cuMemcpyDtoDAsync_v2)(unsigned long long, unsigned long long, std::size_t, Handle);
  int (*cuMemcpyDtoH_v2)(void*, unsigned long long, std::size_t);

  bool load() {
    const char* named = std::getenv("MILLPOND_CUDA_LIBRARY");
    void* library = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW);
    bool all = library != nullptr;
    const auto find = [&](auto& to, const char* symbol) {
      void* found = all ? dlsym(library, symbol) : nullptr;
      all = found != nullptr;
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(found);
    };
#define FIND(symbol) find(symbol, #symbol)
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuDevicePrimaryCtxRelease_v2);
    FIND(cuCtxPushCurrent_v2);
    FIND(cuCtxPopCurrent_v2);
    FIND(cuStreamCreate);
    FIND(cuStreamDestroy_v2);
    FIND(cuStreamQuery);
    FIND(cuStreamSynchronize);
    FIND(cuStreamBeginCapture_v2);
    FIND(cuStreamEndCapture);
    FIND(cuGraphInstantiateWithFlags);
    FIND(cuGraphLaunch);
    FIND(cuGraphDestroy);
    FIND(cuGraphExecDestroy);
    FIND(cuMemsetD8Async);
    FIND(cuMemcpyDtoDAsync_v2);
    FIND(cuMemcpyDtoH_v2);
#undef FIND
    return all;
  }
};

/// Graphs as PyTorch makes them: on a non-blocking stream of its own, in a pool that it names, with
/// its own order of calls.
class Graphs : public Pluggable {
 protected:
  void SetUp() override {
    Pluggable::SetUp();
    if (IsSkipped()) return;
    const char* type = std::getenv("MILLPOND_TORCH_DEVICE");
    if (type != nullptr && std::strcmp(type, "cuda") != 0) GTEST_SKIP() << type << " has no graphs";
    ASSERT_TRUE(driver_.load());
    ASSERT_EQ(0, driver_.cuInit(0));
    ASSERT_EQ(0, driver_.cuDevicePrimaryCtxRetain(&context_, 0));
    ASSERT_EQ(0, driver_.cuCtxPushCurrent_v2(context_));
    ASSERT_EQ(0, driver_.cuStreamCreate(&stream_, 1));
    millpond_torch_reset();
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      EXPECT_EQ(C_SUCCESS, millpond_stream_forget(device(), static_cast<C_Stream>(stream_)));
      EXPECT_EQ(0, driver_.cuStreamDestroy_v2(stream_));
      millpond_torch_reset();
      EXPECT_EQ(0u, stats().reserved_bytes.current) << "a graph's memory is left";
      EXPECT_EQ(0, driver_.cuCtxPopCurrent_v2(&context_));
      EXPECT_EQ(0, driver_.cuDevicePrimaryCtxRelease_v2(0));
    }
    Pluggable::TearDown();
  }

  Stream queue() const { return reinterpret_cast<Stream>(stream_); }

  void begin(PoolId id, unsigned mode) {
    Stream mine = queue();
    millpond_torch_begin_allocate_to_pool(0, id, [mine](Stream s) { return s == mine; });
    ASSERT_EQ(0, driver_.cuStreamBeginCapture_v2(stream_, mode));
  }
  /// A result that the graph makes, by way of memory that it gives back.
  void* work(unsigned char value, ssize_t size) {
    void* scratch = millpond_torch_alloc(size, 0, queue());
    EXPECT_EQ(0, driver_.cuMemsetD8Async(address(scratch), value, static_cast<std::size_t>(size),
                                         stream_));
    void* result = millpond_torch_alloc(kMiB, 0, queue());
    EXPECT_EQ(0, driver_.cuMemcpyDtoDAsync_v2(address(result), address(scratch), kMiB, stream_));
    millpond_torch_free(scratch, size, 0, queue());
    return result;
  }
  Driver::Handle end(PoolId id, bool good = true) {
    Driver::Handle graph = nullptr, exec = nullptr;
    const int code = driver_.cuStreamEndCapture(stream_, &graph);
    EXPECT_EQ(good, code == 0) << "the capture was disturbed: " << code;
    millpond_torch_end_allocate_to_pool(0, id);
    if (graph == nullptr) return nullptr;
    EXPECT_EQ(0, driver_.cuGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT_EQ(0, driver_.cuGraphDestroy(graph));
    return exec;
  }
  void expect_result(Driver::Handle exec, void* result, unsigned char value) {
    EXPECT_EQ(0, driver_.cuMemsetD8Async(address(result), 0, kMiB, stream_));
    EXPECT_EQ(0, driver_.cuGraphLaunch(exec, stream_));
    EXPECT_EQ(0, driver_.cuStreamSynchronize(stream_));
    std::vector<unsigned char> bytes(kMiB);
    EXPECT_EQ(0, driver_.cuMemcpyDtoH_v2(bytes.data(), address(result), bytes.size()));
    EXPECT_EQ(std::vector<unsigned char>(kMiB, value), bytes);
  }
  static unsigned long long address(void* p) { return reinterpret_cast<std::uintptr_t>(p); }

  Driver driver_{};
  Driver::Handle context_ = nullptr;
  Driver::Handle stream_ = nullptr;
};

TEST_F(Graphs, ReplaysFindTheirMemory) {
  for (unsigned mode : {0u, 1u}) {
    const PoolId id{5, mode};
    Stream side = stream();
    void* eager = millpond_torch_alloc(3 * kMiB, 0, side);
    void* shared = millpond_torch_alloc(3 * kMiB, 0, side);
    millpond_torch_record_stream(shared, queue());
    begin(id, mode);
    void* first = work(11, 20 * kMiB);
    // Meanwhile PyTorch frees and asks for other memory, and somebody empties the cache.
    millpond_torch_free(eager, 3 * kMiB, 0, side);
    millpond_torch_free(shared, 3 * kMiB, 0, side);
    std::thread([side] {
      void* p = millpond_torch_alloc(9 * kMiB, 0, side);
      millpond_torch_free(p, 9 * kMiB, 0, side);
    }).join();
    void* unshared = millpond_torch_alloc(3 * kMiB, 0, side);
    EXPECT_NE(shared, unshared) << "the captured stream has used it";
    millpond_torch_reset();
    Driver::Handle one = end(id);
    begin(id, mode);
    void* second = work(12, 20 * kMiB);
    Driver::Handle two = end(id);
    // Other code empties the cache and takes what it can get between the replays.
    millpond_torch_reset();
    std::vector<void*> others;
    for (int i = 0; i < 40; ++i) {
      others.push_back(millpond_torch_alloc(kMiB, 0, i % 2 == 0 ? side : queue()));
      EXPECT_EQ(0, driver_.cuMemsetD8Async(address(others.back()), 99, kMiB, stream_));
    }
    for (int round = 0; round < 3; ++round) {
      expect_result(one, first, 11);
      expect_result(two, second, 12);
    }
    std::vector<unsigned char> bytes(kMiB);
    for (void* p : others) {
      EXPECT_EQ(0, driver_.cuMemcpyDtoH_v2(bytes.data(), address(p), bytes.size()));
      EXPECT_EQ(std::vector<unsigned char>(kMiB, 99), bytes) << "a replay wrote to other memory";
      millpond_torch_free(p, kMiB, 0, nullptr);
    }
    millpond_torch_free(unshared, 3 * kMiB, 0, side);
    EXPECT_EQ(0, driver_.cuGraphExecDestroy(one));
    EXPECT_EQ(0, driver_.cuGraphExecDestroy(two));
    // A result may outlive the graphs.
    millpond_torch_release_pool(0, id);
    millpond_torch_release_pool(0, id);
    millpond_torch_free(first, kMiB, 0, queue());
    millpond_torch_free(second, kMiB, 0, queue());
  }
}

TEST_F(Graphs, AGraphOutlivesTheOthersOfItsPool) {
  const PoolId id{0, 8};
  std::vector<Driver::Handle> graphs;
  std::vector<void*> results;
  for (const auto value : std::vector<unsigned char>{21, 22, 23}) {
    begin(id, 0);
    results.push_back(work(value, 20 * kMiB));
    graphs.push_back(end(id));
  }
  for (std::size_t last : {2u, 0u, 1u}) {
    EXPECT_EQ(0, driver_.cuGraphExecDestroy(std::exchange(graphs[last], nullptr)));
    millpond_torch_release_pool(0, id);
    millpond_torch_reset();
    std::vector<void*> others;
    for (int i = 0; i < 60; ++i) {
      others.push_back(millpond_torch_alloc(kMiB, 0, nullptr));
      EXPECT_EQ(0, driver_.cuMemsetD8Async(address(others.back()), 99, kMiB, stream_));
    }
    for (std::size_t i = 0; i < 3; ++i) {
      if (graphs[i] != nullptr) {
        expect_result(graphs[i], results[i], static_cast<unsigned char>(21 + i));
      }
    }
    EXPECT_EQ(0, driver_.cuStreamSynchronize(stream_));
    std::vector<unsigned char> bytes(kMiB);
    for (void* p : others) {
      EXPECT_EQ(0, driver_.cuMemcpyDtoH_v2(bytes.data(), address(p), bytes.size()));
      EXPECT_EQ(std::vector<unsigned char>(kMiB, 99), bytes) << "a replay wrote to other memory";
      millpond_torch_free(p, kMiB, 0, nullptr);
    }
  }
  for (void* p : results) millpond_torch_free(p, kMiB, 0, queue());
}

/// Up to 2.11 PyTorch tells neither the end nor the release of a capture that broke, its filter
/// looks into a graph that is gone, and all graphs are captured on one stream.
TEST_F(Graphs, ACaptureThatNobodyEndedDoesNotExposeLaterGraphs) {
  const PoolId broken{10, 0};
  auto alive = std::make_shared<bool>(true);
  auto asked_when_dead = std::make_shared<int>(0);
  auto capturing = std::make_shared<bool>(false);
  Stream mine = queue();
  millpond_torch_begin_allocate_to_pool(0, broken, [=](Stream s) {
    *asked_when_dead += *alive ? 0 : 1;
    return *capturing && s == mine;
  });
  ASSERT_EQ(0, driver_.cuStreamBeginCapture_v2(stream_, 0));
  *capturing = true;
  void* lost = work(1, 20 * kMiB);
  EXPECT_NE(0, driver_.cuStreamQuery(stream_)) << "forbidden in a capture";
  Driver::Handle none = nullptr;
  EXPECT_NE(0, driver_.cuStreamEndCapture(stream_, &none));
  *capturing = false;
  *alive = false;

  const PoolId good{11, 0};
  begin(good, 0);
  void* result = work(7, 30 * kMiB);
  Driver::Handle exec = end(good);
  millpond_torch_reset();
  std::vector<void*> others;
  for (int i = 0; i < 60; ++i) {
    others.push_back(millpond_torch_alloc(kMiB, 0, i % 2 == 0 ? nullptr : queue()));
  }
  for (int round = 0; round < 2; ++round) {
    for (void* p : others) {
      EXPECT_EQ(0, driver_.cuMemsetD8Async(address(p), 99, kMiB, stream_));
    }
    expect_result(exec, result, 7);
    std::vector<unsigned char> bytes(kMiB);
    for (void* p : others) {
      EXPECT_EQ(0, driver_.cuMemcpyDtoH_v2(bytes.data(), address(p), bytes.size()));
      EXPECT_EQ(std::vector<unsigned char>(kMiB, 99), bytes) << "a replay wrote to other memory";
    }
  }
  for (void* p : others) millpond_torch_free(p, kMiB, 0, nullptr);
  EXPECT_EQ(0, driver_.cuGraphExecDestroy(exec));
  millpond_torch_release_pool(0, good);
  millpond_torch_free(result, kMiB, 0, queue());
  millpond_torch_free(lost, kMiB, 0, queue());
  EXPECT_EQ(0, *asked_when_dead);
  millpond_torch_release_pool(0, broken);  // what PyTorch leaves out
}

TEST_F(Graphs, ARefusalIsHeardOf) {
  // Somebody else has announced the stream to Millpond.
  millpond_pool* pool = nullptr;
  millpond_capture* capture = nullptr;
  ASSERT_EQ(C_SUCCESS, millpond_pool_create(device(), nullptr, &pool));
  ASSERT_EQ(C_SUCCESS, millpond_capture_begin(pool, static_cast<C_Stream>(stream_), &capture));
  const PoolId id{12, 0};
  begin(id, 0);
  EXPECT_THROW((void)millpond_torch_alloc(kMiB, 0, queue()), std::exception);
  EXPECT_NE(nullptr, std::strstr(millpond_torch_last_error(), "captured"))
      << millpond_torch_last_error();
  Driver::Handle graph = nullptr;
  EXPECT_EQ(0, driver_.cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(0, driver_.cuGraphDestroy(graph));
  millpond_torch_end_allocate_to_pool(0, id);
  millpond_torch_release_pool(0, id);
  EXPECT_EQ(C_SUCCESS, millpond_capture_release(capture));
  EXPECT_EQ(C_SUCCESS, millpond_pool_destroy(pool));
}

/// A pool of torch.cuda.use_mem_pool that is used inside a capture, and one that is used around it.
TEST_F(Graphs, PoolsOfAThreadAndGraphsMix) {
  const PoolId thread{0, 13};
  const PoolId graph{14, 0};
  const auto all = [](Stream) { return true; };
  millpond_torch_begin_allocate_to_pool(0, thread, all);
  void* eager = millpond_torch_alloc(kMiB, 0, queue());
  begin(graph, 0);
  void* result = work(31, 20 * kMiB);
  millpond_torch_begin_allocate_to_pool(0, thread, all);
  void* inner = millpond_torch_alloc(20 * kMiB, 0, queue());
  millpond_torch_free(inner, 20 * kMiB, 0, queue());
  millpond_torch_end_allocate_to_pool(0, thread);
  Driver::Handle exec = end(graph);
  millpond_torch_end_allocate_to_pool(0, thread);
  for (int i = 0; i < 2; ++i) millpond_torch_release_pool(0, thread);
  millpond_torch_free(eager, kMiB, 0, queue());
  millpond_torch_reset();
  void* other = millpond_torch_alloc(60 * kMiB, 0, queue());
  EXPECT_EQ(0, driver_.cuMemsetD8Async(address(other), 99, 60 * kMiB, stream_));
  expect_result(exec, result, 31);
  std::vector<unsigned char> bytes(60 * kMiB);
  EXPECT_EQ(0, driver_.cuMemcpyDtoH_v2(bytes.data(), address(other), bytes.size()));
  EXPECT_EQ(std::vector<unsigned char>(60 * kMiB, 99), bytes) << "a replay wrote to other memory";
  millpond_torch_free(other, 60 * kMiB, 0, queue());
  EXPECT_EQ(0, driver_.cuGraphExecDestroy(exec));
  millpond_torch_release_pool(0, graph);
  millpond_torch_free(result, kMiB, 0, queue());
}

TEST_F(Graphs, ACaptureThatFailsLeavesNothing) {
  const PoolId id{6, 0};
  begin(id, 0);
  void* result = work(1, 20 * kMiB);
  EXPECT_NE(0, driver_.cuStreamQuery(stream_)) << "forbidden in a capture";
  EXPECT_EQ(nullptr, end(id, false));
  millpond_torch_release_pool(0, id);
  millpond_torch_free(result, kMiB, 0, queue());
}

TEST_F(Pluggable, ManyThreadsAtOnce) {
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([t, &failures] {
      std::vector<std::pair<void*, ssize_t>> held;
      for (int i = 0; i < 2000; ++i) {
        const ssize_t size = 1 + (i * 7919 + t * 104729) % 300000;
        void* p = millpond_torch_alloc(size, 0, nullptr);
        if (p == nullptr) ++failures;
        held.emplace_back(p, size);
        if (i % 100 == 3) {
          millpond_torch_begin_allocate_to_pool(0, PoolId{9, static_cast<unsigned long long>(t)},
                                                [](Stream s) { return s != nullptr; });
          millpond_torch_end_allocate_to_pool(0, PoolId{9, static_cast<unsigned long long>(t)});
        }
        if (held.size() > 20) {
          millpond_torch_free(held[0].first, held[0].second, 0, nullptr);
          held.erase(held.begin());
        }
      }
      for (auto& h : held) millpond_torch_free(h.first, h.second, 0, nullptr);
      millpond_torch_release_pool(0, PoolId{9, static_cast<unsigned long long>(t)});
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(0, failures.load());
}

TEST_F(Pluggable, OlderCallersGetTheStatsTheyKnow) {
  struct {
    Stats stats;
    unsigned char guard[16];
  } out;
  std::memset(&out, 0xAB, sizeof out);
  out.stats.struct_size = sizeof(std::size_t) + sizeof(millpond_torch::Counter);
  ASSERT_EQ(0, millpond_torch_stats(0, &out.stats));
  EXPECT_EQ(0xABABABABABABABABu, out.stats.allocated_bytes.current);
}

}  // namespace
