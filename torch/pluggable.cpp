// See pluggable.hpp. A thin layer over Millpond's C API, which is linked in and hidden; no libtorch
// is needed.
//
// The device type is `cuda`; MILLPOND_TORCH_DEVICE names another one, such as `host`, for tests.
// This file keeps the pools that PyTorch asked for, and the live blocks for snapshots. They are
// never destroyed, since PyTorch frees tensors while the process ends. A device's lock may be held
// during a call of Millpond, which never calls back here; the shards of the blocks are locked last.
#include "pluggable.hpp"

#include <millpond/millpond.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace millpond_torch {
namespace {

thread_local std::string last_error;

/// What PyTorch shows to the user: it makes a RuntimeError of any std::exception.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& what)
      : what_(std::make_shared<const std::string>(what)) {}
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // shared: copying an exception must not throw
};

bool failed(C_Status status) {
  if (status == C_SUCCESS) return false;
  last_error = millpond_last_error_message();
  return true;
}

/// Adds to the error why there is no memory and who holds it, if that is what the call failed for.
void explain() {
  millpond_oom_report report{};
  report.struct_size = sizeof report;
  std::size_t size = 0;
  if (millpond_last_oom(&report) != C_SUCCESS ||
      millpond_oom_report_text(&report, nullptr, 0, &size) != C_SUCCESS) {
    return;
  }
  std::string text(size, '\0');
  if (millpond_oom_report_text(&report, &text[0], size, nullptr) != C_SUCCESS) return;
  text.resize(size - 1);
  last_error += "\n" + text;
}

const char* environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

const std::string& device_type() {
  static const auto* type = new std::string(environment("MILLPOND_TORCH_DEVICE", "cuda"));
  return *type;
}

C_Stream stream_of(Stream stream) { return reinterpret_cast<C_Stream>(stream); }

/// A pool that PyTorch named. It outlives its release until its last block ends.
struct Pool {
  PoolId id;
  millpond_pool* pool = nullptr;
#ifdef MILLPOND_TORCH_CAPTURE
  millpond_capture* capture = nullptr;
  std::vector<Stream> captured;
  std::vector<millpond_capture*> ended;  // kept until the release
#endif
  std::vector<Filter> filters;  // between begin and end; the last one counts first
  bool released = false;
};

struct Device {
  millpond_device* device = nullptr;
  millpond_pool* pool = nullptr;  // the default one
  std::mutex lock;                // guards what follows
  std::vector<std::unique_ptr<Pool>> pools;
  std::atomic<int> active{0};  // filters in all: no lock is taken without any
};

constexpr std::size_t kDevices = 64;
constexpr std::size_t kShards = 64;

struct Shard {
  std::mutex lock;
  std::unordered_map<void*, Block> blocks;
};

struct State {
  std::mutex opening;
  std::array<std::atomic<Device*>, kDevices> devices{};
  std::array<std::unique_ptr<std::array<Shard, kShards>>, kDevices> shards{};
};

State& state() {
  static auto* all = new State;
  return *all;
}

/// The device, opened on first use; NULL, with the error kept, when it cannot be had.
Device* device_at(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= kDevices) {
    last_error = "there is no device " + std::to_string(ordinal);
    return nullptr;
  }
  State& all = state();
  const auto at = static_cast<std::size_t>(ordinal);
  if (Device* device = all.devices[at].load(std::memory_order_acquire)) return device;
  std::lock_guard<std::mutex> held(all.opening);
  if (Device* device = all.devices[at].load(std::memory_order_acquire)) return device;
  auto device = std::make_unique<Device>();
  // PyTorch's environment variables are meant for this allocator.
  if (failed(millpond_set_pytorch_options(device_type().c_str())) ||
      failed(millpond_device_get(device_type().c_str(), ordinal, &device->device)) ||
      failed(millpond_device_get_default_pool(device->device, &device->pool))) {
    return nullptr;
  }
  all.shards[at] = std::make_unique<std::array<Shard, kShards>>();
  // Release: who sees the device sees its shards.
  all.devices[at].store(device.get(), std::memory_order_release);
  return device.release();
}

Shard& shard_of(int device, const void* ptr) {
  // Blocks are 512 bytes apart at least.
  const auto address = reinterpret_cast<std::uintptr_t>(ptr) >> 9;
  return (*state().shards[static_cast<std::size_t>(device)])[(address ^ address >> 12) % kShards];
}

/// Runs `body`; what it throws (memory of the host for our own books) becomes `otherwise`.
template <typename Body, typename Result>
Result guard(Result otherwise, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    try {
      last_error = "the process has no memory for Millpond's own books";
    } catch (...) {
    }
    return otherwise;
  }
}

