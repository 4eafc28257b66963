// A new device for PyTorch: an allocator whose memory is a Millpond pool, for a vendor's back end
// (PrivateUse1) to compile. Needs PyTorch 2.9 or newer, whose c10::DeviceAllocator it implements;
// built against one minor version, it fits that one. docs/torch.md has a complete example.
//
// clang-format off
//   struct Backend {  // what the vendor says, all static
//     static constexpr const char* kType = "mydevice";  // Millpond's device type, see docs/paddle.md
//     static c10::DeviceIndex current_device();
//     static c10::Stream current_stream(c10::DeviceIndex device);
//     static C_Stream native(c10::Stream stream);  // the handle that Millpond's device knows
//   };
//   static millpond::torch::DeviceAllocator<Backend> allocator;
//   REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);
// clang-format on
//
// Memory is ordered by streams: a tensor is allocated on the current stream of the current device,
// and its memory is reused in that stream's order when it is freed, or behind the streams that
// Tensor.record_stream has named. torch.accelerator's memory functions work: memory_stats,
// memory_allocated, max_memory_allocated, empty_cache, the resets, get_memory_info.
//
// Threads     Every function may be called from any thread. Tensors may be freed on any thread, at
//             the end of the process, and in a forked child, where nothing happens.
// Errors      c10::OutOfMemoryError with Millpond's report, when there is no memory; c10::Error for
//             everything else.
#ifndef MILLPOND_TORCH_DEVICE_ALLOCATOR_HPP
#define MILLPOND_TORCH_DEVICE_ALLOCATOR_HPP

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "millpond/millpond.h"

namespace millpond {
namespace torch {

/// The allocator of a new device; the comment at the head of this file says what `Backend` has.
/// PyTorch keeps it until the end of the process: make it static, or never destroy it.
template <class Backend>
class DeviceAllocator : public c10::DeviceAllocator {
 public:
  /// What is allocated belongs to it.
  static constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

  // ---- memory ----

  c10::DataPtr allocate(std::size_t size) override {
    const c10::DeviceIndex device = Backend::current_device();
    void* ptr = size == 0 ? nullptr : take(size, device);
    return {ptr, ptr, &release, c10::Device(kDevice, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  /// Between two blocks of one device, or of two of the type; returns when the bytes have arrived.
  void copy_data(void* to, const void* from, std::size_t size) const override {
    if (size == 0) return;
    millpond_device* const there = device_of(to);
    millpond_device* const here = device_of(from);
    check(there == here ? millpond_copy(there, MILLPOND_COPY_D2D, to, from, size)
                        : millpond_copy_peer(there, to, here, from, size));
  }
  /// Work that is queued on `stream` so far uses the memory: it is not reused before that is done.
  /// What another allocator made is left alone.
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    if (ptr.get() == nullptr || ptr.get_deleter() != &release) return;
    check(millpond_record_stream(ptr.get(), Backend::native(stream)));
  }

  // ---- the whole ----

  /// Devices are opened when they are first used.
  bool initialized() override { return true; }
  /// All memory that nobody uses goes back to the devices that were used, whatever the pool.
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    for (std::size_t i = 0; i < kMost; ++i) {
      if (pools_[i].load(std::memory_order_relaxed) == nullptr) continue;
      check(millpond_device_empty_cache(get(static_cast<c10::DeviceIndex>(i))));
    }
  }

  // ---- numbers ----

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    millpond_memory_stats from{};
    from.struct_size = sizeof from;
    check(millpond_device_get_memory_stats(get(device), &from));
    c10::CachingDeviceAllocator::DeviceStats to;
    to.allocation = stats(from.allocation);
    to.segment = stats(from.segment);
    to.active = stats(from.active);
    to.inactive_split = stats(from.inactive_split);
    to.allocated_bytes = stats(from.allocated_bytes);
    to.reserved_bytes = stats(from.reserved_bytes);
    to.active_bytes = stats(from.active_bytes);
    to.inactive_split_bytes = stats(from.inactive_split_bytes);
    to.requested_bytes = stats(from.requested_bytes);
    to.oversize_allocations = stat(from.oversize_allocations);
    to.oversize_segments = stat(from.oversize_segments);
    const auto number = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
    to.num_alloc_retries = number(from.num_alloc_retries);
    to.num_ooms = number(from.num_ooms);
    to.num_sync_all_streams = number(from.num_sync_all_streams);
    to.num_device_alloc = number(from.num_device_alloc);
    to.num_device_free = number(from.num_device_free);
    to.max_split_size = number(from.max_split_size);
    return to;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check(millpond_device_reset_accumulated(get(device)));
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    check(millpond_device_reset_peaks(get(device)));
  }
  /// Free and total memory of the device, in bytes. PyTorch 2.9 has no such function to override;
  /// later releases do.
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) {
    millpond_device_info about{};
    about.struct_size = sizeof about;
    check(millpond_device_get_info(get(device), &about));
    return {about.free_bytes, about.total_bytes};
  }

