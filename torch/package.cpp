// What the Python package asks: numbers, blocks and tags. A device that PyTorch does not use yet
// has none; asking does not start it.
#include <millpond/millpond.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "devices.hpp"
#include "pluggable.hpp"

using namespace millpond_torch;

namespace {

/// Whether PyTorch does not use the device yet, which exists.
bool idle(int device) {
  std::size_t count = 0;
  return open_device(device) == nullptr && device >= 0 &&
         !failed(millpond_device_get_count(device_type().c_str(), &count)) &&
         static_cast<std::size_t>(device) < count;
}

/// Writes the numbers of `stats`, by their names.
template <typename Stats>
int write_numbers(const Stats& stats, const char* (*name)(std::size_t),
                  C_Status (*find)(const Stats*, const char*, std::uint64_t*), std::uint64_t* out,
                  std::size_t room, std::size_t* count) {
  std::size_t n = 0;
  for (; name(n) != nullptr; ++n) {
    if (n < room && failed(find(&stats, name(n), &out[n]))) return 1;
  }
  *count = n;
  return 0;
}

/// As much of the numbers as the caller has room for.
void write_stats(const millpond_stats& s, Stats& inout) {
  const auto counter = [](const millpond_counter& c) {
    return Counter{c.current, c.peak, c.total};
  };
  const Stats all{inout.struct_size,          counter(s.requested_bytes),
                  counter(s.allocated_bytes), counter(s.active_bytes),
                  counter(s.reserved_bytes),  counter(s.blocks),
                  counter(s.segments),        s.driver_calls,
                  s.out_of_memory_count,      s.limit_bytes};
  std::memcpy(&inout, &all, inout.struct_size < sizeof all ? inout.struct_size : sizeof all);
}

/// Fills `stats` for a device that is in use. False: it cannot be had.
template <typename Stats>
bool read(int device, Stats& stats, C_Status (*get)(const millpond_device*, Stats*)) {
  stats.struct_size = sizeof stats;
  if (idle(device)) return true;
  Device* on = device_at(device);
  return on != nullptr && !failed(get(on->get(), &stats));
}

}  // namespace

int millpond_torch_device_count(std::size_t* out) {
  return guard(
      1, [&] { return failed(millpond_device_get_count(device_type().c_str(), out)) ? 1 : 0; });
}

int millpond_torch_stats(int device, Stats* inout) {
  return guard(1, [&] {
    millpond_stats s{};
    if (!read(device, s, millpond_device_get_stats)) return 1;
    write_stats(s, *inout);
    return 0;
  });
}

int millpond_torch_pool_hold(int device, std::uint64_t first, std::uint64_t second) {
  return guard(1, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    try {
      on->hold({first, second});
    } catch (const Refused& refused) {
      last_error() = refused.what();
      return 1;
    }
    return 0;
  });
}

void millpond_torch_pool_drop(int device, std::uint64_t first, std::uint64_t second) {
  millpond_torch_release_pool(device, {first, second});
}

int millpond_torch_pool_uses(int device, std::uint64_t first, std::uint64_t second) {
  Device* on = open_device(device);
  return on != nullptr ? on->uses({first, second}) : 0;
}

int millpond_torch_pool_serves_others(int device, std::uint64_t first, std::uint64_t second,
                                      bool serves) {
  return guard(1, [&] {
    Device* on = open_device(device);
    if (on != nullptr && on->serve_others({first, second}, serves)) return 0;
    last_error() = "there is no such pool";
    return 1;
  });
}

bool millpond_torch_pool_is_spare(int device, std::uint64_t first, std::uint64_t second) {
  Device* on = open_device(device);
  return on != nullptr && on->serves_others({first, second});
}

void millpond_torch_avert_oom(int device) {
  Device* on = open_device(device);
  if (on != nullptr) on->avert_oom();
}

void millpond_torch_copies_by_peer() { map_always(); }

int millpond_torch_no() { return 0; }

int millpond_torch_tag_push(const char* name) {
  return guard(1, [&] { return failed(millpond_tag_push(name)) ? 1 : 0; });
}

int millpond_torch_tag_pop() {
  return guard(1, [&] { return failed(millpond_tag_pop()) ? 1 : 0; });
}