/// Where a request of the stream goes. The device's lock is held, and stays so until the block is
/// there: a pool must not end in between.
Pool* pool_for(Device& device, Stream stream) {
  for (auto pool = device.pools.rbegin(); pool != device.pools.rend(); ++pool) {
    for (auto filter = (*pool)->filters.rbegin(); filter != (*pool)->filters.rend(); ++filter) {
      if ((*filter)(stream)) return pool->get();
    }
  }
  return nullptr;
}

/// The pool's memory must not move while work on the stream is recorded, so Millpond is told of the
/// capture. Streams that cannot be captured (the default one) use the pool without.
void note_capture([[maybe_unused]] Pool& pool, [[maybe_unused]] Stream stream) {
#ifdef MILLPOND_TORCH_CAPTURE
  for (Stream known : pool.captured) {
    if (known == stream) return;
  }
  if (stream == nullptr) return;
  const C_Status status = pool.capture == nullptr
                              ? millpond_capture_begin(pool.pool, stream_of(stream), &pool.capture)
                              : millpond_capture_add_stream(pool.capture, stream_of(stream));
  if (status == C_SUCCESS) pool.captured.push_back(stream);
#endif
}

/// Ends pools that were released and are empty.
void sweep(Device& device) {
  for (auto pool = device.pools.begin(); pool != device.pools.end();) {
    if ((*pool)->released && (*pool)->filters.empty() &&
        millpond_pool_destroy((*pool)->pool) == C_SUCCESS) {
      pool = device.pools.erase(pool);
    } else {
      ++pool;
    }
  }
}

void* allocate(std::size_t size, int ordinal, Stream stream) {
  Device* device = device_at(ordinal);
  if (device == nullptr) return nullptr;
  void* ptr = nullptr;
  PoolId id{0, 0};
  C_Status status;
  // Acquire: pairs with the release in begin, so that a capture's first request finds its filter.
  if (device->active.load(std::memory_order_acquire) == 0) {
    status = millpond_pool_alloc(device->pool, size, stream_of(stream), &ptr);
  } else {
    std::lock_guard<std::mutex> held(device->lock);
    Pool* pool = pool_for(*device, stream);
    if (pool != nullptr) {
      note_capture(*pool, stream);
      id = pool->id;
    }
    status = millpond_pool_alloc(pool != nullptr ? pool->pool : device->pool, size,
                                 stream_of(stream), &ptr);
  }
  if (failed(status)) {
    explain();
    return nullptr;
  }
  if (ptr == nullptr) return nullptr;  // 0 bytes
  Shard& shard = shard_of(ordinal, ptr);
  try {
    std::lock_guard<std::mutex> held(shard.lock);
    shard.blocks[ptr] = Block{reinterpret_cast<std::uintptr_t>(ptr),    size,     size,
                              reinterpret_cast<std::uintptr_t>(stream), id.first, id.second};
  } catch (...) {
    (void)millpond_pool_free(device->pool, ptr, stream_of(stream));
    last_error = "the process has no memory for Millpond's own books";
    return nullptr;
  }
  last_error.clear();
  return ptr;
}

Pool* find(Device& device, PoolId id) {
  for (auto& pool : device.pools) {
    if (pool->id == id && !pool->released) return pool.get();
  }
  return nullptr;
}

}  // namespace
}  // namespace millpond_torch

using namespace millpond_torch;

void* millpond_torch_alloc(ssize_t size, int device, Stream stream) {
  if (size == 0) return nullptr;
  void* ptr = nullptr;
  if (size < 0) {
    last_error = "a negative size";
  } else {
    ptr = guard(static_cast<void*>(nullptr),
                [&] { return allocate(static_cast<std::size_t>(size), device, stream); });
  }
  if (ptr != nullptr) return ptr;
  if (std::strcmp(environment("MILLPOND_TORCH_OOM", "throw"), "null") == 0) return nullptr;
  throw OutOfMemory("Millpond, " + device_type() + " device " + std::to_string(device) + ", " +
                    std::to_string(size) + " bytes: " + last_error);
}

