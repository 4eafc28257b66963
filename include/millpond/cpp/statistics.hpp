// Lists of blocks and streams, statistics by name, and how long calls took. Device and PoolView
// have the calls.
#ifndef MILLPOND_CPP_STATISTICS_HPP
#define MILLPOND_CPP_STATISTICS_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "millpond/cpp/error.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

namespace detail {
inline std::vector<millpond_block_record> list_blocks(const millpond_device* device,
                                                      const millpond_pool* pool,
                                                      std::uint32_t states) {
  std::vector<millpond_block_record> all(64);
  // More may have been added since they were counted.
  for (;;) {
    std::size_t count = 0;
    if (check(millpond_device_list_blocks(device, pool, states, all.data(), sizeof all[0],
                                          all.size(), &count)) != C_SUCCESS) {
      return {};
    }
    if (count <= all.size()) {
      all.resize(count);
      return all;
    }
    all.resize(count + count / 8);
  }
}
inline std::vector<millpond_stream_stats> list_stream_stats(const millpond_device* device,
                                                            const millpond_pool* pool) {
  std::vector<millpond_stream_stats> all(16);
  for (;;) {
    std::size_t count = 0;
    if (check(millpond_device_list_stream_stats(device, pool, all.data(), sizeof all[0], all.size(),
                                                &count)) != C_SUCCESS) {
      return {};
    }
    if (count <= all.size()) {
      all.resize(count);
      return all;
    }
    all.resize(count + count / 8);
  }
}
}  // namespace detail

/// The name of number `index` of millpond_memory_stats; nullptr past the last.
inline const char* statistic_name(std::size_t index) noexcept {
  return millpond_memory_stats_name(index);
}
/// The same of millpond_host_memory_stats.
inline const char* host_statistic_name(std::size_t index) noexcept {
  return millpond_host_memory_stats_name(index);
}
/// The name of a MILLPOND_LATENCY_* number; nullptr for another.
inline const char* latency_name(std::uint32_t what) noexcept { return millpond_latency_name(what); }
/// Where the buckets of millpond_latency begin. [ns]
inline std::uint64_t latency_bucket_start(std::size_t index) noexcept {
  return millpond_latency_bucket_start(index);
}
/// The number of that name, such as "allocated_bytes.all.peak". Throws MILLPOND_E_INVALID_ARGUMENT
/// for a name that there is not.
inline std::uint64_t statistic(const millpond_memory_stats& stats, const char* name) {
  std::uint64_t value = 0;
  check(millpond_memory_stats_find(&stats, name, &value));
  return value;
}
/// The same of pinned memory, such as "active_bytes.peak".
inline std::uint64_t statistic(const millpond_host_memory_stats& stats, const char* name) {
  std::uint64_t value = 0;
  check(millpond_host_memory_stats_find(&stats, name, &value));
  return value;
}
/// A duration in nanoseconds that this part (0 to 1) of the calls did not exceed; at most a quarter
/// too long. Throws MILLPOND_E_INVALID_ARGUMENT for another part.
inline std::uint64_t quantile(const millpond_latency& latency, double part) {
  std::uint64_t ns = 0;
  check(millpond_latency_quantile(&latency, part, &ns));
  return ns;
}

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_STATISTICS_HPP
