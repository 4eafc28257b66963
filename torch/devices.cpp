// See devices.hpp. A device's lock may be held during a call of Millpond, of the driver or of
// PyTorch's filter, none of which calls back here. Such a call can wait: the begin, the growth and
// the end of a capture, and the making of a pool, for what other threads do in Millpond. The lock
// is not held while a request is served, a pool's captures are released, or an ended pool goes.
// Nothing here is ever destroyed, since PyTorch frees tensors while the process ends.
#include "devices.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <utility>

namespace millpond_torch {
namespace {

/// So many ended pools are left to torch.cuda.empty_cache(); then a begin gives their memory back.
constexpr std::size_t kEnded = 64;

/// The driver's library, which Millpond uses too, started; NULL where there is none.
void* driver() {
  static void* const library = []() -> void* {
    if (device_type() != "cuda") return nullptr;
    const char* named = std::getenv("MILLPOND_CUDA_LIBRARY");
    void* found = dlopen(named != nullptr && *named != '\0' ? named : "libcuda.so.1", RTLD_NOW);
    if (found == nullptr) return nullptr;
    const auto start = reinterpret_cast<int (*)(unsigned)>(dlsym(found, "cuInit"));
    return start != nullptr && start(0) == 0 ? found : nullptr;
  }();
  return library;
}

template <typename Function>
Function driver_function(const char* name) {
  return driver() == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(driver(), name));
}

/// Whether work on `peer` can use memory of `device`, by the driver, without opening either.
bool reaches(int peer, int device) {
  using Function = int (*)(int*, int, int);
  static const auto ask = driver_function<Function>("cuDeviceCanAccessPeer");
  int can = 0;
  return ask != nullptr && ask(&can, peer, device) == 0 && can != 0;
}

std::atomic<bool> mapped_always{false};

/// A pluggable allocator copies between devices by cudaMemcpyAsync, for which the driver can stage
/// what cuMemAlloc gave, but not what is mapped. So a device that does not reach all others gives
/// segments, unless MILLPOND_ALLOC_CONF speaks of them.
bool choose_memory(int ordinal) {
  if (mapped_always.load(std::memory_order_relaxed)) return true;
  const char* options = std::getenv("MILLPOND_ALLOC_CONF");
  if (options != nullptr && std::string(options).find("expandable_segments") != std::string::npos) {
    return true;
  }
  std::size_t count = 0;
  if (failed(millpond_device_get_count(device_type().c_str(), &count))) return false;
  for (int other = 0; device_type() == "cuda" && other < static_cast<int>(count); ++other) {
    if (other == ordinal || (reaches(other, ordinal) && reaches(ordinal, other))) continue;
    return !failed(
        millpond_set_default_options(device_type().c_str(), ordinal, "expandable_segments:False"));
  }
  return true;
}

/// PyTorch never destroys the streams of its pools. Whoever wraps a stream of another library in
/// torch.cuda.ExternalStream must keep it alive, for PyTorch's own allocator, too.
bool announce_streams() {
  const char* options = std::getenv("MILLPOND_ALLOC_CONF");
  if (options != nullptr && std::string(options).find("streams_announced") != std::string::npos) {
    return true;
  }
  return !failed(millpond_set_default_options(device_type().c_str(), -1, "streams_announced:on"));
}

/// Work on any of the open devices may use memory of the others, where the driver allows it.
void admit(Device& device) {
  for (auto& at : devices) {
    Device* other = at.load(std::memory_order_acquire);
    if (other == nullptr) continue;
    for (auto [of, peer] : {std::pair{&device, other}, std::pair{other, &device}}) {
      bool can = false;
      if (!failed(millpond_device_can_access_peer(of->get(), peer->get(), &can)) && can) {
        (void)failed(millpond_device_enable_peer_access(of->get(), peer->get()));
      }
    }
  }
}

}  // namespace

