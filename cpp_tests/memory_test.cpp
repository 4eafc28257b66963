// Conformance of the C API's memory calls, on every device type: what is allocated, what it holds,
// what is counted.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <millpond/millpond.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/devices.hpp"
#include "support/pattern.hpp"

namespace millpond_tests {
namespace {

class Memory : public DeviceTest {
 protected:
  void* alloc(std::size_t size) {
    void* out = nullptr;
    EXPECT_OK(millpond_alloc(device_, size, &out));
    return out;
  }
  std::vector<std::uint8_t> read(const void* src, std::size_t size) {
    std::vector<std::uint8_t> out(size);
    EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_D2H, out.data(), src, size));
    return out;
  }
  void write(void* dst, const std::vector<std::uint8_t>& bytes) {
    EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_H2D, dst, bytes.data(), bytes.size()));
  }
  static std::uint8_t* at(void* base, std::size_t offset) {
    return static_cast<std::uint8_t*>(base) + offset;
  }
};
MILLPOND_FOR_ALL_DEVICES(Memory);

constexpr std::size_t kSizes[] = {1,       31,      32,      33,     255,     256,
                                  257,     4096,    65535,   65536,  1 << 20, 1153434,
                                  2 << 20, 5 << 20, 2 << 10, 9000001};

TEST_P(Memory, InfoIsWithinItsOwnLimits) {
  const millpond_device_info device = info(device_);
  EXPECT_EQ(type_, device.type);
  EXPECT_EQ(0, device.ordinal);
  // A plugin that does not say what memory it has is told as one that does not.
  const std::string& label = GetParam().label;
  EXPECT_EQ(label == "foreign_minimal" || label == "no_callbacks", device.total_bytes == 0);
  EXPECT_LE(device.free_bytes, device.total_bytes);
  EXPECT_GT(device.min_chunk_bytes, 0u);
  EXPECT_LE(device.min_chunk_bytes, device.max_chunk_bytes);
  if (device.total_bytes != 0) {
    EXPECT_LE(device.max_alloc_bytes, device.total_bytes);
  }
  EXPECT_LE(device.init_alloc_bytes, device.max_alloc_bytes);
  EXPECT_LE(device.realloc_bytes, device.max_alloc_bytes);
}

TEST_P(Memory, BlocksAreAlignedAndApart) {
  std::vector<std::pair<std::uintptr_t, std::size_t>> blocks;
  const std::uint64_t chunk = info(device_).min_chunk_bytes;
  const std::uint64_t alignment = chunk & (~chunk + 1);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t size : kSizes) {
      const auto address = reinterpret_cast<std::uintptr_t>(alloc(size));
      ASSERT_NE(0u, address) << size;
      EXPECT_EQ(0u, address % alignment) << size;
      blocks.emplace_back(address, size);
    }
  }
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    EXPECT_GE(blocks[i].first, blocks[i - 1].first + blocks[i - 1].second) << "overlap";
  }
  for (const auto& block : blocks) EXPECT_OK(millpond_free(reinterpret_cast<void*>(block.first)));
}

TEST_P(Memory, ContentsSurviveTheirNeighbours) {
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    blocks.push_back(alloc(kSizes[i]));
    write(blocks.back(), pattern(i, kSizes[i]));
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    EXPECT_OK(millpond_free(blocks[i]));
    blocks[i] = alloc(kSizes[i]);
    write(blocks[i], pattern(1000 + i, kSizes[i]));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(pattern(i % 2 == 0 ? 1000 + i : i, kSizes[i]), read(blocks[i], kSizes[i])) << i;
    EXPECT_OK(millpond_free(blocks[i]));
  }
}

TEST_P(Memory, CopiesWithinTheDeviceMoveOnlyTheirRange) {
  const std::size_t size = 300000;
  void* a = alloc(size);
  void* b = alloc(size);
  write(a, pattern(1, size));
  EXPECT_OK(millpond_memset(device_, b, 0x5A, size));
  EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_D2D, at(b, 1001), at(a, 77), 200003));
  const std::vector<std::uint8_t> got = read(b, size);
  EXPECT_EQ(1001u, first_other(got, 0x5A, 0, 1001));
  EXPECT_EQ(size, first_other(got, 0x5A, 1001 + 200003, size));
  const std::vector<std::uint8_t> from = pattern(1, size);
  EXPECT_EQ(0, std::memcmp(from.data() + 77, got.data() + 1001, 200003));
  EXPECT_OK(millpond_free(a));
  EXPECT_OK(millpond_free(b));
}