void millpond_torch_free(void* ptr, ssize_t, int device, Stream stream) {
  if (ptr == nullptr) return;
  guard(0, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    // Out of the table first: as soon as the block ends, another thread may get its address.
    Shard& shard = shard_of(device, ptr);
    Block block{};
    bool known = false;
    {
      std::lock_guard<std::mutex> held(shard.lock);
      const auto found = shard.blocks.find(ptr);
      if (found != shard.blocks.end()) {
        known = true;
        block = found->second;
        shard.blocks.erase(found);
      }
    }
    if (failed(millpond_pool_free(on->pool, ptr, stream_of(stream)))) {
      if (known) {
        std::lock_guard<std::mutex> held(shard.lock);
        shard.blocks[ptr] = block;
      }
      return 1;
    }
    if (block.pool_first != 0 || block.pool_second != 0) {
      std::lock_guard<std::mutex> held(on->lock);
      sweep(*on);
    }
    return 0;
  });
}

void millpond_torch_init(int) {}  // devices are opened on first use

void millpond_torch_reset() {
  guard(0, [] {
    for (auto& at : state().devices) {
      if (Device* device = at.load(std::memory_order_acquire))
        (void)failed(millpond_device_empty_cache(device->device));
    }
    return 0;
  });
}

void millpond_torch_memory_fraction(double fraction, int device) {
  guard(0, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    if (!(fraction >= 0.0 && fraction <= 1.0)) {
      last_error = "the fraction lies between 0 and 1";
      return 1;
    }
    millpond_device_info info{};
    info.struct_size = sizeof info;
    if (failed(millpond_device_get_info(on->device, &info))) return 1;
    // A limit of 0 would be none.
    const auto limit = static_cast<std::uint64_t>(fraction * static_cast<double>(info.total_bytes));
    return failed(millpond_device_set_limit(on->device, fraction >= 1.0 ? 0
                                                        : limit == 0    ? 1
                                                                        : limit))
               ? 1
               : 0;
  });
}

void* millpond_torch_base_alloc(void* ptr, std::size_t* size) {
  millpond_block_info info{};
  info.struct_size = sizeof info;
  if (failed(millpond_get_block(ptr, &info))) {
    if (size != nullptr) *size = 0;
    return ptr;
  }
  if (size != nullptr) *size = info.size_bytes;
  return info.base;
}

void millpond_torch_record_stream(void* ptr, Stream stream) {
  if (ptr == nullptr || !failed(millpond_record_stream(ptr, stream_of(stream)))) return;
  // PyTorch does not check whose memory it is; memory of others is not recorded here.
  if (millpond_last_error_code() == MILLPOND_E_UNKNOWN_POINTER) return;
  // Unheard, the block would be used again while the stream still works on it.
  throw std::runtime_error("Millpond cannot keep a block for another stream that uses it: " +
                           last_error);
}

void millpond_torch_begin_allocate_to_pool(int device, PoolId id, Filter filter) {
  guard(0, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    std::lock_guard<std::mutex> held(on->lock);
    Pool* pool = find(*on, id);
    if (pool == nullptr) {
      auto made = std::make_unique<Pool>();
      made->id = id;
      if (failed(millpond_pool_create(on->device, nullptr, &made->pool))) return 1;
      pool = made.get();
      on->pools.push_back(std::move(made));
    }
    pool->filters.push_back(std::move(filter));
    on->active.fetch_add(1, std::memory_order_release);
    return 0;
  });
}

void millpond_torch_end_allocate_to_pool(int device, PoolId id) {
  guard(0, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    std::lock_guard<std::mutex> held(on->lock);
    Pool* pool = find(*on, id);
    if (pool == nullptr || pool->filters.empty()) {
      last_error = "no allocation to this pool was begun";
      return 1;
    }
    pool->filters.pop_back();
    on->active.fetch_sub(1, std::memory_order_release);
#ifdef MILLPOND_TORCH_CAPTURE
    // The graph keeps the pool's memory until the release; a later capture into the same pool is
    // one of its own.
    if (pool->filters.empty() && pool->capture != nullptr) {
      (void)failed(millpond_capture_end(pool->capture));
      pool->captured.clear();
      pool->ended.push_back(pool->capture);
      pool->capture = nullptr;
    }
#endif
    return 0;
  });
}

void millpond_torch_release_pool(int device, PoolId id) {
  guard(0, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    std::lock_guard<std::mutex> held(on->lock);
    Pool* pool = find(*on, id);
    if (pool == nullptr) return 0;  // nothing was ever allocated to it
#ifdef MILLPOND_TORCH_CAPTURE
    if (pool->capture != nullptr) pool->ended.push_back(pool->capture);
    pool->capture = nullptr;
    for (millpond_capture* capture : pool->ended) (void)failed(millpond_capture_release(capture));
    pool->ended.clear();
#endif
    on->active.fetch_sub(static_cast<int>(pool->filters.size()), std::memory_order_release);
    pool->filters.clear();
    pool->released = true;
    sweep(*on);
    return 0;
  });
}

