// Pools and the owners of memory. All sizes are in bytes. A Buffer frees its block in the order of
// a stream: work that was queued on that stream before may still use the memory.
#ifndef MILLPOND_CPP_MEMORY_HPP
#define MILLPOND_CPP_MEMORY_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "millpond/cpp/device.hpp"
#include "millpond/cpp/stream.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// A block of device memory that this object owns. Moves, does not copy.
///
/// A block made on a stream (PoolView::allocate) is usable by work queued on that stream from then
/// on, and is freed on it. A block made without one (Device::allocate) is usable at once
/// everywhere, and is reused once every stream has passed its free.
class [[nodiscard]] Buffer {
 public:
  /// Owns nothing.
  Buffer() noexcept = default;
  /// Takes the block over; `other` is left empty.
  Buffer(Buffer&& other) noexcept { swap(other); }
  /// Frees its own block, then takes the other's over.
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  /// Frees the block; never throws. See reset().
  ~Buffer() { reset(); }

  /// Takes over a block of `pool` that is to be freed on `stream`.
  static Buffer adopt(millpond_pool* pool, void* block, std::size_t size_bytes,
                      C_Stream stream) noexcept {
    Buffer out;
    out.pool_ = pool;
    out.data_ = block;
    out.size_ = size_bytes;
    out.stream_ = stream;
    return out;
  }
  /// Takes over a block that belongs to no stream (millpond_alloc).
  static Buffer adopt_unordered(void* block, std::size_t size_bytes) noexcept {
    return adopt(nullptr, block, size_bytes, nullptr);
  }

  /// The device address; the host may access it only if the device has MILLPOND_CAP_HOST_ACCESS.
  void* data() const noexcept { return data_; }
  /// The same, as elements.
  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  /// The requested bytes.
  std::size_t size() const noexcept { return size_; }
  /// Whether it owns a block.
  explicit operator bool() const noexcept { return data_ != nullptr; }
  /// The stream on which the block is freed; NULL for the default stream and for blocks without a
  /// stream.
  C_Stream stream() const noexcept { return stream_; }
  /// Makes the block be freed on another stream of the same device than the one it was made on. The
  /// order of both is kept. Without effect on blocks without a stream.
  void set_stream(StreamView stream) noexcept {
    if (pool_ != nullptr) stream_ = stream.get();
  }
  /// Bytes that are there for the block: at least size(). try_expand() to so many succeeds. Throws
  /// MILLPOND_E_INVALID_ARGUMENT for an empty Buffer.
  std::size_t usable_size() const {
    std::size_t out = 0;
    check(millpond_get_usable_size(data_, &out));
    return out;
  }
  /// Records that work on `stream` uses the block too: its reuse waits for what is queued there at
  /// the free.
  MILLPOND_CPP_CHECKED C_Status record_stream(StreamView stream) const {
    return check(millpond_record_stream(data_, stream.get()));
  }
  /// Ends the use by work on `stream` with what is queued there now: reuse waits for this point,
  /// and not for what is queued there at the free.
  MILLPOND_CPP_CHECKED C_Status record_end(StreamView stream) const {
    return check(millpond_record_end(data_, stream.get()));
  }
  /// The same, but the use ended where `event` was recorded. The event may be destroyed at once,
  /// and recorded again when it has completed.
  MILLPOND_CPP_CHECKED C_Status record_end(StreamView stream, const Event& event) const {
    return check(millpond_record_end_at(data_, stream.get(), event.get()));
  }
  /// Makes the block one of `size_bytes` where it is, smaller or larger, with its contents: whether
  /// that could be. It never moves, the device is not called, and nothing is waited for; see
  /// millpond_try_expand. Throws what else can fail, MILLPOND_E_INVALID_ARGUMENT for 0 bytes and
  /// for an empty Buffer among it.
  bool try_expand(std::size_t size_bytes) {
    const C_Status status = millpond_try_expand(data_, size_bytes);
    if (status == C_SUCCESS) {
      size_ = size_bytes;
      return true;
    }
    if (millpond_last_error_code() != MILLPOND_E_OUT_OF_MEMORY) check(status);
    return false;
  }
  /// Releases the block from this object; the caller frees it with millpond_free() or
  /// millpond_pool_free().
  [[nodiscard]] void* release() noexcept {
    void* const block = data_;
    forget();
    return block;
  }
  /// Frees the block now. If its stream has already ended, the block is freed without one. A block
  /// that cannot be freed (after finalize()) is forgotten; nothing is thrown.
  void reset() noexcept {
    if (data_ != nullptr) {
      bool freed = pool_ != nullptr && millpond_pool_free(pool_, data_, stream_) == C_SUCCESS;
      if (!freed) freed = millpond_free(data_) == C_SUCCESS;
      // If two devices have a block at this address, only the pool tells which is meant.
      if (!freed && pool_ != nullptr) (void)millpond_pool_free(pool_, data_, nullptr);
    }
    forget();
  }
  /// Exchanges the two blocks.
  void swap(Buffer& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
  }