TEST_P(Memory, MemsetTouchesOnlyItsRange) {
  const std::size_t size = 70000;
  void* block = alloc(size);
  EXPECT_OK(millpond_memset(device_, block, 0x11, size));
  EXPECT_OK(millpond_memset(device_, at(block, 3), 0xEE, 65001));
  const std::vector<std::uint8_t> got = read(block, size);
  EXPECT_EQ(3u, first_other(got, 0x11, 0, 3));
  EXPECT_EQ(65004u, first_other(got, 0xEE, 3, 65004));
  EXPECT_EQ(size, first_other(got, 0x11, 65004, size));
  EXPECT_OK(millpond_free(block));
}

TEST_P(Memory, CopiesOfNoBytesSucceed) {
  void* block = alloc(64);
  std::uint8_t byte = 7;
  EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_H2D, block, &byte, 0));
  EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_D2H, &byte, block, 0));
  EXPECT_OK(millpond_memset(device_, block, 1, 0));
  EXPECT_EQ(7, byte);
  EXPECT_OK(millpond_free(block));
}

TEST_P(Memory, CopiesReachTheSecondDevice) {
  millpond_device* other = second();
  if (other == nullptr) GTEST_SKIP() << type_ << " has one device";
  const std::size_t size = 3 << 20;
  void* here = alloc(size);
  void* there = nullptr;
  ASSERT_OK(millpond_alloc(other, size, &there));
  write(here, pattern(9, size));
  EXPECT_OK(millpond_memset(other, there, 0, size));
  EXPECT_OK(millpond_copy_peer(other, there, device_, here, size));
  std::vector<std::uint8_t> got(size);
  EXPECT_OK(millpond_copy(other, MILLPOND_COPY_D2H, got.data(), there, size));
  EXPECT_EQ(pattern(9, size), got);

  EXPECT_OK(millpond_memset(other, there, 0, size));
  C_Stream queue = can(MILLPOND_CAP_STREAMS) ? stream() : nullptr;
  EXPECT_OK(millpond_copy_peer_async(other, there, device_, queue, here, size));
  EXPECT_OK(millpond_stream_synchronize(device_, queue));
  EXPECT_OK(millpond_copy(other, MILLPOND_COPY_D2H, got.data(), there, size));
  EXPECT_EQ(pattern(9, size), got);
  EXPECT_OK(millpond_free(here));
  EXPECT_OK(millpond_free(there));
}

TEST_P(Memory, CountersAreExact) {
  EXPECT_OK(millpond_device_reset_peaks(device_));
  const millpond_stats start = stats();
  EXPECT_EQ(start.allocated_bytes.current, start.allocated_bytes.peak);
  void* a = alloc(1000);
  void* b = alloc(5000000);
  const millpond_stats two = stats();
  EXPECT_EQ(start.requested_bytes.current + 5001000, two.requested_bytes.current);
  EXPECT_EQ(start.requested_bytes.total + 5001000, two.requested_bytes.total);
  EXPECT_EQ(start.blocks.current + 2, two.blocks.current);
  EXPECT_EQ(start.blocks.total + 2, two.blocks.total);
  EXPECT_GE(two.allocated_bytes.current - start.allocated_bytes.current, 5001000u);
  EXPECT_GE(two.active_bytes.current, two.allocated_bytes.current);
  EXPECT_GE(two.reserved_bytes.current, two.active_bytes.current);
  EXPECT_GT(two.segments.current, 0u);

  millpond_block_info small{}, large{};
  small.struct_size = large.struct_size = sizeof small;
  EXPECT_OK(millpond_get_block(a, &small));
  EXPECT_OK(millpond_get_block(b, &large));
  EXPECT_EQ(small.size_bytes + large.size_bytes,
            two.allocated_bytes.current - start.allocated_bytes.current);

  EXPECT_OK(millpond_free(b));
  const millpond_stats one = stats();
  EXPECT_EQ(start.requested_bytes.current + 1000, one.requested_bytes.current);
  EXPECT_EQ(start.allocated_bytes.current + small.size_bytes, one.allocated_bytes.current);
  EXPECT_EQ(two.requested_bytes.peak, one.requested_bytes.peak);
  EXPECT_EQ(start.requested_bytes.current + 5001000, one.requested_bytes.peak);
  EXPECT_OK(millpond_free(a));
  EXPECT_OK(millpond_device_reset_peaks(device_));
  EXPECT_EQ(start.allocated_bytes.current, stats().allocated_bytes.peak);
}

