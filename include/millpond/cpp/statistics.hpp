// Lists of blocks, segments and streams, statistics by name, and how long calls took. Device and
// PoolView have the calls.
#ifndef MILLPOND_CPP_STATISTICS_HPP
#define MILLPOND_CPP_STATISTICS_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "millpond/cpp/error.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

namespace detail {
/// A function of the program on its way through a walk. What it lets out ends the walk, and is
/// thrown again behind it: nothing may pass through the library.
template <typename Function>
struct Walk {
  const Function& function;
#if MILLPOND_CPP_EXCEPTIONS
  std::exception_ptr thrown = nullptr;
#endif
  template <typename Record>
  static bool step(void* user_data, const Record* record) {
    auto& walk = *static_cast<Walk*>(user_data);
#if MILLPOND_CPP_EXCEPTIONS
    try {
      return walk.function(*record);
    } catch (...) {
      walk.thrown = std::current_exception();
      return false;
    }
#else
    return walk.function(*record);
#endif
  }
  C_Status ended(C_Status status) const {
#if MILLPOND_CPP_EXCEPTIONS
    if (thrown) std::rethrow_exception(thrown);
#endif
    return check(status);
  }
};
template <typename Function>
C_Status each_block(const millpond_device* device, const millpond_pool* pool, std::uint32_t states,
                    const Function& function) {
  Walk<Function> walk{function};
  return walk.ended(millpond_device_walk_blocks(
      device, pool, states, &Walk<Function>::template step<millpond_block_record>, &walk));
}
template <typename Function>
C_Status each_segment(const millpond_device* device, const millpond_pool* pool,
                      const Function& function) {
  Walk<Function> walk{function};
  return walk.ended(millpond_device_walk_segments(
      device, pool, &Walk<Function>::template step<millpond_segment_record>, &walk));
}
inline std::vector<millpond_segment_record> list_segments(const millpond_device* device,
                                                          const millpond_pool* pool) {
  std::vector<millpond_segment_record> all(64);
  for (;;) {
    std::size_t count = 0;
    if (check(millpond_device_list_segments(device, pool, all.data(), sizeof all[0], all.size(),
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
// The text of a function that writes (buffer, capacity, how many bytes it needs).
template <typename Write>
std::string written(Write write) {
  std::string out;
  std::size_t needed = 0;
  C_Status status = check(write(static_cast<char*>(nullptr), std::size_t{0}, &needed));
  // It may have grown meanwhile.
  while (status == C_SUCCESS && needed > out.size()) {
    out.resize(needed);
    status = check(write(&out[0], out.size(), &needed));
  }
  out.resize(status == C_SUCCESS ? needed - 1 : 0);
  return out;
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
/// What Device::stats_text() tells of one device, of all devices that are open: as a page for
/// Prometheus (MILLPOND_STATS_PROMETHEUS) that has each head once, or as JSON.
inline std::string stats_text(std::uint32_t format = MILLPOND_STATS_JSON) {
  return detail::written([&](char* buffer, std::size_t capacity, std::size_t* needed) {
    return millpond_write_stats(format, buffer, capacity, needed);
  });
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
