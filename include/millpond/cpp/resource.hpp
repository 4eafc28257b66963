// Memory resources of the kind that CUDA C++ code takes: libcu++'s cuda::mr concepts, and RMM's
// resources, old and new. No header of CUDA, libcu++ or RMM is needed: their types are template
// arguments, or are recognised by their shape.
//
//   // libcu++, and RMM from 26.06 on
//   millpond::StreamResource<cuda::mr::device_accessible> resource(pool);
//   // RMM 24.06 to 26.04
//   millpond::VirtualResource<rmm::mr::device_memory_resource, rmm::cuda_stream_view> old(pool);
//
// Needs exceptions, since these interfaces have no other way to fail.
#ifndef MILLPOND_CPP_RESOURCE_HPP
#define MILLPOND_CPP_RESOURCE_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "millpond/cpp/aligned.hpp"
#include "millpond/cpp/device.hpp"
#include "millpond/cpp/memory.hpp"
#include "millpond/cpp/stream.hpp"

#if MILLPOND_CPP_EXCEPTIONS

namespace millpond {
inline namespace MILLPOND_CPP_ABI {
namespace detail {

template <typename T, typename = void>
struct is_complete : std::false_type {};
template <typename T>
struct is_complete<T, decltype(void(sizeof(T)))> : std::true_type {};

/// A handle such as C_Stream, cudaStream_t or hipStream_t: a pointer to an incomplete struct. So a
/// pointer to data is not accepted as a stream.
template <typename T>
struct is_stream_handle : std::false_type {};
template <typename T>
struct is_stream_handle<T*>
    : std::bool_constant<std::is_class<T>::value && !is_complete<T>::value> {};

template <typename S>
using get_result = std::decay_t<decltype(std::declval<const S&>().get())>;
template <typename S>
using value_result = std::decay_t<decltype(std::declval<const S&>().value())>;

template <typename S, template <typename> class Result, typename = void>
struct gives_stream : std::false_type {};
template <typename S, template <typename> class Result>
struct gives_stream<S, Result, std::void_t<Result<S>>> : is_stream_handle<Result<S>> {};

/// Whether stream_handle() accepts an S: a handle, or an object whose get() (cuda::stream_ref,
/// StreamView) or value() (rmm::cuda_stream_view) returns one.
template <typename S>
struct is_stream
    : std::bool_constant<is_stream_handle<S>::value || gives_stream<S, get_result>::value ||
                         gives_stream<S, value_result>::value> {};

template <typename S>
C_Stream stream_handle(const S& stream) noexcept {
  if constexpr (is_stream_handle<S>::value) {
    return reinterpret_cast<C_Stream>(stream);
  } else if constexpr (gives_stream<S, get_result>::value) {
    return reinterpret_cast<C_Stream>(stream.get());
  } else {
    return reinterpret_cast<C_Stream>(stream.value());
  }
}

template <typename P, typename = void>
struct is_plain_property : std::true_type {};
template <typename P>
struct is_plain_property<P, std::void_t<typename P::value_type>> : std::false_type {};

template <typename P, typename... List>
inline constexpr bool is_one_of = (std::is_same<P, List>::value || ...);

}  // namespace detail

/// A memory resource over a pool, in stream order. A value that owns nothing: copies serve the same
/// pool, which must outlive them and their blocks. Usable from many threads at once.
///
/// It is a cuda::mr::resource and synchronous_resource (libcu++ 3), an async_resource and resource
/// (libcu++ 2, where the macro LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is set), and has
/// each of `Properties`, types without a value such as cuda::mr::device_accessible. Which of them
/// are true of the device is for the caller to know; the constructor can check.
///
/// Streams: anything whose handle the device knows, as cudaStream_t, cuda::stream_ref,
/// rmm::cuda_stream_view, C_Stream, StreamView. A handle that is NULL is the default stream.
///
/// Failures throw BadAlloc, a std::bad_alloc, with the reason. 0 bytes give nullptr, and freeing
/// that does nothing. Freeing never throws; what cannot be freed stays, and the thread's last error
/// says why.
template <typename... Properties>
class StreamResource {
  static_assert((detail::is_plain_property<Properties>::value && ...),
                "a property with a value needs get_property() of your own");

 public:
  /// What a caller that names no alignment gets: that of CUDA's own allocations. [B]
  static constexpr std::size_t kDefaultAlignment = 256;

  /// Serves `pool`. Throws Error: MILLPOND_E_UNSUPPORTED if its device lacks one of `caps`
  /// (MILLPOND_CAP_*): pass MILLPOND_CAP_HOST_ACCESS if Properties say host-accessible.
  explicit StreamResource(PoolView pool, std::uint32_t caps = 0)
      : pool_(pool), device_(pool.device()) {
    const millpond_device_info info = device_.info();
    if ((info.caps & caps) != caps) {
      detail::refuse(MILLPOND_E_UNSUPPORTED, "the device cannot do what the resource is to claim");
    }
    sure_alignment_ = detail::sure_alignment(info);
  }
  /// Serves the device's default pool.
  explicit StreamResource(Device on, std::uint32_t caps = 0)
      : StreamResource(on.default_pool(), caps) {}

  /// The pool that it serves.
  PoolView pool() const noexcept { return pool_; }
  /// The pool's device.
  Device device() const noexcept { return device_; }

  /// A block that work queued on `stream` from now on may use.
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  [[nodiscard]] void* allocate(const S& stream, std::size_t size_bytes,
                               std::size_t alignment = kDefaultAlignment) const {
    return take(detail::stream_handle(stream), size_bytes, alignment);
  }
  /// Frees it in the stream's order. Size and alignment must be those of the allocation.
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  void deallocate(const S& stream, void* address, std::size_t,
                  std::size_t alignment = kDefaultAlignment) const noexcept {
    give(detail::stream_handle(stream), address, alignment);
  }
  /// A block without a stream, which every stream and (if it can access it) the host may use at
  /// once.
  [[nodiscard]] void* allocate_sync(std::size_t size_bytes,
                                    std::size_t alignment = kDefaultAlignment) const {
    if (size_bytes == 0) return nullptr;
    return detail::allocate_unordered(pool_.get(), size_bytes, alignment);
  }
  /// Frees a block of allocate_sync(). Work that uses it may still be queued on any stream.
  void deallocate_sync(void* address, std::size_t,
                       std::size_t alignment = kDefaultAlignment) const noexcept {
    detail::free_unordered(device_.get(), address, alignment, sure_alignment_);
  }

  /// The names that libcu++ 2 has for the same four calls.
  [[nodiscard]] void* allocate(std::size_t size_bytes,
                               std::size_t alignment = kDefaultAlignment) const {
    return allocate_sync(size_bytes, alignment);
  }
  /// As deallocate_sync().
  void deallocate(void* address, std::size_t size_bytes,
                  std::size_t alignment = kDefaultAlignment) const noexcept {
    deallocate_sync(address, size_bytes, alignment);
  }
  /// As allocate(stream, size_bytes, alignment).
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  [[nodiscard]] void* allocate_async(std::size_t size_bytes, std::size_t alignment,
                                     const S& stream) const {
    return take(detail::stream_handle(stream), size_bytes, alignment);
  }
  /// The same at the default alignment.
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  [[nodiscard]] void* allocate_async(std::size_t size_bytes, const S& stream) const {
    return take(detail::stream_handle(stream), size_bytes, kDefaultAlignment);
  }
  /// As deallocate(stream, address, size_bytes, alignment).
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  void deallocate_async(void* address, std::size_t, std::size_t alignment,
                        const S& stream) const noexcept {
    give(detail::stream_handle(stream), address, alignment);
  }
  /// The same at the default alignment.
  template <typename S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
  void deallocate_async(void* address, std::size_t, const S& stream) const noexcept {
    give(detail::stream_handle(stream), address, kDefaultAlignment);
  }

  /// Whether both serve the same pool; each can free what the other allocated then.
  friend bool operator==(const StreamResource& a, const StreamResource& b) noexcept {
    return a.pool_.get() == b.pool_.get();
  }
  /// The opposite.
  friend bool operator!=(const StreamResource& a, const StreamResource& b) noexcept {
    return !(a == b);
  }
  /// Tells libcu++ that the resource has the property P, one of Properties.
  template <typename P, std::enable_if_t<detail::is_one_of<P, Properties...>, int> = 0>
  friend constexpr void get_property(const StreamResource&, P) noexcept {}

 private:
  void* take(C_Stream stream, std::size_t size_bytes, std::size_t alignment) const {
    if (size_bytes == 0) return nullptr;
    const auto on_stream = [&](std::size_t bytes, void** out) {
      return millpond_pool_alloc(pool_.get(), bytes, stream, out);
    };
    const auto aligned = [&](std::size_t bytes, std::size_t at, void** out) {
      return millpond_pool_alloc_aligned(pool_.get(), bytes, at, stream, out);
    };
    const auto back = [&](void* block) { return millpond_pool_free(pool_.get(), block, stream); };
    return detail::allocate_aligned(size_bytes, alignment, on_stream, aligned, back);
  }
  void give(C_Stream stream, void* address, std::size_t alignment) const noexcept {
    if (address == nullptr) return;
    void* const block = detail::block_start(address, alignment, sure_alignment_);
    // A stream that has ended orders nothing any more; the block knows its own.
    if (millpond_pool_free(pool_.get(), block, stream) != C_SUCCESS) (void)millpond_free(block);
  }

  PoolView pool_;
  Device device_;
  std::size_t sure_alignment_ = 1;  // [B] of every block of the device
};

/// The same pool for code that wants a class with virtual functions, as RMM 24.06 to 26.04 does:
/// `Base` is rmm::mr::device_memory_resource, `Stream` is rmm::cuda_stream_view. Any Base will do
/// that has do_allocate(std::size_t, Stream), do_deallocate(void*, std::size_t, Stream), both
/// virtual, and do_is_equal(const Base&) const noexcept. Failures throw BadAlloc.
template <typename Base, typename Stream>
class VirtualResource final : public Base {
 public:
  /// Serves `pool`, which must outlive it and its blocks.
  explicit VirtualResource(PoolView pool) : resource_(pool) {}
  /// Serves the device's default pool.
  explicit VirtualResource(Device on) : resource_(on) {}
  /// The pool that it serves.
  PoolView pool() const noexcept { return resource_.pool(); }

 private:
  void* do_allocate(std::size_t size_bytes, Stream stream) override {
    return resource_.allocate(stream, size_bytes);
  }
  void do_deallocate(void* address, std::size_t size_bytes, Stream stream) noexcept override {
    resource_.deallocate(stream, address, size_bytes);
  }
  bool do_is_equal(const Base& other) const noexcept override {
    if (this == &other) return true;
#if defined(__cpp_rtti) || defined(__GXX_RTTI) || defined(_CPPRTTI)
    const auto* same = dynamic_cast<const VirtualResource*>(&other);
    return same != nullptr && same->resource_ == resource_;
#else
    return false;
#endif
  }

  StreamResource<> resource_;
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_EXCEPTIONS
#endif  // MILLPOND_CPP_RESOURCE_HPP