TEST_P(Memory, WarmAllocationAsksTheDeviceForNothing) {
  for (int warm = 0; warm < 2; ++warm) {
    const std::uint64_t calls = stats().driver_calls;
    const std::uint64_t reserved = stats().reserved_bytes.current;
    for (int i = 0; i < 200; ++i) {
      void* out = nullptr;
      ASSERT_OK(millpond_pool_alloc(pool_, 100000, nullptr, &out));
      ASSERT_OK(millpond_pool_free(pool_, out, nullptr));
    }
    if (warm == 0) continue;
    EXPECT_EQ(calls, stats().driver_calls);
    EXPECT_EQ(reserved, stats().reserved_bytes.current);
  }
}

TEST_P(Memory, EmptyCacheGivesEverythingBack) {
  void* block = alloc(3 << 20);
  EXPECT_GT(stats().reserved_bytes.current, 0u);
  EXPECT_OK(millpond_free(block));
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_OK(millpond_device_empty_cache(device_));
  EXPECT_EQ(0u, stats().reserved_bytes.current);
  EXPECT_EQ(0u, stats().segments.current);
  EXPECT_EQ(0u, stats().active_bytes.current);
}

TEST_P(Memory, EmptyCacheKeepsLiveBlocks) {
  void* kept = alloc(100000);
  void* gone = alloc(8 << 20);
  write(kept, pattern(4, 100000));
  EXPECT_OK(millpond_free(gone));
  EXPECT_OK(millpond_device_empty_cache(device_));
  EXPECT_EQ(pattern(4, 100000), read(kept, 100000));
  EXPECT_GE(stats().reserved_bytes.current, stats().allocated_bytes.current);
  EXPECT_OK(millpond_free(kept));
}

TEST_P(Memory, TrimKeepsWhatIsAskedForAndABudgetTellsWhatIsAbove) {
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_OK(millpond_device_empty_cache(device_));
  void* kept = alloc(6 << 20);
  write(kept, pattern(4, 100000));
  std::vector<void*> gone;
  for (int i = 0; i < 8; ++i) gone.push_back(alloc(6 << 20));
  for (void* block : gone) EXPECT_OK(millpond_free(block));
  const std::uint64_t all = stats().reserved_bytes.current;
  EXPECT_OK(millpond_device_trim_to(device_, all));
  EXPECT_LE(stats().reserved_bytes.current, all);
  EXPECT_OK(millpond_pool_trim_to(pool_, 12u << 20));
  const std::uint64_t left = stats().reserved_bytes.current;
  EXPECT_GE(left, 6u << 20);
  std::uint64_t above = 77;
  EXPECT_OK(millpond_device_set_budget(device_, 1u << 20, &above));
  EXPECT_EQ(stats().reserved_bytes.current, above + (1u << 20));
  EXPECT_EQ(1u << 20, stats().limit_bytes);
  if (can(MILLPOND_CAP_MAPPING)) {
    EXPECT_LE(left, 12u << 20);
  }
  EXPECT_EQ(pattern(4, 100000), read(kept, 100000));
  EXPECT_OK(millpond_free(kept));
  EXPECT_OK(millpond_device_set_budget(device_, 1u << 20, &above));
  EXPECT_EQ(0u, above);
  EXPECT_OK(millpond_device_set_budget(device_, 0, nullptr));
  EXPECT_EQ(0u, stats().limit_bytes);
}