 private:
  void forget() noexcept {
    pool_ = nullptr;
    data_ = nullptr;
    size_ = 0;
    stream_ = nullptr;
  }

  millpond_pool* pool_ = nullptr;  // NULL: an unordered block
  void* data_ = nullptr;           // NULL: owns nothing
  std::size_t size_ = 0;           // [B] as asked for
  C_Stream stream_ = nullptr;      // freed on it; NULL: the default stream
};

/// Names a pool; owns nothing. Every call on it may come from any thread.
class PoolView {
 public:
  /// The empty handle; every call on it throws MILLPOND_E_INVALID_ARGUMENT.
  constexpr PoolView() noexcept = default;
  /// Wraps a pool of the C API.
  constexpr explicit PoolView(millpond_pool* raw) noexcept : raw_(raw) {}

  /// The C API's handle; NULL when empty.
  constexpr millpond_pool* get() const noexcept { return raw_; }
  /// Whether there is a pool behind this handle.
  constexpr explicit operator bool() const noexcept { return raw_ != nullptr; }
  /// The device whose memory it holds.
  Device device() const {
    millpond_device* out = nullptr;
    check(millpond_pool_get_device(raw_, &out));
    return Device(out);
  }

  /// A block that work queued on `stream` from now on may use. 0 bytes give an empty Buffer.
  /// Throws MILLPOND_E_OUT_OF_MEMORY, and MILLPOND_E_UNKNOWN_STREAM also for the stream of another
  /// device, where the device can tell (docs/streams.md); that of a default stream always can.
  Buffer allocate(std::size_t size_bytes, StreamView stream = {}) const {
    void* block = nullptr;
    if (!takes(stream)) return Buffer();
    if (check(millpond_pool_alloc(raw_, size_bytes, stream.get(), &block)) != C_SUCCESS) {
      return Buffer();
    }
    return Buffer::adopt(raw_, block, size_bytes, stream.get());
  }
  /// The same with all bytes 0 for work queued on `stream` from now on.
  Buffer allocate_zeroed(std::size_t size_bytes, StreamView stream = {}) const {
    void* block = nullptr;
    if (!takes(stream) ||
        check(millpond_pool_alloc_zeroed(raw_, size_bytes, stream.get(), &block)) != C_SUCCESS) {
      return {};
    }
    return Buffer::adopt(raw_, block, size_bytes, stream.get());
  }
  /// A block at a multiple of `alignment_bytes`, a power of two up to 2 MiB. Throws
  /// MILLPOND_E_UNSUPPORTED where the device gives no such addresses.
  Buffer allocate_aligned(std::size_t size_bytes, std::size_t alignment_bytes,
                          StreamView stream = {}) const {
    void* block = nullptr;
    if (!takes(stream) || check(millpond_pool_alloc_aligned(raw_, size_bytes, alignment_bytes,
                                                            stream.get(), &block)) != C_SUCCESS) {
      return {};
    }
    return Buffer::adopt(raw_, block, size_bytes, stream.get());
  }
  /// A block for each of `sizes_bytes`, all or none; an empty one for size 0. Throws as allocate().
  std::vector<Buffer> allocate_batch(const std::vector<std::size_t>& sizes_bytes,
                                     StreamView stream = {}) const {
    std::vector<void*> blocks(sizes_bytes.size());
    std::vector<Buffer> out;
    out.reserve(blocks.size());
    if (!takes(stream)) return out;
    if (check(millpond_pool_alloc_batch(raw_, sizes_bytes.data(), blocks.size(), stream.get(),
                                        blocks.data())) != C_SUCCESS) {
      return out;
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      out.push_back(
          Buffer::adopt(raw_, blocks[i], blocks[i] == nullptr ? 0 : sizes_bytes[i], stream.get()));
    }
    return out;
  }
  /// Frees blocks of allocate_batch() in one call, on `stream`, and leaves them empty; an empty one
  /// is skipped. Throws at the first that cannot be freed: that one and those behind it keep their
  /// blocks. Blocks of other pools of the device may be among them.
  MILLPOND_CPP_CHECKED C_Status free_batch(std::vector<Buffer>& blocks,
                                           StreamView stream = {}) const {
    std::vector<void*> addresses;
    addresses.reserve(blocks.size());
    for (const Buffer& block : blocks) addresses.push_back(block.data());
    std::size_t freed = 0;
    if (!takes(stream)) return C_ERROR;
    const C_Status status =
        millpond_pool_free_batch(raw_, addresses.data(), addresses.size(), stream.get(), &freed);
    for (std::size_t i = 0; i < freed; ++i) (void)blocks[i].release();
    return check(status);
  }
  /// A block without a stream, as Device::allocate() gives it: usable at once everywhere.
  Buffer allocate_unordered(std::size_t size_bytes) const {
    void* block = nullptr;
    if (check(millpond_pool_alloc_unordered(raw_, size_bytes, &block)) != C_SUCCESS) {
      return Buffer();
    }
    return Buffer::adopt_unordered(block, size_bytes);
  }
  /// Every block of the pool that is in one of `states`, as Device::blocks() reports them.
  std::vector<millpond_block_record> blocks(std::uint32_t states = MILLPOND_BLOCK_LIVE) const {
    millpond_device* device = nullptr;
    if (check(millpond_pool_get_device(raw_, &device)) != C_SUCCESS) return {};
    return detail::list_blocks(device, raw_, states);
  }
  /// The same, one by one, as Device::each_block() does it.
  template <typename Function>
  MILLPOND_CPP_CHECKED C_Status each_block(std::uint32_t states, const Function& function) const {
    millpond_device* device = nullptr;
    const C_Status status = check(millpond_pool_get_device(raw_, &device));
    return status != C_SUCCESS ? status : detail::each_block(device, raw_, states, function);
  }
  /// The memory that the pool has reserved, as Device::segments() reports it.
  std::vector<millpond_segment_record> segments() const {
    millpond_device* device = nullptr;
    if (check(millpond_pool_get_device(raw_, &device)) != C_SUCCESS) return {};
    return detail::list_segments(device, raw_);
  }
  /// The pool's counters, in bytes.
  millpond_stats stats() const {
    millpond_stats out{};
    out.struct_size = sizeof out;
    check(millpond_pool_get_stats(raw_, &out));
    return out;
  }
  /// The pool's statistics, as Device::memory_stats() tells them.
  millpond_memory_stats memory_stats() const {
    millpond_memory_stats out{};
    out.struct_size = sizeof out;
    check(millpond_pool_get_memory_stats(raw_, &out));
    return out;
  }
  /// As Device::reset_accumulated().
  MILLPOND_CPP_CHECKED C_Status reset_accumulated() const {
    return check(millpond_pool_reset_accumulated(raw_));
  }
  /// What each stream has of the pool; with the price of blocks().
  std::vector<millpond_stream_stats> stream_stats() const {
    millpond_device* device = nullptr;
    if (check(millpond_pool_get_device(raw_, &device)) != C_SUCCESS) return {};
    return detail::list_stream_stats(device, raw_);
  }
  /// Resets the peaks to the current values.
  MILLPOND_CPP_CHECKED C_Status reset_peaks() const {
    return check(millpond_pool_reset_peaks(raw_));
  }
  /// Gives the pool's unused memory back to the device.
  MILLPOND_CPP_CHECKED C_Status empty_cache() const {
    return check(millpond_pool_empty_cache(raw_));
  }
  /// The same until at most `keep_bytes` of it stay reserved, or none is unused.
  MILLPOND_CPP_CHECKED C_Status trim_to(std::uint64_t keep_bytes) const {
    return check(millpond_pool_trim_to(raw_, keep_bytes));
  }
  /// Gives the pool's physical memory back to the device until wake(); its addresses and blocks
  /// stay. With `keep`, its contents are kept in host memory. Throws MILLPOND_E_UNSUPPORTED if the
  /// device does not map.
  MILLPOND_CPP_CHECKED C_Status sleep(bool keep) const {
    return check(millpond_pool_sleep(raw_, keep ? MILLPOND_SLEEP_KEEP : 0u));
  }
  /// Brings the memory back at the same addresses. Throws MILLPOND_E_OUT_OF_MEMORY, and then the
  /// pool sleeps on.
  MILLPOND_CPP_CHECKED C_Status wake() const { return check(millpond_pool_wake(raw_)); }
  /// Limits the pool's reserved bytes to `limit_bytes`; 0 removes the limit.
  MILLPOND_CPP_CHECKED C_Status set_limit(std::uint64_t limit_bytes) const {
    return check(millpond_pool_set_limit(raw_, limit_bytes));
  }

