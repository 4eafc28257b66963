// The functions that PyTorch calls, called as PyTorch calls them: its signatures, its order, its
// threads. Run on the host device (MILLPOND_TORCH_DEVICE=host), where Millpond itself, linked in
// beside, makes the streams; on `cuda` with MILLPOND_TORCH_DEVICE=cuda and a driver, real or fake.
#include "pluggable_test.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace entry_points;

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
