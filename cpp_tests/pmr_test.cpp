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
  std::uint64_t blocks() const { return device_.stats().blocks.current; }
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
    EXPECT_GT(blocks(), before_ + 100);
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
  EXPECT_EQ(before_ + 51, blocks());
  EXPECT_EQ(device_.get(), owner(&list.back()));
  EXPECT_TRUE(Allocator<int>(device_) == Allocator<float>(device_));
  EXPECT_TRUE(Allocator<int>(device_) != Allocator<float>(Device("cpu")));
  const std::vector<float, Allocator<float>> moved = std::move(numbers);
  EXPECT_EQ(2.5f, moved[999]);
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