std::mutex& opening() {
  static auto* lock = new std::mutex;
  return *lock;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

void keep_error() { last_error() = millpond_last_error_message(); }

const std::string& device_type() {
  static const auto* type = [] {
    const char* value = std::getenv("MILLPOND_TORCH_DEVICE");
    return new std::string(value != nullptr && *value != '\0' ? value : "cuda");
  }();
  return *type;
}

/// Errors of the question that say no: the driver is not started or is ending, the context or the
/// stream is gone, and the default stream by its other name while another one is captured.
constexpr std::array<int, 7> kNotRecorded{
    1,    // CUDA_ERROR_INVALID_VALUE
    3,    // CUDA_ERROR_NOT_INITIALIZED
    4,    // CUDA_ERROR_DEINITIALIZED
    201,  // CUDA_ERROR_INVALID_CONTEXT
    400,  // CUDA_ERROR_INVALID_HANDLE
    709,  // CUDA_ERROR_CONTEXT_IS_DESTROYED
    906,  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
};

Recording recording(Stream stream) {
  using Function = int (*)(Stream, int*, std::uint64_t*, void**, const void**, std::size_t*);
  static const auto ask = driver_function<Function>("cuStreamGetCaptureInfo_v2");
  int status = 0;
  std::uint64_t id = 0;
  // The default stream cannot be captured.
  if (ask == nullptr || stream == nullptr) return {Recording::State::none, 0};
  const int code = ask(stream, &status, &id, nullptr, nullptr, nullptr);
  if (code != 0) {
    const bool none =
        std::find(kNotRecorded.begin(), kNotRecorded.end(), code) != kNotRecorded.end();
    return {none ? Recording::State::none : Recording::State::unknown, 0};
  }
  return {status == 0   ? Recording::State::none
          : status == 1 ? Recording::State::active
                        : Recording::State::broken,
          id};
}

void map_always() { mapped_always.store(true, std::memory_order_relaxed); }

int device_limit() { return static_cast<int>(kDevices); }

Device* open_now(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= kDevices) {
    last_error() = "there is no device " + std::to_string(ordinal);
    return nullptr;
  }
  std::lock_guard<std::mutex> held(opening());
  if (Device* device = open_device(ordinal)) return device;
  millpond_device* device = nullptr;
  millpond_pool* pool = nullptr;
  // PyTorch's environment variables are meant for this allocator.
  if (failed(millpond_set_pytorch_options(device_type().c_str())) || !announce_streams() ||
      !choose_memory(ordinal) ||
      failed(millpond_device_get(device_type().c_str(), ordinal, &device)) ||
      !apply_settings(device) || failed(millpond_device_get_default_pool(device, &pool))) {
    return nullptr;
  }
  auto made = std::make_unique<Device>(device, pool);
  admit(*made);
  // Release: who finds the device sees what it consists of.
  devices[static_cast<std::size_t>(ordinal)].store(made.get(), std::memory_order_release);
  Device* const opened = made.release();
  begin_histories(*opened, ordinal);
  return opened;
}

std::shared_ptr<Pool> Device::busy_pool_for(Stream stream) {
  std::lock_guard<std::mutex> held(lock_);
  const Recording now = recording(stream);
  end_stale(stream, now);
  for (auto active = active_.rbegin(); active != active_.rend(); ++active) {
    if (!active->filter(stream)) continue;
    std::shared_ptr<Pool> pool = active->pool;
    if (now.state == Recording::State::unknown) {
      // It may be recorded: its memory is kept as if it were, or the request fails.
      active->others = true;
      protect(pool, stream, 0);
    } else if (now.state != Recording::State::active) {
      active->others = true;
    } else {
      active->others |= active->only != 0 && active->only != now.id;
      active->only = now.id;
      protect(pool, stream, now.id);
    }
    return pool;
  }
  return nullptr;
}

/// Tells Millpond that work on the stream is recorded into a graph whose memory is the pool's. An
/// id of 0 is unknown: any capture of the stream will do.
void Device::protect(const std::shared_ptr<Pool>& pool, Stream stream, std::uint64_t id) {
  if (pool->elsewhere) return;
  if (unpooled_) return;  // the driver keeps what its own pool gave to a graph
  Capture* joined = nullptr;
  for (Capture& capture : captures_) {
    if (capture.over || (id != 0 && capture.id != id)) continue;
    // Also if an outer pool has the stream: the graph's memory is that one's.
    if (std::find(capture.streams.begin(), capture.streams.end(), stream) !=
        capture.streams.end()) {
      return;
    }
    if (id != 0 && capture.pool == pool) joined = &capture;
  }
  millpond_capture* handle = nullptr;
  if (failed(joined != nullptr ? millpond_capture_add_stream(joined->handle, stream_of(stream))
                               : millpond_capture_begin(pool->pool, stream_of(stream), &handle))) {
    throw Refused("Millpond cannot keep the memory of a graph for its replays: " + last_error());
  }
  if (joined != nullptr) {
    joined->streams.push_back(stream);
  } else {
    captures_.push_back({pool, id, handle, {stream}, false});
  }
  count();
}