 private:
  /// Refuses the default stream of another device: each is NULL, and only the view says whose it
  /// is.
  bool takes(StreamView stream) const {
    if (stream.get() != nullptr || !stream.device()) return true;
    millpond_device* own = nullptr;
    if (check(millpond_pool_get_device(raw_, &own)) != C_SUCCESS) return false;
    if (own == stream.device().get()) return true;
    detail::refuse(MILLPOND_E_UNKNOWN_STREAM, "the stream is the default one of another device");
    return false;
  }

 protected:
  millpond_pool* raw_ = nullptr;  ///< NULL: empty
};

/// A pool that this object owns. Moves, does not copy; a copy of its PoolView part is a view.
/// Its blocks may outlive it: the pool then takes no more requests, and ends after the last one.
class [[nodiscard]] Pool : public PoolView {
 public:
  /// The empty handle.
  Pool() noexcept = default;
  /// A new pool. `limit_bytes` bounds what it reserves (0: no limit of its own); `name` may be NULL
  /// and is copied; `flags` are MILLPOND_POOL_* bits.
  explicit Pool(Device on, std::uint64_t limit_bytes = 0, const char* name = nullptr,
                std::uint64_t flags = 0) {
    millpond_pool_options options{};
    options.struct_size = sizeof options;
    options.limit_bytes = limit_bytes;
    options.name = name;
    options.flags = flags;
    check(millpond_pool_create(on.get(), &options, &raw_));
  }
  /// Takes the pool over; `other` is left empty.
  Pool(Pool&& other) noexcept : PoolView(std::exchange(other.raw_, nullptr)) {}
  /// Ends its own pool, then takes the other's over.
  Pool& operator=(Pool&& other) noexcept {
    if (this == &other) return *this;
    Pool old(std::move(*this));
    raw_ = std::exchange(other.raw_, nullptr);
    return *this;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  /// Releases the pool (millpond_pool_release). Never throws; use destroy() to see a refusal.
  ~Pool() {
    if (raw_ != nullptr) (void)millpond_pool_release(raw_);
  }
  /// Ends the pool now. Throws MILLPOND_E_BUSY while it has live blocks, and then still owns it.
  MILLPOND_CPP_CHECKED C_Status destroy() {
    const C_Status status = check(millpond_pool_destroy(raw_));
    if (status == C_SUCCESS) raw_ = nullptr;
    return status;
  }
};

namespace detail {

/// Host-side memory of a device: the two kinds differ only in the pair of C calls.
template <C_Status (*AllocCall)(millpond_device*, std::size_t, void**),
          C_Status (*FreeCall)(millpond_device*, void*)>
class [[nodiscard]] HostBuffer {
 public:
  /// Owns nothing.
  HostBuffer() noexcept = default;
  /// Allocates `size_bytes`; 0 bytes leave it empty. Throws MILLPOND_E_OUT_OF_MEMORY,
  /// MILLPOND_E_UNSUPPORTED.
  HostBuffer(Device on, std::size_t size_bytes) : device_(on) {
    if (size_bytes == 0) return;
    if (check(AllocCall(on.get(), size_bytes, &data_)) == C_SUCCESS) size_ = size_bytes;
  }
  /// Takes the memory over; `other` is left empty.
  HostBuffer(HostBuffer&& other) noexcept
      : device_(std::exchange(other.device_, Device())),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0u)) {}
  /// Frees its own memory, then takes the other's over.
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    if (this == &other) return *this;
    HostBuffer old(std::move(*this));
    device_ = std::exchange(other.device_, Device());
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0u);
    return *this;
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  /// Frees the memory. Unified memory: work queued on it must be done by then, and in a stream
  /// callback it cannot be freed, and stays until the device ends. Pinned memory: copies that are
  /// queued on it, and streams that were recorded, may still use it. Never throws.
  ~HostBuffer() {
    if (data_ != nullptr) (void)FreeCall(device_.get(), data_);
  }

  /// The address, for the host and (unified memory) for the device.
  void* data() const noexcept { return data_; }
  /// The same, as elements.
  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  /// Bytes.
  std::size_t size() const noexcept { return size_; }
  /// Whether it owns memory.
  explicit operator bool() const noexcept { return data_ != nullptr; }
  /// The device from which it was allocated.
  Device device() const noexcept { return device_; }

 private:
  Device device_;
  void* data_ = nullptr;  // NULL: owns nothing
  std::size_t size_ = 0;  // [B]
};

}  // namespace detail

