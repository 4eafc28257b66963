// Pools whose memory is not Millpond's: torch.cuda.MemPool with an allocator of the program's (of
// NCCL, or to sleep), or with no_split. PyTorch's own caching allocator, which native.cpp takes the
// place of, is still there and serves them, from whole segments that the pool's allocator gives it.
#ifndef MILLPOND_TORCH_OTHERS_HPP
#define MILLPOND_TORCH_OTHERS_HPP

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "compat.hpp"

namespace millpond_torch {

/// All functions may be called from any thread. No lock is held while a request, a filter or a
/// pool's allocator runs.
class Others {
 public:
  using CUDAAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using DeviceIndex = c10::DeviceIndex;
  using MempoolId = c10::MempoolId_t;

  /// The allocator in whose place another one comes.
  void displaces(CUDAAllocator* allocator, int device_count) {
    std::lock_guard<std::mutex> held(lock_);
    if (allocator == nullptr || allocator->name() != "native") return;
    native_ = allocator;
    device_count_ = device_count;
  }
  /// PyTorch's own allocator, if any pool was ever taken; NULL otherwise.
  CUDAAllocator* native() const { return used_.load(std::memory_order_acquire); }

  /// One use more of the pool, whose segments are the allocator's; NULL: PyTorch's own.
  template <typename Allocator>
  void take(DeviceIndex device, MempoolId pool, Allocator allocator) {
    CUDAAllocator* const native = start();
    native->createOrIncrefPool(device, pool, std::move(allocator));
    std::lock_guard<std::mutex> held(lock_);
    if (!has(device, pool)) pools_.push_back({device, pool, false});
  }
  /// PyTorch's allocator, if the pool is one of these; NULL otherwise.
  CUDAAllocator* of(DeviceIndex device, MempoolId pool) {
    if (native() == nullptr) return nullptr;
    std::lock_guard<std::mutex> held(lock_);
    return has(device, pool) ? native_ : nullptr;
  }

  /// Hears of what PyTorch's allocator does for these pools, and of segments of theirs, as a
  /// library of communication must to register them.
  void track(const AllocatorTraceTracker& tracker) {
    std::lock_guard<std::mutex> held(lock_);
    if (CUDAAllocator* const native = used_.load(std::memory_order_relaxed)) {
      native->attachAllocatorTraceTracker(tracker);
    } else {
      trackers_.push_back(tracker);
    }
  }

  /// One use less. A pool without uses is forgotten: PyTorch's allocator has what is left of it.
  void release(DeviceIndex device, MempoolId pool) {
    native_->releasePool(device, pool);
    if (native_->getPoolUseCount(device, pool) > 0) return;
    std::lock_guard<std::mutex> held(lock_);
    const auto is_it = [&](const auto& x) { return x.device == device && x.pool == pool; };
    pools_.erase(std::remove_if(pools_.begin(), pools_.end(), is_it), pools_.end());
  }

  /// The pool serves requests of others, too, where there is no memory (`use_on_oom`).
  void serve_others(DeviceIndex device, MempoolId pool, bool serves) {
    std::lock_guard<std::mutex> held(lock_);
    for (Known& known : pools_) {
      if (known.device == device && known.pool == pool) known.serves_others = serves;
    }
  }
  /// A block of such a pool; empty: none has any.
  c10::DataPtr spare(std::size_t size, DeviceIndex device, cudaStream_t stream) {
    if (native() == nullptr) return {};
    std::vector<MempoolId> pools;
    {
      std::lock_guard<std::mutex> held(lock_);
      for (const Known& known : pools_) {
        if (known.device == device && known.serves_others) pools.push_back(known.pool);
      }
    }
    for (const MempoolId pool : pools) {
      const auto self = std::this_thread::get_id();
      try {
        native_->beginAllocateToPool(
            device, pool, [self](cudaStream_t) { return std::this_thread::get_id() == self; });
      } catch (const c10::Error&) {
        continue;  // it is begun already, here or by another thread
      }
      void* ptr = nullptr;
      try {
        const c10::cuda::CUDAGuard on(device);
        ptr = native_->raw_alloc_with_stream(size, stream);
      } catch (const c10::Error&) {  // it has none
      }
      native_->endAllocateToPool(device, pool);
      native_->releasePool(device, pool);
      if (ptr != nullptr) {
        return {ptr, ptr, native_->raw_deleter(), c10::Device(c10::DeviceType::CUDA, device)};
      }
    }
    return {};
  }

 private:
  struct Known {
    DeviceIndex device;
    MempoolId pool;
    bool serves_others;
  };

  CUDAAllocator* start() {
    std::lock_guard<std::mutex> held(lock_);
    TORCH_CHECK_NOT_IMPLEMENTED(
        native_ != nullptr,
        "only PyTorch's own allocator serves a MemPool of another allocator, "
        "and it was not in place before Millpond");
    if (used_.load(std::memory_order_relaxed) == nullptr) {
      if (!native_->initialized()) native_->init(device_count_);
      for (const auto& tracker : trackers_) native_->attachAllocatorTraceTracker(tracker);
      used_.store(native_, std::memory_order_release);
    }
    return native_;
  }
  bool has(DeviceIndex device, MempoolId pool) const {
    return std::any_of(pools_.begin(), pools_.end(), [&](const Known& known) {
      return known.device == device && known.pool == pool;
    });
  }

  std::atomic<CUDAAllocator*> used_{nullptr};
  std::mutex lock_;  // guards what follows
  CUDAAllocator* native_ = nullptr;
  int device_count_ = 0;
  std::vector<AllocatorTraceTracker> trackers_;  // for PyTorch's allocator, once it is used
  std::vector<Known> pools_;
};

}  // namespace millpond_torch

#endif