int millpond_torch_tag_bytes(int device, const char* name, std::uint64_t* out) {
  return guard(1, [&] {
    *out = 0;
    if (idle(device)) return 0;
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    std::vector<millpond_tag_stats> all(16);
    std::size_t count = 0;
    for (;;) {
      if (failed(millpond_device_list_tags(on->get(), all.data(), sizeof all[0], all.size(),
                                           &count))) {
        return 1;
      }
      if (count <= all.size()) break;
      all.resize(count);
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (std::strcmp(all[i].name, name) == 0) *out = all[i].allocated_bytes.current;
    }
    return 0;
  });
}

int millpond_torch_memory_stats(int device, std::uint64_t* out, std::size_t room,
                                std::size_t* count) {
  return guard(1, [&] {
    millpond_memory_stats s{};
    if (idle(device)) s.max_split_size = UINT64_MAX;  // unlimited
    if (!read(device, s, millpond_device_get_memory_stats)) return 1;
    Device* on = open_device(device);
    if (on != nullptr) s.num_ooms -= std::min(s.num_ooms, on->averted_ooms());
    return write_numbers(s, millpond_memory_stats_name, millpond_memory_stats_find, out, room,
                         count);
  });
}

const char* millpond_torch_memory_stats_name(std::size_t index) {
  return millpond_memory_stats_name(index);
}

int millpond_torch_host_memory_stats(int device, std::uint64_t* out, std::size_t room,
                                     std::size_t* count) {
  return guard(1, [&] {
    millpond_host_memory_stats s{};
    if (!read(device, s, millpond_device_get_host_memory_stats)) return 1;
    return write_numbers(s, millpond_host_memory_stats_name, millpond_host_memory_stats_find, out,
                         room, count);
  });
}

const char* millpond_torch_host_memory_stats_name(std::size_t index) {
  return millpond_host_memory_stats_name(index);
}

int millpond_torch_reset_accumulated(int device) {
  return guard(1, [&] {
    if (idle(device)) return 0;
    Device* on = device_at(device);
    if (on == nullptr || failed(millpond_device_reset_accumulated(on->get()))) return 1;
    on->reset_averted_ooms();
    return 0;
  });
}

int millpond_torch_memory(int device, std::uint64_t* total, std::uint64_t* free) {
  return guard(1, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    millpond_device_info info{};
    info.struct_size = sizeof info;
    if (failed(millpond_device_get_info(on->get(), &info))) return 1;
    *total = info.total_bytes;
    *free = info.free_bytes;
    return 0;
  });
}

int millpond_torch_reset_peaks(int device) {
  return guard(1, [&] {
    if (idle(device)) return 0;
    Device* on = device_at(device);
    return on == nullptr || failed(millpond_device_reset_peaks(on->get())) ? 1 : 0;
  });
}

int millpond_torch_cpu_stats(Stats* inout) {
  return guard(1, [&] {
    millpond_device* cpu = nullptr;
    millpond_stats s{};
    s.struct_size = sizeof s;
    if (failed(millpond_device_get("cpu", 0, &cpu)) || failed(millpond_device_get_stats(cpu, &s))) {
      return 1;
    }
    write_stats(s, *inout);
    return 0;
  });
}

int millpond_torch_cpu_reset_peaks() {
  return guard(1, [&] {
    millpond_device* cpu = nullptr;
    return failed(millpond_device_get("cpu", 0, &cpu)) || failed(millpond_device_reset_peaks(cpu));
  });
}

std::size_t millpond_torch_blocks(int device, Block* out, std::size_t room) {
  return guard(std::size_t{0}, [&]() -> std::size_t {
    Device* on = open_device(device);
    if (on == nullptr) return 0;
    std::vector<millpond_block_record> records(room);
    std::size_t count = 0;
    if (failed(millpond_device_list_blocks(on->get(), nullptr, MILLPOND_BLOCK_LIVE, records.data(),
                                           sizeof(millpond_block_record), room, &count))) {
      return 0;
    }
    for (std::size_t i = 0; i < room && i < count; ++i) {
      const millpond_block_record& block = records[i];
      const PoolId id = on->id_of(block.pool);
      out[i] = {
          reinterpret_cast<std::uintptr_t>(block.ptr),    block.size_bytes, block.requested_bytes,
          reinterpret_cast<std::uintptr_t>(block.stream), id.first,         id.second};
    }
    return count;
  });
}