int millpond_torch_device_count(std::size_t* out) {
  return guard(
      1, [&] { return failed(millpond_device_get_count(device_type().c_str(), out)) ? 1 : 0; });
}

int millpond_torch_stats(int device, Stats* inout) {
  return guard(1, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    millpond_stats s{};
    s.struct_size = sizeof s;
    if (failed(millpond_device_get_stats(on->device, &s))) return 1;
    const auto counter = [](const millpond_counter& c) {
      return Counter{c.current, c.peak, c.total};
    };
    const Stats all{inout->struct_size,         counter(s.requested_bytes),
                    counter(s.allocated_bytes), counter(s.active_bytes),
                    counter(s.reserved_bytes),  counter(s.blocks),
                    counter(s.segments),        s.driver_calls,
                    s.out_of_memory_count,      s.limit_bytes};
    std::memcpy(inout, &all, inout->struct_size < sizeof all ? inout->struct_size : sizeof all);
    return 0;
  });
}

int millpond_torch_tag_push(const char* name) {
  return guard(1, [&] { return failed(millpond_tag_push(name)) ? 1 : 0; });
}

int millpond_torch_tag_pop() {
  return guard(1, [&] { return failed(millpond_tag_pop()) ? 1 : 0; });
}

int millpond_torch_tag_bytes(int device, const char* name, std::uint64_t* out) {
  return guard(1, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    std::vector<millpond_tag_stats> all(16);
    std::size_t count = 0;
    for (;;) {
      if (failed(millpond_device_list_tags(on->device, all.data(), sizeof all[0], all.size(),
                                           &count))) {
        return 1;
      }
      if (count <= all.size()) break;
      all.resize(count);
    }
    *out = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (std::strcmp(all[i].name, name) == 0) *out = all[i].allocated_bytes.current;
    }
    return 0;
  });
}

namespace {
// Writes the numbers of `stats`, by their names.
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
}  // namespace

int millpond_torch_memory_stats(int device, std::uint64_t* out, std::size_t room,
                                std::size_t* count) {
  return guard(1, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    millpond_memory_stats s{};
    s.struct_size = sizeof s;
    if (failed(millpond_device_get_memory_stats(on->device, &s))) return 1;
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
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    millpond_host_memory_stats s{};
    s.struct_size = sizeof s;
    if (failed(millpond_device_get_host_memory_stats(on->device, &s))) return 1;
    return write_numbers(s, millpond_host_memory_stats_name, millpond_host_memory_stats_find, out,
                         room, count);
  });
}

const char* millpond_torch_host_memory_stats_name(std::size_t index) {
  return millpond_host_memory_stats_name(index);
}

int millpond_torch_reset_accumulated(int device) {
  return guard(1, [&] {
    Device* on = device_at(device);
    return on == nullptr || failed(millpond_device_reset_accumulated(on->device)) ? 1 : 0;
  });
}

int millpond_torch_memory(int device, std::uint64_t* total, std::uint64_t* free) {
  return guard(1, [&] {
    Device* on = device_at(device);
    if (on == nullptr) return 1;
    millpond_device_info info{};
    info.struct_size = sizeof info;
    if (failed(millpond_device_get_info(on->device, &info))) return 1;
    *total = info.total_bytes;
    *free = info.free_bytes;
    return 0;
  });
}

int millpond_torch_reset_peaks(int device) {
  return guard(1, [&] {
    Device* on = device_at(device);
    return on == nullptr || failed(millpond_device_reset_peaks(on->device)) ? 1 : 0;
  });
}

std::size_t millpond_torch_blocks(int device, Block* out, std::size_t room) {
  return guard(std::size_t{0}, [&] {
    std::size_t count = 0;
    if (device_at(device) == nullptr) return count;
    for (Shard& shard : *state().shards[static_cast<std::size_t>(device)]) {
      std::lock_guard<std::mutex> held(shard.lock);
      for (const auto& [ptr, block] : shard.blocks) {
        if (count < room) {
          out[count] = block;
          millpond_block_info info{};
          info.struct_size = sizeof info;
          // The block cannot end here: it is taken out of the table first.
          if (millpond_get_block(ptr, &info) == C_SUCCESS) out[count].size_bytes = info.size_bytes;
        }
        ++count;
      }
    }
    return count;
  });
}

int millpond_torch_can_capture() {
#ifdef MILLPOND_TORCH_CAPTURE
  return 1;
#else
  return 0;
#endif
}

const char* millpond_torch_last_error() { return last_error.c_str(); }

const char* millpond_torch_version() { return millpond_version(); }