/// Pinned host memory, which is fast to copy to and from the device, and really asynchronously.
using PinnedBuffer = detail::HostBuffer<&millpond_host_alloc, &millpond_host_free>;
/// Host memory of the program that is registered with a device while this object lives: copies
/// between the two are as fast as those of a PinnedBuffer. Moves, does not copy.
class [[nodiscard]] HostRegistration {
 public:
  /// Registers nothing.
  HostRegistration() noexcept = default;
  /// Registers `size_bytes` from `memory` on, which the program keeps until this object ends.
  /// Throws MILLPOND_E_UNSUPPORTED on devices of plugins, MILLPOND_E_BUSY where a part is
  /// registered.
  HostRegistration(Device with, void* memory, std::size_t size_bytes) : device_(with) {
    if (check(millpond_host_register(with.get(), memory, size_bytes)) == C_SUCCESS) data_ = memory;
  }
  /// Takes the registration over; `other` is left empty.
  HostRegistration(HostRegistration&& other) noexcept
      : device_(std::exchange(other.device_, Device())),
        data_(std::exchange(other.data_, nullptr)) {}
  /// Ends its own registration, then takes the other's over.
  HostRegistration& operator=(HostRegistration&& other) noexcept {
    if (this == &other) return *this;
    HostRegistration old(std::move(*this));
    device_ = std::exchange(other.device_, Device());
    data_ = std::exchange(other.data_, nullptr);
    return *this;
  }
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;
  /// Waits for the work queued on the device and ends the registration. Never throws; use end() to
  /// see a refusal, after which the memory stays registered until the device ends.
  ~HostRegistration() {
    if (data_ != nullptr) (void)millpond_host_unregister(device_.get(), data_);
  }
  /// Ends the registration now. Throws MILLPOND_E_NOT_PERMITTED in a stream callback and while a
  /// stream is captured, and then still has it.
  MILLPOND_CPP_CHECKED C_Status end() {
    if (data_ == nullptr) return C_SUCCESS;
    const C_Status status = check(millpond_host_unregister(device_.get(), data_));
    if (status == C_SUCCESS) data_ = nullptr;
    return status;
  }
  /// Whether there is a registration.
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  Device device_;
  void* data_ = nullptr;  // NULL: nothing is registered
};