/// Ends captures of the stream that the driver does not record any more. PyTorch does not tell of
/// the end of a capture that broke, up to 2.11, and captures the next graph on the same stream.
void Device::end_stale(Stream stream, const Recording& now) {
  if (now.state == Recording::State::broken) return;   // its end is still to come
  if (now.state == Recording::State::unknown) return;  // it may go on
  for (Capture& capture : captures_) {
    if (capture.over || (now.state == Recording::State::active && capture.id == now.id) ||
        std::find(capture.streams.begin(), capture.streams.end(), stream) ==
            capture.streams.end()) {
      continue;
    }
    end_capture(capture);
    // A filter that knew this capture only accepts nothing any more, and what it asks may be gone.
    const auto dead = [&capture](const Active& active) {
      return capture.id != 0 && active.pool == capture.pool && active.only == capture.id &&
             !active.others;
    };
    active_.erase(std::remove_if(active_.begin(), active_.end(), dead), active_.end());
    count();
  }
}

void Device::end_capture(Capture& capture) {
  (void)failed(millpond_capture_end(capture.handle));
  capture.over = true;
  count();
}

void Device::count() {
  const bool busy = !active_.empty() || std::any_of(captures_.begin(), captures_.end(),
                                                    [](const Capture& c) { return !c.over; });
  busy_.store(busy, std::memory_order_release);
}

std::shared_ptr<Pool> Device::find(PoolId id) {
  for (const auto& pool : pools_) {
    if (pool->id == id) return pool;
  }
  return nullptr;
}

/// A new pool, which keeps its memory to itself until it ends.
std::shared_ptr<Pool> Device::make(PoolId id, bool elsewhere) {
  auto pool = std::make_shared<Pool>();
  pool->id = id;
  pool->elsewhere = elsewhere;
  if (elsewhere) {
    pools_.push_back(pool);
    return pool;
  }
  const std::string name = name_of(id);
  millpond_pool_options options{};
  options.struct_size = sizeof options;
  options.name = name.c_str();
  if (failed(millpond_pool_create(device_, &options, &pool->pool))) {
    throw Refused("Millpond cannot make a pool: " + last_error());
  }
  if (failed(millpond_capture_keep(pool->pool, &pool->kept))) {
    unpooled_ = millpond_last_error_code() == MILLPOND_E_UNSUPPORTED;
    if (!unpooled_) {
      (void)millpond_pool_destroy(pool->pool);
      throw Refused("Millpond cannot keep the memory of a pool: " + last_error());
    }
  }
  pools_.push_back(pool);
  return pool;
}

void Device::begin(PoolId id, Filter filter, bool elsewhere) {
  bool many = false;
  {
    std::lock_guard<std::mutex> held(lock_);
    many = ended_.size() >= kEnded;
  }
  if (many) sweep();
  std::lock_guard<std::mutex> held(lock_);
  std::shared_ptr<Pool> pool = find(id);
  if (pool == nullptr) pool = make(id, elsewhere);
  active_.push_back({pool, std::move(filter), 0, false});
  pool->uses += 1;
  count();
}

void Device::hold(PoolId id) {
  std::lock_guard<std::mutex> held(lock_);
  std::shared_ptr<Pool> pool = find(id);
  if (pool == nullptr) pool = make(id);
  pool->uses += 1;
}

std::shared_ptr<Pool> Device::named(PoolId id) {
  std::lock_guard<std::mutex> held(lock_);
  return find(id);
}

int Device::uses(PoolId id) {
  std::lock_guard<std::mutex> held(lock_);
  const std::shared_ptr<Pool> pool = find(id);
  return pool != nullptr ? pool->uses : 0;
}

bool Device::serve_others(PoolId id, bool serves) {
  std::lock_guard<std::mutex> held(lock_);
  const std::shared_ptr<Pool> pool = find(id);
  if (pool == nullptr) return false;
  pool->serves_others = serves;
  return true;
}

bool Device::serves_others(PoolId id) {
  std::lock_guard<std::mutex> held(lock_);
  const std::shared_ptr<Pool> pool = find(id);
  return pool != nullptr && pool->serves_others;
}