TEST_P(Memory, AMemberOfAGroupGivesBackAndFollowsBudgets) {
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_OK(millpond_device_empty_cache(device_));
  const std::string path = ::testing::TempDir() + "millpond-group-" + std::to_string(::getpid());
  std::remove(path.c_str());
  {
    const millpond::Device device(device_);
    millpond::GroupMembership first(device, path, "a test");
    EXPECT_NE(0u, first.id());
    EXPECT_THROW(millpond::GroupMembership(device, path), millpond::Error);
    millpond::GroupMembership member(std::move(first));
    EXPECT_EQ(0u, first.id());
    void* kept = alloc(2 << 20);
    write(kept, pattern(4, 100000));
    EXPECT_OK(millpond_free(alloc(30 << 20)));
    millpond::set_group_budget(path, member.id(), 4u << 20);
    // The thread of the membership follows.
    for (int i = 0; i < 20000 && millpond::group_members(path).at(0).budget_bytes == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(4u << 20, stats().limit_bytes);
    EXPECT_EQ(pattern(4, 100000), read(kept, 100000));
    EXPECT_OK(millpond_free(kept));
    const millpond_group_member seen = millpond::group_members(path).at(0);
    EXPECT_EQ(member.id(), seen.member_id);
    EXPECT_STREQ("a test", seen.name);
    EXPECT_EQ(0u, device.serve_group(std::chrono::milliseconds(0)));
    member.leave();
    EXPECT_TRUE(millpond::group_members(path).empty());
    EXPECT_THROW(device.serve_group(std::chrono::milliseconds(0)), millpond::Error);
  }
  EXPECT_OK(millpond_device_set_budget(device_, 0, nullptr));
  EXPECT_EQ(0, std::remove(path.c_str()));
}

TEST_P(Memory, AlignedBlocksAndBlocksThatGrow) {
  for (std::size_t alignment : {1u, 512u, 4096u, 65536u, 2u << 20}) {
    void* block = nullptr;
    const C_Status status = millpond_pool_alloc_aligned(pool_, 100000, alignment, nullptr, &block);
    if (status != C_SUCCESS) {
      EXPECT_EQ(static_cast<std::uint32_t>(MILLPOND_E_UNSUPPORTED), millpond_last_error_code());
      continue;
    }
    EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(block) % alignment);
    write(block, pattern(4, 100000));
    millpond_block_info info = {};
    info.struct_size = sizeof info;
    EXPECT_OK(millpond_get_block(block, &info));
    EXPECT_OK(millpond_try_expand(block, info.size_bytes));
    EXPECT_EQ(pattern(4, 100000), read(block, 100000));
    EXPECT_OK(millpond_free_sized(block, info.size_bytes));
  }
  EXPECT_EQ(0u, stats().requested_bytes.current);
}

extern "C" void CountBlock(void* counts, const millpond_block_event* event) {
  static_cast<std::vector<std::uint32_t>*>(counts)->push_back(event->kind);
}

TEST_P(Memory, EventsNoteTheTime) {
  C_Event start = nullptr, end = nullptr;
  const C_Status status = millpond_event_create_timed(device_, &start);
  if (status != C_SUCCESS) {
    EXPECT_EQ(static_cast<std::uint32_t>(MILLPOND_E_UNSUPPORTED), millpond_last_error_code());
    return;
  }
  EXPECT_OK(millpond_event_create_timed(device_, &end));
  EXPECT_OK(millpond_event_record(device_, nullptr, start));
  void* block = alloc(1 << 20);
  EXPECT_OK(millpond_memset_async(device_, nullptr, block, 1, 1 << 20));
  EXPECT_OK(millpond_event_record(device_, nullptr, end));
  EXPECT_OK(millpond_event_synchronize(device_, end));
  float milliseconds = -1;
  EXPECT_OK(millpond_event_get_elapsed(device_, start, end, &milliseconds));
  EXPECT_GE(milliseconds, 0.0f);
  EXPECT_LT(milliseconds, 60000.0f);
  EXPECT_OK(millpond_free(block));
  EXPECT_OK(millpond_event_destroy(device_, start));
  EXPECT_OK(millpond_event_destroy(device_, end));
}