/// Records that work on `stream` that Millpond has not queued also uses the pinned memory that
/// contains `pinned`: after its free, its reuse waits for what is queued there at the free. Throws
/// MILLPOND_E_UNKNOWN_POINTER, MILLPOND_E_UNKNOWN_STREAM.
MILLPOND_CPP_CHECKED inline C_Status record_host_stream(const void* pinned, StreamView stream) {
  return check(millpond_host_record_stream(stream.device().get(), pinned, stream.get()));
}
/// A place of unified memory: the memory of the device that is asked, or the processor's.
enum class UnifiedPlace : std::uint32_t {
  kDevice = MILLPOND_PLACE_DEVICE,
  kHost = MILLPOND_PLACE_HOST,
};

/// How unified memory will be used; see MILLPOND_ADVICE_*.
enum class UnifiedAdvice : std::uint32_t {
  kReadMostly = MILLPOND_ADVICE_READ_MOSTLY,
  kUnsetReadMostly = MILLPOND_ADVICE_UNSET_READ_MOSTLY,
  kPreferred = MILLPOND_ADVICE_PREFERRED,
  kUnsetPreferred = MILLPOND_ADVICE_UNSET_PREFERRED,
  kAccessedBy = MILLPOND_ADVICE_ACCESSED_BY,
  kUnsetAccessedBy = MILLPOND_ADVICE_UNSET_ACCESSED_BY,
};

