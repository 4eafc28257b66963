// Standard containers over device memory.
#include <cstdint>
#include <list>
#include <memory_resource>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"

namespace {

using millpond::Allocator;
using millpond::Device;
using millpond::MemoryResource;

class Pmr : public ::testing::Test {
 protected:
  void SetUp() override { before_ = blocks(); }
  void TearDown() override { EXPECT_EQ(before_, blocks()); }
  /// Live blocks but for those that small nodes share, which stay.
  std::size_t blocks() const {
    std::size_t count = 0;
    for (const millpond_block_record& block : device_.blocks()) {
      const std::uint64_t bytes = block.requested_bytes;
      const bool shared = bytes >= millpond::detail::kFirstChunk &&
                          bytes <= millpond::detail::kLargestChunk && (bytes & (bytes - 1)) == 0;
      count += shared ? 0 : 1;
    }
    return count;
  }
  millpond_device* owner(const void* address) const {
    millpond_block_info info{};
    info.struct_size = sizeof info;
    EXPECT_OK(millpond_get_block(address, &info));
    return info.device;
  }
  Device device_{"host", 0};
  MemoryResource resource_{device_};
  std::size_t before_ = 0;
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
    EXPECT_EQ(before_, blocks()) << alignment;
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
  EXPECT_EQ(before_ + 1, blocks());
  EXPECT_EQ(device_.get(), owner(&list.back()));
  EXPECT_TRUE(Allocator<int>(device_) == Allocator<float>(device_));
  EXPECT_TRUE(Allocator<int>(device_) != Allocator<float>(Device("cpu")));
  const std::vector<float, Allocator<float>> moved = std::move(numbers);
  EXPECT_EQ(2.5f, moved[999]);
}

TEST_F(Pmr, NodesDoNotOverlapAndCostWhatTheyHold) {
  for (std::size_t size = 1; size <= 300; size += 7) {
    std::vector<unsigned char*> all;
    const std::uint64_t allocated = device_.stats().allocated_bytes.current;
    for (int i = 0; i < 1000; ++i) {
      all.push_back(static_cast<unsigned char*>(resource_.allocate(size)));
      std::memset(all.back(), i % 251, size);
    }
    if (size <= 256) {
      EXPECT_LE(device_.stats().allocated_bytes.current - allocated, 1000 * (size + 15) + 32768);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(i % 251, all[i][0]);
      EXPECT_EQ(i % 251, all[i][size - 1]);
      resource_.deallocate(all[i], size);
    }
    void* const again = resource_.allocate(size);
    EXPECT_EQ(all.back(), again) << "the last one that was freed comes first";
    resource_.deallocate(again, size);
  }
}

TEST_F(Pmr, NodesGoFromThreadToThread) {
  // Made on one thread and freed on others: the memory comes back to whoever needs it.
  std::uint64_t allocated = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<void*> all;
    std::thread([&] {
      for (int i = 0; i < 5000; ++i) all.push_back(resource_.allocate(48));
    }).join();
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < all.size(); i += 4) resource_.deallocate(all[i], 48);
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (round == 0) allocated = device_.stats().allocated_bytes.current;
  }
  EXPECT_EQ(allocated, device_.stats().allocated_bytes.current);
}

TEST_F(Pmr, NodesOfTwoDevicesAreKeptApart) {
  MemoryResource other(Device("host", 1));
  for (int i = 0; i < 100; ++i) {
    void* const a = resource_.allocate(32);
    void* const b = other.allocate(32);
    EXPECT_EQ(device_.get(), owner(a));
    EXPECT_EQ(Device("host", 1).get(), owner(b));
    resource_.deallocate(a, 32);
    other.deallocate(b, 32);
  }
}

TEST_F(Pmr, NodesOutliveScopes) {
  millpond::Pool own(device_);
  {
    const millpond::PoolScope scope(own);
    std::pmr::list<int> nodes(10000, 7, &resource_);
  }
  EXPECT_EQ(0u, own.stats().blocks.current);
  EXPECT_EQ(C_SUCCESS, own.destroy());
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