TEST_P(Memory, HooksSeeEachAllocationAndFree) {
  std::vector<std::uint32_t> seen;
  std::uint64_t id = 0;
  ASSERT_OK(millpond_device_add_hook(device_, CountBlock, &seen, nullptr, &id));
  void* block = alloc(5000);
  EXPECT_OK(millpond_free(block));
  EXPECT_OK(millpond_device_remove_hook(device_, id));
  EXPECT_OK(millpond_free(alloc(5000)));
  EXPECT_EQ((std::vector<std::uint32_t>{MILLPOND_HOOK_ALLOC, MILLPOND_HOOK_FREE}), seen);
}

TEST_P(Memory, LimitBoundsWhatIsReserved) {
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_OK(millpond_device_empty_cache(device_));
  const std::uint64_t limit = 64u << 20;
  EXPECT_OK(millpond_device_set_limit(device_, limit));
  EXPECT_EQ(limit, stats().limit_bytes);
  EXPECT_OK(millpond_device_reset_peaks(device_));
  const std::uint64_t failures = stats().out_of_memory_count;
  std::vector<void*> blocks;
  for (;;) {
    void* out = nullptr;
    const C_Status status = millpond_alloc(device_, 5 << 20, &out);
    if (status != C_SUCCESS) {
      EXPECT_EQ(static_cast<std::uint32_t>(MILLPOND_E_OUT_OF_MEMORY), millpond_last_error_code());
      EXPECT_EQ(C_FAILED, status);
      EXPECT_EQ(nullptr, out);
      break;
    }
    blocks.push_back(out);
    ASSERT_LE(blocks.size(), 12u) << "the limit does not hold";
  }
  EXPECT_GE(blocks.size(), 1u);
  EXPECT_LE(stats().reserved_bytes.peak, limit);
  EXPECT_EQ(failures + 1, stats().out_of_memory_count);
  for (void* block : blocks) EXPECT_OK(millpond_free(block));
  EXPECT_OK(millpond_device_set_limit(device_, 0));
  void* large = alloc(80 << 20);
  EXPECT_NE(nullptr, large);
  EXPECT_OK(millpond_free(large));
}

TEST_P(Memory, ScatteredFreeMemoryIsNotLost) {
  if (!can(MILLPOND_CAP_MAPPING)) GTEST_SKIP() << type_ << " cannot map";
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_OK(millpond_device_empty_cache(device_));
  EXPECT_OK(millpond_device_set_limit(device_, 64u << 20));
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) {
    void* out = nullptr;
    ASSERT_OK(millpond_pool_alloc(pool_, 4 << 20, nullptr, &out));
    blocks.push_back(out);
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    ASSERT_OK(millpond_pool_free(pool_, blocks[i], nullptr));
  }
  void* large = nullptr;  // half of the memory is free, in eight places
  EXPECT_OK(millpond_pool_alloc(pool_, 32 << 20, nullptr, &large));
  EXPECT_OK(millpond_pool_free(pool_, large, nullptr));
  for (std::size_t i = 1; i < blocks.size(); i += 2) {
    EXPECT_OK(millpond_pool_free(pool_, blocks[i], nullptr));
  }
}

TEST_P(Memory, RunningOutLeavesEverythingWorking) {
  const millpond_device_info device = info(device_);
  const std::uint64_t total = device.total_bytes != 0 ? device.total_bytes : device.max_alloc_bytes;
  const std::uint64_t failures = stats().out_of_memory_count;
  int mark = 0;
  void* const sentinel = &mark;
  void* out = sentinel;
  EXPECT_FAILS(MILLPOND_E_OUT_OF_MEMORY,
               millpond_alloc(device_, static_cast<std::size_t>(total + total / 2), &out));
  EXPECT_EQ(sentinel, out) << "an output was written by a failed call";
  EXPECT_EQ(failures + 1, stats().out_of_memory_count);
  void* block = alloc(1000);
  write(block, pattern(3, 1000));
  EXPECT_EQ(pattern(3, 1000), read(block, 1000));
  EXPECT_OK(millpond_free(block));
}

