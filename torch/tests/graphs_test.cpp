// Captured graphs, called as PyTorch calls: on `cuda` with a driver, real or fake, whose functions
// make the graphs.
#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "pluggable_test.hpp"

namespace {

using namespace entry_points;

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

/// The fake driver can be made to fail; a real one cannot.
TEST_F(Graphs, ACaptureThatTheDriverCannotTellOfIsProtected) {
  using Fail = int (*)(const char*, std::uint64_t, std::uint32_t, int);
  const char* named = std::getenv("MILLPOND_CUDA_LIBRARY");
  void* library = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW);
  const auto fail = reinterpret_cast<Fail>(dlsym(library, "fakecuda_fail"));
  if (fail == nullptr) GTEST_SKIP() << "not the fake driver";
  const auto pool_of = [](void* p) {
    for (const Block& b : blocks()) {
      if (b.address == reinterpret_cast<std::uintptr_t>(p)) return b.pool_second;
    }
    return std::uint64_t{0};
  };
  const auto fails_once = [fail](std::uint32_t code) {
    ASSERT_EQ(0, fail("cuStreamGetCaptureInfo_v2", 1, code, 0));
  };
  for (const bool first : {true, false}) {
    const PoolId id{0, first ? 51u : 52u};
    begin(id, 0);
    void* before = first ? nullptr : millpond_torch_alloc(kMiB, 0, queue());
    fails_once(999);  // CUDA_ERROR_UNKNOWN
    void* scratch = millpond_torch_alloc(5 * kMiB, 0, queue());
    EXPECT_EQ(id.second, pool_of(scratch));
    EXPECT_EQ(0, driver_.cuMemsetD8Async(address(scratch), 61, 5 * kMiB, stream_));
    void* result = millpond_torch_alloc(kMiB, 0, queue());
    EXPECT_EQ(id.second, pool_of(result));
    EXPECT_EQ(0, driver_.cuMemcpyDtoDAsync_v2(address(result), address(scratch), kMiB, stream_));
    millpond_torch_free(scratch, 5 * kMiB, 0, queue());
    Driver::Handle exec = end(id);
    expect_result(exec, result, 61);
    EXPECT_EQ(0, driver_.cuGraphExecDestroy(exec));
    millpond_torch_release_pool(0, id);
    for (void* p : {before, result}) millpond_torch_free(p, kMiB, 0, queue());
  }
  // What says that there is no such stream says that nothing is recorded.
  const PoolId id{0, 53};
  Stream mine = queue();
  millpond_torch_begin_allocate_to_pool(0, id, [mine](Stream s) { return s == mine; });
  fails_once(400);  // CUDA_ERROR_INVALID_HANDLE
  void* p = millpond_torch_alloc(kMiB, 0, queue());
  EXPECT_EQ(id.second, pool_of(p));
  millpond_torch_end_allocate_to_pool(0, id);
  millpond_torch_free(p, kMiB, 0, queue());
  millpond_torch_release_pool(0, id);
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

}  // namespace