std::vector<std::shared_ptr<Pool>> Device::serving_others() {
  std::lock_guard<std::mutex> held(lock_);
  std::vector<std::shared_ptr<Pool>> pools;
  std::copy_if(pools_.begin(), pools_.end(), std::back_inserter(pools),
               [](const std::shared_ptr<Pool>& pool) { return pool->serves_others; });
  return pools;
}

bool Device::end(PoolId id) {
  std::lock_guard<std::mutex> held(lock_);
  const auto last = std::find_if(active_.rbegin(), active_.rend(),
                                 [&id](const Active& active) { return active.pool->id == id; });
  if (last == active_.rend()) return false;
  const std::shared_ptr<Pool> pool = last->pool;
  active_.erase(std::next(last).base());
  // What is still recorded goes on: the pool served a part of a graph.
  for (Capture& capture : captures_) {
    if (capture.over || capture.pool != pool) continue;
    const Recording now = recording(capture.streams.front());
    const bool goes_on = now.state == Recording::State::unknown || now.id == capture.id;
    if (now.state == Recording::State::none || !goes_on) end_capture(capture);
  }
  count();
  return true;
}

void Device::release(PoolId id) {
  std::shared_ptr<Pool> pool;  // no sweep destroys it before its captures are released
  std::vector<millpond_capture*> handles;
  {
    std::lock_guard<std::mutex> held(lock_);
    pool = find(id);
    if (pool == nullptr) return;  // nothing was ever allocated to it
    if (--pool->uses <= 0) handles = finish(pool);
  }
  for (millpond_capture* handle : handles) (void)failed(millpond_capture_release_async(handle));
}

/// The pool has no users any more. Returns what is to be released without the lock.
std::vector<millpond_capture*> Device::finish(const std::shared_ptr<Pool>& pool) {
  std::vector<millpond_capture*> handles;
  handles.reserve(captures_.size() + 1);
  const auto of_pool = [&pool](const auto& x) { return x.pool == pool; };
  active_.erase(std::remove_if(active_.begin(), active_.end(), of_pool), active_.end());
  for (const Capture& capture : captures_) {
    if (of_pool(capture)) handles.push_back(capture.handle);
  }
  captures_.erase(std::remove_if(captures_.begin(), captures_.end(), of_pool), captures_.end());
  if (!pool->elsewhere) {
    handles.push_back(pool->kept);
    ended_.push_back(pool);
  }
  pools_.erase(std::find(pools_.begin(), pools_.end(), pool));
  count();
  return handles;
}

bool Device::has_ended_pools() {
  std::lock_guard<std::mutex> held(lock_);
  return !ended_.empty();
}

void Device::sweep() {
  std::vector<std::shared_ptr<Pool>> ended;
  {
    std::lock_guard<std::mutex> held(lock_);
    // One that a request just now comes from, or that another thread sweeps, is left alone.
    std::copy_if(ended_.begin(), ended_.end(), std::back_inserter(ended),
                 [](const std::shared_ptr<Pool>& pool) { return pool.use_count() == 1; });
  }
  // One with live blocks, or that cannot be waited for now, stays.
  const auto stays = [](const std::shared_ptr<Pool>& pool) {
    return millpond_pool_destroy(pool->pool) != C_SUCCESS;
  };
  ended.erase(std::remove_if(ended.begin(), ended.end(), stays), ended.end());
  std::lock_guard<std::mutex> held(lock_);
  const auto gone = [&ended](const std::shared_ptr<Pool>& pool) {
    return std::find(ended.begin(), ended.end(), pool) != ended.end();
  };
  ended_.erase(std::remove_if(ended_.begin(), ended_.end(), gone), ended_.end());
}

PoolId Device::id_of(const millpond_pool* pool) {
  std::lock_guard<std::mutex> held(lock_);
  for (const auto* list : {&pools_, &ended_}) {
    for (const auto& known : *list) {
      if (known->pool == pool) return known->id;
    }
  }
  return {0, 0};
}

millpond_pool* Device::segments() {
  std::lock_guard<std::mutex> held(lock_);
  if (segments_ == nullptr) {
    millpond_pool_options options{};
    options.struct_size = sizeof options;
    options.name = "torch.cuda.MemPool";
    if (failed(millpond_pool_create(device_, &options, &segments_))) return nullptr;
  }
  return segments_;
}

}  // namespace millpond_torch
