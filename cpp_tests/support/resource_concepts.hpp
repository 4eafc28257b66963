// What libcu++ and RMM ask of a memory resource, written from their documentation, so that the
// adapters are tested where their headers are not to be had; real_headers/ has the real ones.
//
//   new  libcu++ 3, "The cuda::mr::resource and cuda::mr::synchronous_resource concepts"
//   old  libcu++ 2, the same page of its time: async_resource and resource
//   rmm  RMM 24.06 to 26.04, class rmm::mr::device_memory_resource
#ifndef MILLPOND_TESTS_RESOURCE_CONCEPTS_HPP
#define MILLPOND_TESTS_RESOURCE_CONCEPTS_HPP

#include <cstddef>
#include <type_traits>
#include <utility>

// As the CUDA runtime names its streams: a pointer to a struct that it does not show.
struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace cuda_like {

/// As cuda::stream_ref: made from a handle, never from a number or nullptr.
class stream_ref {
 public:
  stream_ref(cudaStream_t stream) noexcept : stream_(stream) {}
  stream_ref(int) = delete;
  stream_ref(std::nullptr_t) = delete;
  cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_;
};

struct device_accessible {};
struct host_accessible {};

template <typename T>
using Equal = decltype(bool(std::declval<const T&>() == std::declval<const T&>()) &&
                       bool(std::declval<const T&>() != std::declval<const T&>()));
template <typename T, typename... Arguments>
using AllocateSync = decltype(std::declval<T&>().allocate_sync(std::declval<Arguments>()...));
template <typename T, typename... Arguments>
using DeallocateSync = decltype(std::declval<T&>().deallocate_sync(std::declval<Arguments>()...));
template <typename T, typename... Arguments>
using Allocate = decltype(std::declval<T&>().allocate(std::declval<Arguments>()...));
template <typename T, typename... Arguments>
using Deallocate = decltype(std::declval<T&>().deallocate(std::declval<Arguments>()...));
template <typename T, typename... Arguments>
using AllocateAsync = decltype(std::declval<T&>().allocate_async(std::declval<Arguments>()...));
template <typename T, typename... Arguments>
using DeallocateAsync = decltype(std::declval<T&>().deallocate_async(std::declval<Arguments>()...));
template <typename T, typename P>
using Property = decltype(get_property(std::declval<const T&>(), std::declval<P>()));

template <typename Void, typename Want, template <typename...> class Call, typename... Arguments>
struct gives_impl : std::false_type {};
template <typename Want, template <typename...> class Call, typename... Arguments>
struct gives_impl<std::void_t<Call<Arguments...>>, Want, Call, Arguments...>
    : std::is_same<Call<Arguments...>, Want> {};
/// Whether the call can be made with these arguments, and gives exactly `Want`.
template <typename Want, template <typename...> class Call, typename... Arguments>
inline constexpr bool gives = gives_impl<void, Want, Call, Arguments...>::value;

using Size = std::size_t;

template <typename T>
inline constexpr bool new_synchronous_resource = gives<void*, AllocateSync, T, Size, Size>&&
    gives<void, DeallocateSync, T, void*, Size, Size>&& gives<bool, Equal, T>;
template <typename T>
inline constexpr bool new_resource =
    new_synchronous_resource<T>&& gives<void*, Allocate, T, stream_ref, Size, Size>&&
        gives<void, Deallocate, T, stream_ref, void*, Size, Size>;
template <typename T>
inline constexpr bool old_resource = gives<void*, Allocate, T, Size, Size>&&
    gives<void, Deallocate, T, void*, Size, Size>&& gives<bool, Equal, T>;
template <typename T>
inline constexpr bool old_async_resource =
    old_resource<T>&& gives<void*, AllocateAsync, T, Size, Size, stream_ref>&&
        gives<void, DeallocateAsync, T, void*, Size, Size, stream_ref>;
template <typename T, typename P>
inline constexpr bool has_property = gives<void, Property, T, P>;

}  // namespace cuda_like

namespace rmm_like {

/// As rmm::cuda_stream_view: its handle is value().
class cuda_stream_view {
 public:
  cuda_stream_view() = default;
  cuda_stream_view(cudaStream_t stream) noexcept : stream_(stream) {}
  cudaStream_t value() const noexcept { return stream_; }
  operator cudaStream_t() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// As rmm::mr::device_memory_resource: public calls over three virtual functions.
class device_memory_resource {
 public:
  virtual ~device_memory_resource() = default;
  void* allocate(std::size_t bytes, cuda_stream_view stream = {}) {
    return do_allocate(bytes, stream);
  }
  void deallocate(void* address, std::size_t bytes, cuda_stream_view stream = {}) {
    do_deallocate(address, bytes, stream);
  }
  bool is_equal(const device_memory_resource& other) const noexcept { return do_is_equal(other); }

 private:
  virtual void* do_allocate(std::size_t bytes, cuda_stream_view stream) = 0;
  virtual void do_deallocate(void* address, std::size_t bytes, cuda_stream_view stream) = 0;
  virtual bool do_is_equal(const device_memory_resource& other) const noexcept {
    return this == &other;
  }
};

}  // namespace rmm_like

#endif  // MILLPOND_TESTS_RESOURCE_CONCEPTS_HPP