 private:
  static c10::CachingAllocator::Stat stat(const millpond_flow& from) {
    c10::CachingAllocator::Stat to;
    to.current = static_cast<std::int64_t>(from.current);
    to.peak = static_cast<std::int64_t>(from.peak);
    to.allocated = static_cast<std::int64_t>(from.allocated);
    to.freed = static_cast<std::int64_t>(from.freed);
    return to;
  }
  static c10::CachingAllocator::StatArray stats(const millpond_split& from) {
    using c10::CachingAllocator::StatType;
    c10::CachingAllocator::StatArray to;
    to[static_cast<std::size_t>(StatType::AGGREGATE)] = stat(from.all);
    to[static_cast<std::size_t>(StatType::SMALL_POOL)] = stat(from.small_pool);
    to[static_cast<std::size_t>(StatType::LARGE_POOL)] = stat(from.large_pool);
    return to;
  }

  static void check(C_Status status) {
    TORCH_CHECK(status == C_SUCCESS, "Millpond: ", millpond_last_error_message());
  }

  /// Opened when it is first asked for; the same one each time.
  static millpond_device* get(c10::DeviceIndex device) {
    millpond_device* out = nullptr;
    check(millpond_device_get(Backend::kType, device, &out));
    return out;
  }

  static millpond_device* device_of(const void* ptr) {
    millpond_block_info block{};
    block.struct_size = sizeof block;
    check(millpond_get_block(ptr, &block));
    return block.device;
  }

  void* take(std::size_t size, c10::DeviceIndex device) {
    const C_Stream stream = Backend::native(Backend::current_stream(device));
    void* ptr = nullptr;
    if (millpond_pool_alloc(pool(device), size, stream, &ptr) == C_SUCCESS) return ptr;
    TORCH_CHECK_WITH(OutOfMemoryError, millpond_last_error_code() != MILLPOND_E_OUT_OF_MEMORY,
                     Backend::kType, ":", static_cast<int>(device),
                     " out of memory. Tried to allocate ", size,
                     " bytes: ", millpond_last_error_message());
    TORCH_CHECK(false, "Millpond: ", millpond_last_error_message());
  }

  /// The pool that tensors of the device are in, looked up once.
  millpond_pool* pool(c10::DeviceIndex device) {
    TORCH_CHECK(device >= 0 && static_cast<std::size_t>(device) < kMost, "there is no device ",
                static_cast<int>(device));
    std::atomic<millpond_pool*>& kept = pools_[static_cast<std::size_t>(device)];
    millpond_pool* pool = kept.load(std::memory_order_relaxed);  // a number: it points to nothing
    if (pool == nullptr) {
      check(millpond_device_get_default_pool(get(device), &pool));
      kept.store(pool, std::memory_order_relaxed);
    }
    return pool;
  }

  /// In the order of its stream. Fails only where nothing can be done: in a forked child, or when
  /// the library has ended, with its memory.
  static void release(void* ptr) {
    if (ptr != nullptr) (void)millpond_free(ptr);
  }

  static constexpr std::size_t kMost = 64;  // as many devices as PyTorch has of a type
  std::atomic<millpond_pool*> pools_[kMost] = {};
};

}  // namespace torch
}  // namespace millpond

#endif  // MILLPOND_TORCH_DEVICE_ALLOCATOR_HPP
