// Millpond's numbers as PyTorch has them, for native.cpp.
#ifndef MILLPOND_TORCH_NUMBERS_HPP
#define MILLPOND_TORCH_NUMBERS_HPP

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_map>

#include "compat.hpp"

namespace millpond_torch {

/// Statistics by PyTorch's names (millpond_memory_stats_name).
using Numbers = std::unordered_map<std::string, std::uint64_t>;

inline c10::CachingDeviceAllocator::DeviceStats device_stats(const Numbers& numbers) {
  using c10::CachingDeviceAllocator::DeviceStats;
  const auto number = [&](const std::string& name) {
    return static_cast<std::int64_t>(numbers.at(name));
  };
  const auto stat = [&](const std::string& name) {
    c10::CachingAllocator::Stat out;
    out.current = number(name + ".current");
    out.peak = number(name + ".peak");
    out.allocated = number(name + ".allocated");
    out.freed = number(name + ".freed");
    return out;
  };
  const auto stats = [&](const std::string& name) {
    c10::CachingAllocator::StatArray out;
    out[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)] = stat(name + ".all");
    out[static_cast<std::size_t>(c10::CachingAllocator::StatType::SMALL_POOL)] =
        stat(name + ".small_pool");
    out[static_cast<std::size_t>(c10::CachingAllocator::StatType::LARGE_POOL)] =
        stat(name + ".large_pool");
    return out;
  };
  DeviceStats s;
  s.allocation = stats("allocation");
  s.segment = stats("segment");
  s.active = stats("active");
  s.inactive_split = stats("inactive_split");
  s.allocated_bytes = stats("allocated_bytes");
  s.reserved_bytes = stats("reserved_bytes");
  s.active_bytes = stats("active_bytes");
  s.inactive_split_bytes = stats("inactive_split_bytes");
  s.requested_bytes = stats("requested_bytes");
  s.oversize_allocations = stat("oversize_allocations");
  s.oversize_segments = stat("oversize_segments");
  s.num_alloc_retries = number("num_alloc_retries");
  s.num_ooms = number("num_ooms");
  millpond_torch::set_oom_rejections(s, number("num_oom_rejections"));
  s.num_sync_all_streams = number("num_sync_all_streams");
  s.num_device_alloc = number("num_device_alloc");
  s.num_device_free = number("num_device_free");
  s.max_split_size = number("max_split_size");  // none: -1
  return s;
}

/// Adds another allocator's numbers. Peaks of both are added too, as if they had been at one time.
template <typename DeviceStats>
void add(DeviceStats& to, const DeviceStats& other) {
  const auto stat = [](c10::CachingAllocator::Stat& a, const c10::CachingAllocator::Stat& b) {
    a.current += b.current;
    a.peak += b.peak;
    a.allocated += b.allocated;
    a.freed += b.freed;
  };
  const auto stats = [&](c10::CachingAllocator::StatArray& a,
                         const c10::CachingAllocator::StatArray& b) {
    for (std::size_t i = 0; i < a.size(); ++i) stat(a[i], b[i]);
  };
  stats(to.allocation, other.allocation);
  stats(to.segment, other.segment);
  stats(to.active, other.active);
  stats(to.inactive_split, other.inactive_split);
  stats(to.allocated_bytes, other.allocated_bytes);
  stats(to.reserved_bytes, other.reserved_bytes);
  stats(to.active_bytes, other.active_bytes);
  stats(to.inactive_split_bytes, other.inactive_split_bytes);
  stats(to.requested_bytes, other.requested_bytes);
  stat(to.oversize_allocations, other.oversize_allocations);
  stat(to.oversize_segments, other.oversize_segments);
  if constexpr (requires { to.reserved_bytes_by_private_pools; }) {
    for (const auto& [pool, numbers] : other.reserved_bytes_by_private_pools) {
      stats(to.reserved_bytes_by_private_pools[pool], numbers);
    }
  }
  to.num_alloc_retries += other.num_alloc_retries;
  to.num_ooms += other.num_ooms;
  to.num_sync_all_streams += other.num_sync_all_streams;
  to.num_device_alloc += other.num_device_alloc;
  to.num_device_free += other.num_device_free;
}

/// A number of bytes as PyTorch's messages write it.
inline std::string with_unit(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB"};
  if (bytes <= 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  for (; unit < 2 && value > 1024; ++unit) value /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace millpond_torch

#endif
