// The adapters for code that takes libcu++'s or RMM's memory resources.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"
#include "support/pattern.hpp"
#include "support/resource_concepts.hpp"

namespace {

using millpond::BadAlloc;
using millpond::Device;
using millpond::Pool;
using millpond::Stream;
using millpond::StreamResource;

using Resource = StreamResource<cuda_like::device_accessible>;
using Virtual =
    millpond::VirtualResource<rmm_like::device_memory_resource, rmm_like::cuda_stream_view>;

static_assert(cuda_like::new_resource<Resource> && cuda_like::new_resource<const Resource>);
static_assert(cuda_like::old_async_resource<Resource>);
static_assert(cuda_like::new_resource<StreamResource<>>);
static_assert(cuda_like::has_property<Resource, cuda_like::device_accessible>);
static_assert(!cuda_like::has_property<Resource, cuda_like::host_accessible>);
static_assert(!cuda_like::has_property<StreamResource<>, cuda_like::device_accessible>);
static_assert(std::is_copy_assignable<Resource>::value);
static_assert(std::is_nothrow_move_constructible<Resource>::value);
static_assert(noexcept(std::declval<Resource&>().deallocate_sync(nullptr, 1, 1)));
// The tests of the concepts must be able to fail.
static_assert(!cuda_like::new_resource<std::vector<int>> && !cuda_like::old_resource<Stream>);

// What is a stream, and what is not.
using millpond::detail::is_stream;
static_assert(is_stream<C_Stream>::value && is_stream<cudaStream_t>::value);
static_assert(is_stream<millpond::StreamView>::value && is_stream<Stream>::value);
static_assert(is_stream<cuda_like::stream_ref>::value);
static_assert(is_stream<rmm_like::cuda_stream_view>::value);
static_assert(!is_stream<void*>::value && !is_stream<char*>::value && !is_stream<int>::value);
static_assert(!is_stream<std::size_t>::value && !is_stream<std::nullptr_t>::value);
static_assert(!is_stream<std::string*>::value && !is_stream<std::unique_ptr<float>>::value);

class MemoryResources : public ::testing::Test {
 protected:
  void SetUp() override { before_ = device_.stats().blocks.current; }
  void TearDown() override {
    device_.synchronize();
    EXPECT_EQ(before_, device_.stats().blocks.current);
  }
  static cudaStream_t as_cuda(const Stream& stream) {
    return reinterpret_cast<cudaStream_t>(stream.get());
  }
  Device device_{"host", 0};
  std::uint64_t before_ = 0;
};

template <typename S>
void comes_back_on(const Resource& resource, const S& stream, Device device, C_Stream raw) {
  void* p = resource.allocate(stream, 1000);
  millpond_block_info info{};
  info.struct_size = sizeof info;
  ASSERT_OK(millpond_get_block(p, &info));
  EXPECT_EQ(raw, info.stream);
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(p) % 256);
  resource.deallocate(stream, p, 1000);
  // In stream order: the next request of that stream gets it at once.
  void* again = resource.allocate_async(1000, 256, stream);
  EXPECT_EQ(p, again);
  resource.deallocate_async(again, 1000, 256, stream);
  (void)device;
}

TEST_F(MemoryResources, EveryKindOfStreamOrdersTheBlock) {
  const Resource resource(device_);
  const Stream stream(device_);
  comes_back_on(resource, stream, device_, stream.get());
  comes_back_on(resource, millpond::StreamView(stream), device_, stream.get());
  comes_back_on(resource, stream.get(), device_, stream.get());
  comes_back_on(resource, as_cuda(stream), device_, stream.get());
  comes_back_on(resource, cuda_like::stream_ref(as_cuda(stream)), device_, stream.get());
  comes_back_on(resource, rmm_like::cuda_stream_view(as_cuda(stream)), device_, stream.get());
  comes_back_on(resource, cudaStream_t{}, device_, nullptr);
}

TEST_F(MemoryResources, NothingWaitsForWorkOnTheStream) {
  const Resource resource(device_);
  const Stream stream(device_);
  millpond_tests::Gate gate;
  ASSERT_OK(gate.close(device_.get(), stream.get()));
  void* p = resource.allocate(stream, 4096);
  stream.memset(p, 7, 4096);
  resource.deallocate(stream, p, 4096);
  gate.open();
  stream.synchronize();
}

TEST_F(MemoryResources, AnyAlignmentWorksOnEveryPath) {
  Pool pool(device_);
  const Stream stream(device_);
  for (const Resource& resource : {Resource(device_), Resource(pool)}) {
    for (std::size_t alignment = 1; alignment <= (std::size_t{4} << 20); alignment *= 4) {
      for (std::size_t size : {std::size_t{1}, std::size_t{10000}}) {
        std::vector<void*> several;
        for (int i = 0; i < 16; ++i) {
          several.push_back(i % 2 == 0 ? resource.allocate(stream, size, alignment)
                                       : resource.allocate_sync(size, alignment));
          EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(several.back()) % alignment);
          stream.memset(several.back(), static_cast<std::uint8_t>(i), size);
        }
        stream.synchronize();
        for (int i = 0; i < 16; ++i) {
          if (i % 2 == 0) {
            resource.deallocate(stream, several[i], size, alignment);
          } else {
            resource.deallocate_sync(several[i], size, alignment);
          }
        }
        EXPECT_EQ(before_, device_.stats().blocks.current) << alignment;
      }
    }
  }
}

