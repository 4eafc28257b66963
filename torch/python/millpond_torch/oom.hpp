// A request that found no memory, for native.cpp: who hears of it, and what the error says.
#ifndef MILLPOND_TORCH_OOM_HPP
#define MILLPOND_TORCH_OOM_HPP

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compat.hpp"
#include "holdings.hpp"
#include "library.hpp"
#include "numbers.hpp"
#include "trace.hpp"

namespace millpond_torch {

/// All functions may be called from any thread. No lock is held while an observer runs.
class OutOfMemory {
 public:
  using DeviceIndex = c10::DeviceIndex;
  using Observer = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;

  OutOfMemory(const Library& library, const Holdings& holdings, Trace& trace)
      : library_(library), holdings_(holdings), trace_(trace) {}

  void attach(Observer observer) {
    std::lock_guard<std::mutex> held(lock_);
    observers_.push_back(std::move(observer));
  }
  /// It hears of requests that the device was spared, since it had too little
  /// (`throw_on_cudamalloc_oom`).
  void attach_rejection(RejectionObserver observer) {
    std::lock_guard<std::mutex> held(lock_);
    rejection_observers_.push_back(std::move(observer));
  }
  /// The device counts such requests from 0 again.
  void reset(DeviceIndex device) {
    const std::uint64_t spared = holdings_.numbers(device).at("num_oom_rejections");
    std::lock_guard<std::mutex> held(lock_);
    spared_[device] = spared;
  }

  /// Tells the observers of a request that PyTorch's own allocator has failed.
  void tell(std::size_t size, DeviceIndex device) {
    std::uint64_t total = 0, free = 0;
    (void)library_.memory_(device, &total, &free);
    const std::uint64_t limit = holdings_.numbers(device).at("limit_bytes");
    tell(size, device, limit != 0 ? limit : total, free);
  }

  /// Tells everybody, and throws PyTorch's error. `why` is Millpond's.
  [[noreturn]] void fail(std::size_t size, DeviceIndex device, cudaStream_t stream,
                         const Context& context, const std::string& why) {
    std::uint64_t total = 0, free = 0;
    (void)library_.memory_(device, &total, &free);
    const auto numbers = holdings_.numbers(device);
    const std::size_t held = numbers.at("allocated_bytes.all.current");
    const std::size_t reserved = numbers.at("reserved_bytes.all.current");
    const std::uint64_t limit = numbers.at("limit_bytes");
    const std::uint64_t spared = numbers.at("num_oom_rejections");
    std::vector<RejectionObserver> rejected;
    {
      std::lock_guard<std::mutex> locked(lock_);
      if (std::exchange(spared_[device], spared) != spared) rejected = rejection_observers_;
    }
    for (const auto& observer : rejected) observer(device, size, held, total);
    trace_.tell(TraceEntry::OOM, device, free, size, stream, context);
    trace_.mark(TraceEntry::OOM, device, free, size, "", stream, context);
    tell(size, device, limit != 0 ? limit : total, free);
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(size), held, reserved,
                                     c10::Device(c10::DeviceType::CUDA, device));
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                     with_unit(size), ". GPU ", static_cast<int>(device),
                     " has a total capacity of ", with_unit(total), " of which ", with_unit(free),
                     " is free. With Millpond: ", why);
  }

 private:
  /// PyTorch's own allocator tells the request where the type of observers says `allocated`.
  void tell(std::size_t size, DeviceIndex device, std::uint64_t most, std::uint64_t free) {
    std::vector<Observer> observers;
    {
      std::lock_guard<std::mutex> locked(lock_);
      observers = observers_;
    }
    for (const auto& observer : observers) observer(device, size, most, free);
  }

  const Library& library_;
  const Holdings& holdings_;
  Trace& trace_;
  std::mutex lock_;  // guards what follows
  std::vector<Observer> observers_;
  std::vector<RejectionObserver> rejection_observers_;
  std::unordered_map<DeviceIndex, std::uint64_t> spared_;  // requests that the device was spared
};

}  // namespace millpond_torch

#endif
