// Resources over resources: a limit, a choice by size, an arena.
#include <cstdint>
#include <thread>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"
#include "support/resource_concepts.hpp"

namespace {

using millpond::ArenaResource;
using millpond::BadAlloc;
using millpond::BinningResource;
using millpond::Device;
using millpond::LimitingResource;
using millpond::Pool;
using millpond::Stream;
using millpond::StreamResource;

using Resource = StreamResource<cuda_like::device_accessible>;
using Limited = LimitingResource<Resource>;
using Binned = BinningResource<Limited, StreamResource<>>;
static_assert(cuda_like::new_resource<Limited> && cuda_like::new_resource<Binned>);
static_assert(cuda_like::has_property<Limited, cuda_like::device_accessible>);
static_assert(!cuda_like::has_property<Limited, cuda_like::host_accessible>);
static_assert(!cuda_like::has_property<Binned, cuda_like::device_accessible>,
              "one of the two does not have it");

class Adaptors : public ::testing::Test {
 protected:
  void SetUp() override { before_ = device_.stats().blocks.current; }
  void TearDown() override {
    device_.synchronize();
    EXPECT_EQ(before_, device_.stats().blocks.current);
  }
  Device device_{"host", 0};
  Stream stream_{device_};
  std::uint64_t before_ = 0;
};

template <typename Call>
std::uint32_t code_of(Call call) {
  try {
    call();
  } catch (const BadAlloc& error) {
    EXPECT_STRNE("", error.what());
    return error.code();
  }
  return MILLPOND_OK;
}

TEST_F(Adaptors, ALimitHoldsToTheByte) {
  const Limited limited(Resource(device_), 1000);
  const Limited copy = limited;
  void* a = limited.allocate(stream_, 600);
  void* b = copy.allocate_sync(400);
  EXPECT_EQ(1000u, limited.used_bytes());
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of([&] { (void)copy.allocate(stream_, 1); }));
  EXPECT_EQ(nullptr, limited.allocate(stream_, 0));
  limited.deallocate(stream_, nullptr, 0);
  limited.deallocate_sync(b, 400);
  b = limited.allocate(stream_, 400);
  copy.deallocate(stream_, a, 600);
  copy.deallocate(stream_, b, 400);
  EXPECT_EQ(0u, copy.used_bytes());
  EXPECT_TRUE(limited == copy && limited != Limited(Resource(device_), 1000));
}

TEST_F(Adaptors, WhatTheUpstreamRefusesIsNotCounted) {
  Pool pool(device_, 2 << 20);
  const Limited limited(Resource(pool), 100u << 20);
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of([&] { (void)limited.allocate(stream_, 50u << 20); }));
  EXPECT_EQ(0u, limited.used_bytes());
}

