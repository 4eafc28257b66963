// Standard containers over device memory.
#include <cstdint>
#include <cstring>
#include <list>
#include <memory_resource>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"

namespace {

using millpond::Allocator;
using millpond::Device;
using millpond::MemoryResource;

class Pmr : public ::testing::Test {
 protected:
  void SetUp() override { before_ = blocks_left(); }
  void TearDown() override { EXPECT_EQ(before_, blocks_left()); }
  std::uint64_t blocks() const { return device_.stats().blocks.current; }
  std::uint64_t blocks_left() const {
    resource_.trim();
    return blocks();
  }
  millpond_device* owner(const void* address) const {
    millpond_block_info info{};
    info.struct_size = sizeof info;
    EXPECT_OK(millpond_get_block(address, &info));
    return info.device;
  }
  Device device_{"host", 0};
  MemoryResource resource_{device_};
  std::uint64_t before_ = 0;
};

TEST_F(Pmr, AnyAlignmentWorks) {
  for (std::size_t alignment = 1; alignment <= (std::size_t{4} << 20); alignment *= 2) {
    for (std::size_t size : {std::size_t{1}, std::size_t{100}, std::size_t{10000}}) {
      std::vector<void*> several;
      for (int i = 0; i < 4; ++i) {
        several.push_back(resource_.allocate(size, alignment));
        EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(several.back()) % alignment);
        std::memset(several.back(), i, size);
      }
      for (void* p : several) resource_.deallocate(p, size, alignment);
    }
    EXPECT_EQ(before_, blocks_left()) << alignment;
  }
}

TEST_F(Pmr, NoBytesHaveAnAddressOfTheirOwn) {
  void* a = resource_.allocate(0);
  void* b = resource_.allocate(0);
  EXPECT_NE(nullptr, a);
  EXPECT_NE(a, b);
  resource_.deallocate(a, 0);
  resource_.deallocate(b, 0);
}

TEST_F(Pmr, ContainersLiveOnTheDevice) {
  {
    std::pmr::vector<std::uint64_t> numbers(&resource_);
    for (std::uint64_t i = 0; i < 10000; ++i) numbers.push_back(i);
    std::pmr::unordered_map<int, std::pmr::string> map(&resource_);
    for (int i = 0; i < 100; ++i) map[i] = std::string(100, static_cast<char>('a' + i % 26));
    EXPECT_GT(blocks(), before_);
    EXPECT_EQ(device_.get(), owner(&map[25]));
    EXPECT_EQ(device_.get(), owner(map[25].data()));
    EXPECT_EQ(9999u, numbers.back());
    EXPECT_EQ(std::string(100, 'a' + 25), std::string(map[25]));
    EXPECT_EQ(device_.get(), owner(numbers.data()));
  }
}

TEST_F(Pmr, OutOfMemoryIsBadAlloc) {
  const volatile std::size_t largest = static_cast<std::size_t>(-1);  // not for the compiler's eyes
  EXPECT_THROW((void)resource_.allocate(largest), std::bad_alloc);
  EXPECT_THROW((void)resource_.allocate(largest - 100, 1 << 20), std::bad_alloc);
  EXPECT_EQ(static_cast<std::uint32_t>(MILLPOND_E_OUT_OF_MEMORY), millpond_last_error_code());
  Allocator<double> allocator(device_);
  EXPECT_THROW((void)allocator.allocate(largest / 4), std::bad_alloc);
}

TEST_F(Pmr, EqualWhenTheyServeTheSameDevice) {
  const MemoryResource same(device_);
  const MemoryResource other(Device("host", 1));
  EXPECT_TRUE(resource_ == same);
  EXPECT_FALSE(resource_ == other);
  EXPECT_FALSE(resource_ == *std::pmr::new_delete_resource());
  EXPECT_TRUE(resource_.is_equal(resource_));
  void* p = resource_.allocate(100);
  const_cast<MemoryResource&>(same).deallocate(p, 100);
}

TEST_F(Pmr, StandardAllocator) {
  std::vector<float, Allocator<float>> numbers{Allocator<float>(device_)};
  numbers.assign(1000, 2.5f);
  std::list<int, Allocator<int>> list{Allocator<int>(numbers.get_allocator())};
  list.assign(50, 3);
  EXPECT_EQ(before_ + 2, blocks()) << "the numbers, and a block of 50 nodes";
  EXPECT_EQ(device_.get(), owner(&list.back()));
  EXPECT_TRUE(Allocator<int>(device_) == Allocator<float>(device_));
  EXPECT_TRUE(Allocator<int>(device_) != Allocator<float>(Device("cpu")));
  const std::vector<float, Allocator<float>> moved = std::move(numbers);
  EXPECT_EQ(2.5f, moved[999]);
}