TEST_P(Memory, BlockInfoAnswersForEveryByte) {
  void* block = alloc(10000);
  for (std::size_t offset :
       {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{9999}}) {
    millpond_block_info found{};
    found.struct_size = sizeof found;
    ASSERT_OK(millpond_get_block(at(block, offset), &found));
    EXPECT_EQ(block, found.base);
    EXPECT_EQ(10000u, found.requested_bytes);
    EXPECT_GE(found.size_bytes, 10000u);
    EXPECT_EQ(device_, found.device);
    EXPECT_EQ(pool_, found.pool);
  }
  EXPECT_OK(millpond_free(block));
}

TEST_P(Memory, PoolsCountForThemselves) {
  millpond_pool* mine = nullptr;
  millpond_pool_options options{};
  options.struct_size = sizeof options;
  options.name = "mine";
  ASSERT_OK(millpond_pool_create(device_, &options, &mine));
  millpond_device* owner = nullptr;
  EXPECT_OK(millpond_pool_get_device(mine, &owner));
  EXPECT_EQ(device_, owner);
  void* other = alloc(5000);
  void* block = nullptr;
  ASSERT_OK(millpond_pool_alloc(mine, 70000, nullptr, &block));
  millpond_stats own{};
  own.struct_size = sizeof own;
  EXPECT_OK(millpond_pool_get_stats(mine, &own));
  EXPECT_EQ(70000u, own.requested_bytes.current);
  EXPECT_EQ(1u, own.blocks.current);
  millpond_block_info found{};
  found.struct_size = sizeof found;
  EXPECT_OK(millpond_get_block(block, &found));
  EXPECT_EQ(mine, found.pool);
  EXPECT_FAILS(MILLPOND_E_BUSY, millpond_pool_destroy(mine));
  EXPECT_OK(millpond_free(block));
  EXPECT_OK(millpond_pool_get_stats(mine, &own));
  EXPECT_EQ(0u, own.blocks.current);
  EXPECT_EQ(70000u, own.requested_bytes.peak);
  EXPECT_OK(millpond_pool_reset_peaks(mine));
  EXPECT_OK(millpond_pool_get_stats(mine, &own));
  EXPECT_EQ(0u, own.requested_bytes.peak);
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_OK(millpond_pool_empty_cache(mine));
  EXPECT_OK(millpond_pool_get_stats(mine, &own));
  EXPECT_EQ(0u, own.reserved_bytes.current);
  EXPECT_OK(millpond_pool_destroy(mine));
  EXPECT_OK(millpond_free(other));
}

TEST_P(Memory, PoolLimitsHold) {
  millpond_pool* mine = nullptr;
  millpond_pool_options options{};
  options.struct_size = sizeof options;
  options.limit_bytes = 32 << 20;
  ASSERT_OK(millpond_pool_create(device_, &options, &mine));
  void* block = nullptr;
  EXPECT_FAILS(MILLPOND_E_OUT_OF_MEMORY, millpond_pool_alloc(mine, 40 << 20, nullptr, &block));
  // What other pools have idle does not help past the limit.
  EXPECT_OK(millpond_free(alloc(64 << 20)));
  EXPECT_FAILS(MILLPOND_E_OUT_OF_MEMORY, millpond_pool_alloc(mine, 40 << 20, nullptr, &block));
  EXPECT_OK(millpond_pool_set_limit(mine, 128 << 20));
  EXPECT_OK(millpond_pool_alloc(mine, 40 << 20, nullptr, &block));
  EXPECT_OK(millpond_pool_free(mine, block, nullptr));
  EXPECT_OK(millpond_pool_destroy(mine));
}

TEST_P(Memory, PinnedMemoryIsOrdinaryToTheHost) {
  if (!can(MILLPOND_CAP_PINNED)) GTEST_SKIP() << type_ << " has no pinned memory";
  const std::size_t size = 100001;
  void* pinned = nullptr;
  ASSERT_OK(millpond_host_alloc(device_, size, &pinned));
  if (GetParam().plugin.empty()) {  // a plugin aligns its own as it likes
    EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(pinned) % 32);
  }
  const std::vector<std::uint8_t> bytes = pattern(6, size);
  std::memcpy(pinned, bytes.data(), size);
  void* block = alloc(size);
  C_Stream queue = can(MILLPOND_CAP_STREAMS) ? stream() : nullptr;
  EXPECT_OK(millpond_copy_async(device_, queue, MILLPOND_COPY_H2D, block, pinned, size));
  EXPECT_OK(millpond_stream_synchronize(device_, queue));
  EXPECT_EQ(bytes, read(block, size));
  EXPECT_OK(millpond_free(block));
  EXPECT_OK(millpond_host_free(device_, pinned));
}