TEST_F(Adaptors, ThreadsShareALimit) {
  const Limited limited(Resource(device_), 4000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&limited, this] {
      const Stream own(device_);
      for (int i = 0; i < 500; ++i) limited.deallocate(own, limited.allocate(own, 1000), 1000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(0u, limited.used_bytes());
}

TEST_F(Adaptors, SizesGoToTheirBin) {
  Pool small(device_), large(device_);
  const Binned binned(Limited(Resource(small), 1u << 20), StreamResource<>(large), 4096);
  void* a = binned.allocate(stream_, 4096);
  void* b = binned.allocate_sync(4097);
  EXPECT_EQ(1u, small.stats().blocks.current);
  EXPECT_EQ(1u, large.stats().blocks.current);
  EXPECT_EQ(4096u, binned.small().used_bytes());
  binned.deallocate(stream_, a, 4096);
  binned.deallocate_sync(b, 4097);
  EXPECT_EQ(0u, small.stats().blocks.current + large.stats().blocks.current);
  EXPECT_EQ(0u, binned.small().used_bytes());
}

TEST_F(Adaptors, AnArenaCutsChunksAndFreesThemTogether) {
  Pool pool(device_);
  {
    const ArenaResource arena(Resource(pool), stream_, 1 << 20);
    auto* first = static_cast<unsigned char*>(arena.allocate(100));
    auto* second = static_cast<unsigned char*>(arena.allocate(stream_, 100, 1));
    EXPECT_EQ(first + 100, second);
    for (std::size_t alignment = 1; alignment <= 4096; alignment *= 2) {
      EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(arena.allocate(10, alignment)) % alignment);
    }
    EXPECT_EQ(1u, pool.stats().blocks.current);
    // A large request has a chunk of its own, and the others go on in theirs.
    void* large = arena.allocate(3 << 20);
    stream_.memset(large, 1, 3 << 20);
    EXPECT_EQ(2u, pool.stats().blocks.current);
    EXPECT_EQ(4u << 20, arena.reserved_bytes());
    (void)arena.allocate(1000);
    EXPECT_EQ(2u, pool.stats().blocks.current);
    arena.deallocate(stream_, first, 100);
    EXPECT_EQ(nullptr, arena.allocate(0));
    arena.release();
    EXPECT_EQ(0u, pool.stats().blocks.current);
    EXPECT_EQ(first, arena.allocate(100)) << "in the stream's order, so at once";
    const auto copy = arena;
    EXPECT_TRUE(copy == arena);
  }
  EXPECT_EQ(0u, pool.stats().blocks.current);
}

TEST_F(Adaptors, AHookMayAskTheArenaWhoseChunksGo) {
  const ArenaResource arena(Resource(device_), stream_, 1 << 20);
  std::vector<std::size_t> seen;
  const millpond::BlockHook hook(device_, [&](const millpond_block_event& event) {
    if (event.kind == MILLPOND_HOOK_FREE) seen.push_back(arena.reserved_bytes());
  });
  (void)arena.allocate(3 << 20);
  (void)arena.allocate(100);
  arena.release();
  EXPECT_EQ((std::vector<std::size_t>{0, 0}), seen);
}

TEST_F(Adaptors, AnArenaIsOnOneStream) {
  const Stream other(device_);
  const ArenaResource arena(Resource(device_), stream_, 4096);
  const auto refused = MILLPOND_E_INVALID_ARGUMENT;
  EXPECT_EQ(refused, code_of([&] { (void)arena.allocate(other, 100); }));
  EXPECT_EQ(refused, code_of([&] { (void)arena.allocate(100, 48); }));
  EXPECT_EQ(refused, code_of([&] { (void)arena.allocate(100, 0); }));
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY,
            code_of([&] { (void)arena.allocate(static_cast<std::size_t>(-1)); }));
  EXPECT_EQ(0u, arena.reserved_bytes());
}

TEST_F(Adaptors, ACallbackThatIsAskedForMemoryMayReleaseAnArena) {
  Pool pool(device_, 8u << 20);
  const ArenaResource arena(Resource(pool), stream_, 2u << 20);
  const millpond::OomCallback callback(device_, [&arena](std::uint64_t) {
    arena.release();
    return true;
  });
  for (int i = 0; i < 8; ++i) EXPECT_NE(nullptr, arena.allocate(2u << 20));
  EXPECT_LE(arena.reserved_bytes(), 8u << 20);
}

TEST_F(Adaptors, TheyCompose) {
  Pool small(device_), large(device_);
  {
    const BinningResource split(StreamResource<>(small),
                                LimitingResource(StreamResource<>(large), 8u << 20), 65536);
    const ArenaResource arena(split, stream_, 2u << 20);
    (void)arena.allocate(1000);
    EXPECT_EQ(2u << 20, split.large().used_bytes());
    EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of([&] { (void)arena.allocate(7u << 20); }));
    EXPECT_EQ(2u << 20, arena.reserved_bytes());
  }
  EXPECT_EQ(0u, small.stats().blocks.current + large.stats().blocks.current);
}

TEST_F(Adaptors, PoolsServeBlocksWithoutAStream) {
  Pool pool(device_, 4 << 20);
  const millpond::Buffer block = pool.allocate_unordered(1000);
  EXPECT_EQ(1u, pool.stats().blocks.current);
  static_cast<unsigned char*>(block.data())[999] = 1;
  EXPECT_THROW((void)pool.allocate_unordered(64 << 20), millpond::Error);
  millpond::MemoryResource resource(pool);
  void* p = resource.allocate(100);
  EXPECT_EQ(2u, pool.stats().blocks.current);
  resource.deallocate(p, 100);
  EXPECT_TRUE(resource.is_equal(millpond::MemoryResource(device_)));
  std::vector<int, millpond::Allocator<int>> values(100, millpond::Allocator<int>(pool));
  EXPECT_EQ(2u, pool.stats().blocks.current);
  EXPECT_EQ(pool.get(), values.get_allocator().pool().get());
}

}  // namespace