TEST_F(MemoryResources, ASyncBlockIsUsableAtOnceByAll) {
  Pool pool(device_);
  for (const Resource& resource : {Resource(device_), Resource(pool)}) {
    const Stream a(device_), b(device_);
    auto* p = static_cast<unsigned char*>(resource.allocate_sync(100));
    std::fill(p, p + 100, static_cast<unsigned char>(1));
    a.memset(p, 2, 50);
    b.memset(p + 50, 3, 50);
    a.synchronize();
    b.synchronize();
    EXPECT_EQ(2, p[0]);
    EXPECT_EQ(3, p[99]);
    resource.deallocate_sync(p, 100);
    p = static_cast<unsigned char*>(resource.allocate(64, 64));
    resource.deallocate(p, 64, 64);
  }
}

TEST_F(MemoryResources, AResourceServesItsPool) {
  Pool pool(device_, 64 << 20), other(device_);
  const Resource a(pool), b(pool), c(other), d(device_);
  EXPECT_TRUE(a == b && !(a != b) && a != c && a != d && d == Resource(device_));
  EXPECT_EQ(pool.get(), a.pool().get());
  EXPECT_EQ(device_, a.device());
  void* p = a.allocate(cudaStream_t{}, 1 << 20);
  EXPECT_EQ(1u, pool.stats().blocks.current);
  EXPECT_EQ(0u, other.stats().blocks.current);
  b.deallocate(cudaStream_t{}, p, 1 << 20);
  EXPECT_EQ(0u, pool.stats().blocks.current);
}

std::uint32_t code_of(const Resource& resource, C_Stream stream, std::size_t size,
                      std::size_t alignment) {
  try {
    resource.deallocate(stream, resource.allocate(stream, size, alignment), size, alignment);
    return MILLPOND_OK;
  } catch (const std::bad_alloc& error) {
    EXPECT_STRNE("", error.what());
    EXPECT_STRNE("std::bad_alloc", error.what()) << "no reason was given";
    return dynamic_cast<const BadAlloc&>(error).code();
  }
}

TEST_F(MemoryResources, AFailureIsABadAllocWithAReason) {
  Pool pool(device_, 4 << 20);
  const Resource resource(pool);
  constexpr std::size_t kMost = static_cast<std::size_t>(-1);
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of(resource, nullptr, 64 << 20, 256));
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of(resource, nullptr, kMost, 1));
  EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, code_of(resource, nullptr, kMost - 4096, 1 << 22));
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of(resource, nullptr, 100, 0));
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of(resource, nullptr, 100, 48));
  Stream stream(device_);
  const C_Stream gone = stream.get();
  stream = Stream();
  EXPECT_EQ(MILLPOND_E_UNKNOWN_STREAM, code_of(resource, gone, 100, 256));
  EXPECT_EQ(MILLPOND_OK, code_of(resource, nullptr, 100, 256));
  EXPECT_THROW((void)resource.allocate_sync(64 << 20), BadAlloc);

  const BadAlloc why(MILLPOND_E_DEVICE, std::string(1000, 'x').c_str());
  EXPECT_EQ(239u, std::string(why.what()).size()) << "a long message is cut, with its end";
  EXPECT_THROW(Resource(Device("host"), MILLPOND_CAP_HOST_ACCESS | 0x80000000u), millpond::Error);
  EXPECT_THROW(Resource{millpond::PoolView()}, millpond::Error);
}

TEST_F(MemoryResources, NoBytesAreNullAndFreeingNeverThrows) {
  const Resource resource(device_);
  EXPECT_EQ(nullptr, resource.allocate(cudaStream_t{}, 0));
  EXPECT_EQ(nullptr, resource.allocate_sync(0));
  resource.deallocate(cudaStream_t{}, nullptr, 0);
  resource.deallocate_sync(nullptr, 0);
  int mine = 0;
  resource.deallocate(cudaStream_t{}, &mine, sizeof mine);
  EXPECT_EQ(MILLPOND_E_UNKNOWN_POINTER, millpond_last_error_code());
  // A stream that ended before the free.
  Stream stream(device_);
  void* p = resource.allocate(stream, 100);
  const C_Stream gone = stream.get();
  stream = Stream();
  resource.deallocate(gone, p, 100);
}

TEST_F(MemoryResources, ManyThreadsShareOne) {
  const Resource resource(device_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&resource, t, this] {
      const Stream stream(device_);
      for (int i = 0; i < 500; ++i) {
        const std::size_t size = static_cast<std::size_t>(i * 37 % 9000 + 1);
        const std::size_t alignment = std::size_t{1} << (i + t) % 13;
        void* p = resource.allocate(stream, size, alignment);
        stream.memset(p, static_cast<std::uint8_t>(t), size);
        resource.deallocate(stream, p, size, alignment);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(MemoryResources, OldRmmCodeAllocatesThroughItsBaseClass) {
  const Stream stream(device_);
  Pool pool(device_);
  Virtual resource(pool), same(pool), other(device_);
  rmm_like::device_memory_resource& base = resource;
  void* p = base.allocate(1000, as_cuda(stream));
  EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(p) % 256);
  EXPECT_EQ(1u, pool.stats().blocks.current);
  base.deallocate(p, 1000, as_cuda(stream));
  EXPECT_EQ(0u, pool.stats().blocks.current);
  EXPECT_TRUE(base.is_equal(same) && base.is_equal(base));
  EXPECT_FALSE(base.is_equal(other));
  EXPECT_THROW(base.allocate(static_cast<std::size_t>(-1), {}), std::bad_alloc);
  EXPECT_EQ(nullptr, base.allocate(0));
}

}  // namespace