/// Memory that host and device access at the same address; needs MILLPOND_CAP_UNIFIED.
class [[nodiscard]] UnifiedBuffer
    : public detail::HostBuffer<&millpond_unified_alloc, &millpond_unified_free> {
 public:
  using HostBuffer::HostBuffer;

  /// Queues on `stream` that all its pages go to the memory of the stream's device, or to the
  /// processor's: work that is queued there after it finds them. StreamView() is the default stream
  /// of its own device. A part of it: millpond_unified_prefetch. Throws MILLPOND_E_UNSUPPORTED
  /// where the device cannot move them.
  MILLPOND_CPP_CHECKED C_Status prefetch(StreamView stream,
                                         UnifiedPlace to = UnifiedPlace::kDevice) const {
    const bool plain = !stream.device() && stream.get() == nullptr;
    return check(millpond_unified_prefetch((plain ? device() : stream.device()).get(), stream.get(),
                                           data(), size(), static_cast<std::uint32_t>(to)));
  }
  /// Says how all of it will be used, by `by`, which is its own device or the processor. For
  /// another device, or a part of it: millpond_unified_advise. Throws as prefetch().
  MILLPOND_CPP_CHECKED C_Status advise(UnifiedAdvice advice,
                                       UnifiedPlace by = UnifiedPlace::kDevice) const {
    return check(millpond_unified_advise(device().get(), data(), size(),
                                         static_cast<std::uint32_t>(advice),
                                         static_cast<std::uint32_t>(by)));
  }
};

/// Frees a block of any pool with millpond_free().
struct DeviceDelete {
  /// Never throws.
  void operator()(const void* block) const noexcept {
    (void)millpond_free(const_cast<void*>(block));
  }
};
/// std::unique_ptr for device memory: runs no destructors of T, so T must not need one.
template <typename T>
using DevicePtr = std::unique_ptr<T, DeviceDelete>;

/// `count` elements on `device`, not initialised, usable from every stream at once. Throws
/// MILLPOND_E_OUT_OF_MEMORY, also when the bytes overflow.
template <typename T>
[[nodiscard]] DevicePtr<T[]> make_device_array(Device device, std::size_t count) {
  static_assert(std::is_trivially_destructible<T>::value, "no destructor is run on a device");
  void* block = nullptr;
  const std::size_t size_bytes = count > static_cast<std::size_t>(-1) / sizeof(T)
                                     ? static_cast<std::size_t>(-1)
                                     : count * sizeof(T);
  check(millpond_alloc(device.get(), size_bytes, &block));
  return DevicePtr<T[]>(static_cast<T*>(block));
}

/// Bytes that are there for the block that starts at `block`: at least as many as were asked for.
/// See millpond_get_usable_size. Throws MILLPOND_E_UNKNOWN_POINTER.
inline std::size_t usable_size(const void* block) {
  std::size_t out = 0;
  check(millpond_get_usable_size(block, &out));
  return out;
}
/// Frees a block without a stream, if it is one of `size_bytes`, as it was asked for: throws
/// MILLPOND_E_WRONG_SIZE, and frees nothing, if it is not.
MILLPOND_CPP_CHECKED inline C_Status free_sized(void* block, std::size_t size_bytes) {
  return check(millpond_free_sized(block, size_bytes));
}

inline PoolView Device::default_pool() const {
  millpond_pool* out = nullptr;
  check(millpond_device_get_default_pool(raw_, &out));
  return PoolView(out);
}

inline Buffer Device::allocate(std::size_t size_bytes) const {
  void* block = nullptr;
  if (check(millpond_alloc(raw_, size_bytes, &block)) != C_SUCCESS) return Buffer();
  return Buffer::adopt_unordered(block, size_bytes);
}

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_MEMORY_HPP