TEST_P(Memory, RegisteredMemoryIsTheCallers) {
  std::vector<std::uint8_t> own = pattern(6, 100001);
  const C_Status status = millpond_host_register(device_, own.data(), own.size());
  if (!GetParam().plugin.empty()) {
    EXPECT_EQ(MILLPOND_E_UNSUPPORTED, millpond_last_error_code());
    GTEST_SKIP() << "the interface of plugins has no call for it";
  }
  ASSERT_OK(status);
  void* block = alloc(own.size());
  C_Stream queue = stream();
  EXPECT_OK(millpond_copy_async(device_, queue, MILLPOND_COPY_H2D, block, own.data(), own.size()));
  EXPECT_OK(millpond_host_unregister(device_, own.data()));
  EXPECT_EQ(own, read(block, own.size()));
  EXPECT_OK(millpond_free(block));
}

TEST_P(Memory, UnifiedMemoryIsSeenByBothSides) {
  if (!can(MILLPOND_CAP_UNIFIED)) GTEST_SKIP() << type_ << " has no unified memory";
  const std::size_t size = 70001;
  void* both = nullptr;
  ASSERT_OK(millpond_unified_alloc(device_, size, &both));
  const std::vector<std::uint8_t> bytes = pattern(8, size);
  std::memcpy(both, bytes.data(), size);
  void* block = alloc(size);
  EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_D2D, block, both, size));
  EXPECT_EQ(bytes, read(block, size));
  EXPECT_OK(millpond_free(block));
  EXPECT_OK(millpond_unified_free(device_, both));
}

TEST_P(Memory, HostSeesDeviceMemoryWhereItSaysSo) {
  if (!can(MILLPOND_CAP_HOST_ACCESS)) GTEST_SKIP() << type_ << " is not visible to the host";
  const std::size_t size = 50000;
  void* block = alloc(size);
  write(block, pattern(2, size));
  const std::vector<std::uint8_t> bytes = pattern(2, size);
  EXPECT_EQ(0, std::memcmp(block, bytes.data(), size));
  EXPECT_OK(millpond_free(block));
}

TEST_P(Memory, SizedFreeTakesTheRequestedSize) {
  void* block = alloc(12345);
  EXPECT_FAILS(MILLPOND_E_WRONG_SIZE, millpond_free_sized(block, 12344));
  EXPECT_FAILS(MILLPOND_E_WRONG_SIZE, millpond_free_sized(block, 0));
  millpond_block_info found{};
  found.struct_size = sizeof found;
  EXPECT_OK(millpond_get_block(block, &found)) << "the refused free freed it";
  EXPECT_OK(millpond_free_sized(block, 12345));
}

TEST_P(Memory, ManyBlocksComeAndGo) {
  std::vector<void*> blocks;
  std::uint64_t random = 12345;
  for (int step = 0; step < 5000; ++step) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t pick = random >> 33;
    if (blocks.size() < 20 || (blocks.size() < 300 && pick % 2 == 0)) {
      const std::size_t size = std::size_t{1} << (pick % 19);
      blocks.push_back(alloc(size + pick % 777));
      ASSERT_NE(nullptr, blocks.back());
    } else {
      const std::size_t index = pick % blocks.size();
      ASSERT_OK(millpond_free(blocks[index]));
      blocks[index] = blocks.back();
      blocks.pop_back();
    }
  }
  const std::set<void*> distinct(blocks.begin(), blocks.end());
  EXPECT_EQ(blocks.size(), distinct.size());
  for (void* block : blocks) EXPECT_OK(millpond_free(block));
}

}  // namespace
}  // namespace millpond_tests
