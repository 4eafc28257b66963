// StreamResource against libcu++ itself: the concepts, the type-erased resources over it, and its
// own stream type. It runs on the host device, so no GPU and no CUDA library is needed.
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // libcu++ 2 hides the header without it
#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

using millpond::StreamResource;
using Device = cuda::mr::device_accessible;
using Host = cuda::mr::host_accessible;
using Both = StreamResource<Device, Host>;

#if CCCL_MAJOR_VERSION >= 3
static_assert(cuda::mr::synchronous_resource<StreamResource<>>);
static_assert(cuda::mr::resource<StreamResource<>>);
static_assert(cuda::mr::resource_with<StreamResource<Device>, Device>);
static_assert(!cuda::mr::resource_with<StreamResource<Device>, Host>);
static_assert(cuda::mr::resource_with<Both, Device, Host>);
static_assert(cuda::mr::synchronous_resource_with<Both, Device, Host>);
#else
static_assert(cuda::mr::resource<StreamResource<>>);
static_assert(cuda::mr::async_resource<StreamResource<>>);
static_assert(cuda::mr::async_resource_with<StreamResource<Device>, Device>);
static_assert(!cuda::mr::async_resource_with<StreamResource<Device>, Host>);
static_assert(cuda::mr::async_resource_with<Both, Device, Host>);
#endif

namespace {

/// What a library does that takes any resource: it sees the erased type only.
template <typename Erased>
void* allocate_of(Erased& resource, cuda::stream_ref stream, std::size_t size) {
#if CCCL_MAJOR_VERSION >= 3
  return resource.allocate(stream, size, 512);
#else
  return resource.allocate_async(size, 512, stream);
#endif
}

template <typename Erased>
void free_of(Erased& resource, cuda::stream_ref stream, void* address, std::size_t size) {
#if CCCL_MAJOR_VERSION >= 3
  resource.deallocate(stream, address, size, 512);
#else
  resource.deallocate_async(address, size, 512, stream);
#endif
}

template <typename Erased>
int use(Erased resource, millpond::PoolView pool, const millpond::Stream& stream) {
  const cuda::stream_ref ref(reinterpret_cast<cudaStream_t>(stream.get()));
  void* block = allocate_of(resource, ref, 1000);
  REQUIRE(block != nullptr && pool.stats().blocks.current == 1);
  millpond_block_info info{};
  info.struct_size = sizeof info;
  REQUIRE(millpond_get_block(block, &info) == C_SUCCESS && info.stream == stream.get());
  free_of(resource, ref, block, 1000);
  REQUIRE(pool.stats().blocks.current == 0);
  bool refused = false;
  try {
    (void)allocate_of(resource, ref, static_cast<std::size_t>(-1) / 2);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  REQUIRE(refused);
  return 0;
}

}  // namespace

int main() {
  const millpond::Device device("host");
  const millpond::Stream stream(device);
  millpond::Pool pool(device), other(device);
  Both resource(pool, MILLPOND_CAP_HOST_ACCESS), same(pool), different(other);
#if CCCL_MAJOR_VERSION >= 3
  if (use(cuda::mr::resource_ref<Device>(resource), pool, stream) != 0) return 1;
  if (use(cuda::mr::resource_ref<Device, Host>(resource), pool, stream) != 0) return 1;
  if (use(cuda::mr::any_resource<Device>(resource), pool, stream) != 0) return 1;
  const cuda::mr::any_resource<Device> one(resource), two(same), three(different);
#else
  if (use(cuda::mr::async_resource_ref<Device>(resource), pool, stream) != 0) return 1;
  if (use(cuda::mr::async_resource_ref<Device, Host>(resource), pool, stream) != 0) return 1;
  const cuda::mr::async_resource_ref<Device> one(resource), two(same), three(different);
#endif
  REQUIRE(one == two && one != three);
  return 0;
}