TEST_F(Pmr, SmallRequestsShareBlocks) {
  std::pmr::list<int> list(10000, 7, &resource_);
  EXPECT_LT(blocks(), before_ + 10);
  EXPECT_EQ(device_.get(), owner(&list.back()));
  for (const int value : list) EXPECT_EQ(7, value);
  // Any size and alignment, apart from each other.
  std::vector<std::pair<unsigned char*, std::size_t>> all;
  for (std::size_t size = 0; size <= 600; size += 7) {
    for (const std::size_t alignment : {1u, 8u, 16u, 64u, 256u, 512u, 1024u}) {
      auto* const p = static_cast<unsigned char*>(resource_.allocate(size, alignment));
      EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(p) % alignment);
      std::memset(p, static_cast<int>(all.size() % 251), size);
      all.emplace_back(p, size);
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t at = 0; at < all[i].second; ++at) ASSERT_EQ(i % 251, all[i].first[at]);
  }
  std::size_t i = 0;
  for (std::size_t size = 0; size <= 600; size += 7) {
    for (const std::size_t alignment : {1u, 8u, 16u, 64u, 256u, 512u, 1024u}) {
      resource_.deallocate(all[i++].first, size, alignment);
    }
  }
}

TEST_F(Pmr, ANodeThatIsFreedTwiceIsNotGivenTwice) {
  void* const p = resource_.allocate(24);
  resource_.deallocate(p, 24);
  resource_.deallocate(p, 24);
  void* const a = resource_.allocate(24);
  void* const b = resource_.allocate(24);
  EXPECT_NE(a, b);
  resource_.deallocate(static_cast<char*>(a) + 1, 24);  // lies inside one
  void* const c = resource_.allocate(24);
  EXPECT_NE(a, c);
  for (void* q : {a, b, c}) resource_.deallocate(q, 24);
}

TEST_F(Pmr, ThreadsFreeWhatOthersAllocate) {
  std::vector<void*> given[4];
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, &to = given[t], t] {
      MemoryResource own(device_);
      for (int i = 0; i < 20000; ++i) {
        to.push_back(own.allocate(40));
        std::memset(to.back(), t, 40);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, &from = given[3 - t], t] {
      for (void* p : from) {
        EXPECT_EQ(3 - t, *static_cast<char*>(p));
        resource_.deallocate(p, 40);
        resource_.deallocate(resource_.allocate(40), 40);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Pmr, AnotherPoolCountsEachRequest) {
  millpond::Pool pool(device_, 64u << 20, "mine");
  MemoryResource resource(pool);
  std::pmr::list<int> list(100, 7, &resource);
  EXPECT_EQ(100u, pool.stats().blocks.current);
  EXPECT_TRUE(resource == resource_) << "they serve the same device";
  list.splice(list.begin(), std::pmr::list<int>(10, 8, &resource));
  list.clear();
  EXPECT_EQ(0u, pool.stats().blocks.current);
  // Each frees what the other has allocated, and nothing else.
  int* const neighbour = static_cast<int*>(resource_.allocate(24));
  *neighbour = 5;
  void* const node = resource_.allocate(24);
  void* const block = resource.allocate(24);
  resource.deallocate(node, 24);
  resource_.deallocate(block, 24);
  EXPECT_EQ(0u, pool.stats().blocks.current);
  resource.deallocate(neighbour, 24);
  resource_.trim();
  EXPECT_EQ(before_, blocks());
}

TEST_F(Pmr, AlignedRequestsTakeWhatTheyNeed) {
  const std::size_t big = 8u << 20;
  void* const p = resource_.allocate(big, 2u << 20);
  millpond_block_info info{};
  info.struct_size = sizeof info;
  EXPECT_OK(millpond_get_block(p, &info));
  EXPECT_EQ(big, info.requested_bytes) << "and not an alignment more";
  resource_.deallocate(p, big, 2u << 20);
}

TEST_F(Pmr, SmallNodesShareBlocksUnderThePoolOfTheStandard) {
  std::pmr::unsynchronized_pool_resource nodes(&resource_);
  std::pmr::list<int> list(10000, 7, &nodes);
  EXPECT_LT(blocks(), before_ + 100);
  EXPECT_EQ(device_.get(), owner(&list.back()));
}

TEST_F(Pmr, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 200; ++i) {
        std::pmr::vector<int> numbers(&resource_);
        for (int n = 0; n < 300; ++n) numbers.push_back(n);
        EXPECT_EQ(299, numbers.back());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(PmrRefusal, TheHostMustSeeTheMemory) {
  try {
    MemoryResource resource{Device()};
    FAIL() << "an empty device was taken";
  } catch (const millpond::Error& error) {
    EXPECT_EQ(static_cast<std::uint32_t>(MILLPOND_E_INVALID_ARGUMENT), error.code());
  }
}

}  // namespace
