// What happened, as PyTorch tells it (torch.cuda.memory._record_memory_history), for native.cpp.
//
// The events are those of Millpond's history. What only PyTorch knows of a call, above all the
// Python frames it came from, is noted here while it is recorded, and found again by the address,
// the thread and the stamp of the event: the times of two clocks that the system corrects would not
// tell which of several calls it was. Nothing is noted while nothing of it is asked for.
#ifndef MILLPOND_TORCH_TRACE_HPP
#define MILLPOND_TORCH_TRACE_HPP

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "compat.hpp"
#include "library.hpp"
#include "pluggable.hpp"

namespace millpond_torch {

/// Does what is only bookkeeping, in places that nothing may be thrown from. A failure is a
/// warning.
template <typename Body>
inline void note(Body body) noexcept {
  try {
    try {
      body();
    } catch (const std::exception& e) {
      TORCH_WARN("what happened to memory could not be told: ", e.what());
    } catch (...) {
      TORCH_WARN("what happened to memory could not be told");
    }
  } catch (...) {  // the warning itself
  }
}

/// The device of an address.
inline c10::DeviceIndex device_of(const void* ptr) {
  cudaPointerAttributes found{};
  const bool known = cudaPointerGetAttributes(&found, ptr) == cudaSuccess;
  if (!known) (void)cudaGetLastError();  // the next check of PyTorch's is not to find it
  return static_cast<c10::DeviceIndex>(known ? found.device : -1);
}

/// The device that the calling thread uses.
inline c10::DeviceIndex current_device() {
  c10::DeviceIndex device = -1;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

using c10::DeviceIndex;
using c10::GatheredContext;
using c10::MempoolId_t;
using Context = std::shared_ptr<GatheredContext>;

inline std::uint64_t nanoseconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u + static_cast<std::uint64_t>(t.tv_nsec);
}

/// What a thread has said of itself (torch.cuda.memory._set_memory_metadata, torch.compile).
struct Words {
  std::string metadata;
  std::vector<std::string> compiling;
};
inline Words& words() {
  thread_local Words own;
  return own;
}

class Trace {
 public:
  explicit Trace(const Library& library) : library_(library) {}

  /// Whether requests and frees have to pass by here.
  bool watches() const { return watches_.load(std::memory_order_relaxed); }
  /// Whether somebody is to be told of each of them.
  bool tracks() const { return tracks_.load(std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  void record(bool enabled, CreateContextFn recorder, std::size_t most, RecordContext when,
              bool clear, const std::vector<std::string>& skipped) {
    Notes old;  // what a note holds may need other locks when it goes
    Marks old_marks;
    std::deque<AnnotationEntry> old_annotations;
    std::vector<TraceEntry::Action> skips;
    skips.reserve(skipped.size());
    for (const std::string& name : skipped) {
      skips.push_back(action_named(name));
    }
    std::lock_guard<std::mutex> held(lock_);
    if (!enabled || clear || !enabled_) {
      since_ = stamp();
      old.swap(notes_);
      old_marks.swap(marks_);
      old_annotations.swap(annotations_);
    }
    recorder_ = enabled ? recorder : nullptr;
    when_ = enabled && recorder != nullptr ? when : RecordContext::NEVER;
    most_ = most;
    skips_ = std::move(skips);
    enabled_.store(enabled, std::memory_order_relaxed);
    decide();
  }

  void track(AllocatorTraceTracker tracker) {
    std::lock_guard<std::mutex> held(lock_);
    auto all = trackers_ ? *trackers_ : std::vector<AllocatorTraceTracker>();
    all.push_back(std::move(tracker));
    trackers_ = std::make_shared<const std::vector<AllocatorTraceTracker>>(std::move(all));
    tracks_.store(true, std::memory_order_relaxed);
    decide();
  }

  /// Tells the trackers of something that has no note.
  void tell(TraceEntry::Action action, DeviceIndex device, std::size_t address, std::size_t size,
            void* stream, const Context& context = nullptr) {
    if (!tracks()) return;
    std::shared_ptr<const std::vector<AllocatorTraceTracker>> trackers;
    {
      std::lock_guard<std::mutex> held(lock_);
      trackers = trackers_;
    }
    const TraceEntry entry =
        entry_of(action, device, address, size, stream, {0, 0}, c10::getApproximateTime(), context,
                 compiling(), words().metadata);
    for (const auto& tracker : *trackers) tracker(entry);
  }

  /// The frames of the call that is under way, and its stamp before it began; 0: nothing is known
  /// of it.
  struct Call {
    std::uint64_t began;
    Context context;
  };
  Call begin(bool free) {
    CreateContextFn recorder = nullptr;
    {
      std::lock_guard<std::mutex> held(lock_);
      const bool wanted = free ? when_ == RecordContext::ALL : when_ != RecordContext::NEVER;
      if (wanted) recorder = recorder_;
    }
    Context context = recorder != nullptr ? recorder() : nullptr;
    return {stamp(), std::move(context)};
  }

  /// A block has been given to the caller of `call`.
  void allocated(Call call, DeviceIndex device, void* ptr, std::size_t size, void* stream) {
    tell(TraceEntry::ALLOC, device, reinterpret_cast<std::size_t>(ptr), size, stream, call.context);
    Context old;
    Note gone;
    std::lock_guard<std::mutex> held(lock_);
    if (!enabled_) return;
    if (call.context != nullptr) {
      old = std::exchange(live_[ptr], call.context);
      if (when_ < RecordContext::ALLOC) call.context = nullptr;
    }
    gone = note(ptr, false, std::move(call));
  }

  /// A call that gives and frees no block has ended.
  void called(Call call) { freed(std::move(call), nullptr); }

  /// A block was freed.
  void freed(Call call, void* ptr) {
    Note gone;
    std::lock_guard<std::mutex> held(lock_);
    if (enabled_ && call.began != 0) gone = note(ptr, true, std::move(call));
  }
  /// The block goes: before another one can have its address.
  void forget(void* ptr) {
    Context old;
    std::lock_guard<std::mutex> held(lock_);
    const auto known = live_.find(ptr);
    if (known != live_.end()) {
      old = std::move(known->second);
      live_.erase(known);
    }
    if (!enabled_) decide();
  }
  /// The same for several.
  void forget(const std::vector<void*>& blocks) {
    std::vector<Context> old;
    std::lock_guard<std::mutex> held(lock_);
    for (void* ptr : blocks) {
      const auto known = live_.find(ptr);
      if (known == live_.end()) continue;
      old.push_back(std::move(known->second));
      live_.erase(known);
    }
    if (!enabled_) decide();
  }

  /// The frames of the request of a live block.
  Context context_of(const void* ptr) {
    std::lock_guard<std::mutex> held(lock_);
    const auto known = live_.find(const_cast<void*>(ptr));
    return known != live_.end() ? known->second : nullptr;
  }

  /// Something that gives no block: a request that has failed, a snapshot, a note of the program's.
  void mark(TraceEntry::Action action, DeviceIndex device, std::size_t address, std::size_t size,
            std::string metadata, void* stream = nullptr, const Context& context = nullptr) {
    Marks old;  // its frames go without the lock
    std::lock_guard<std::mutex> held(lock_);
    if (!enabled_) return;
    TraceEntry entry = entry_of(action, device, address, size, stream, {0, 0}, 0, context,
                                compiling(), std::move(metadata));
    entry.time_.t_ = static_cast<time_t>(nanoseconds(CLOCK_MONOTONIC));  // until it is told
    marks_.emplace_back(stamp(), std::move(entry));
    if (marks_.size() > most_) {
      old.push_back(std::move(marks_.front()));
      marks_.pop_front();
    }
  }
  void annotate(DeviceIndex device, const std::vector<std::pair<std::string, std::string>>& all) {
    std::lock_guard<std::mutex> held(lock_);
    if (!enabled_) return;
    AnnotationEntry entry(device, 0);
    entry.time_.t_ = static_cast<time_t>(nanoseconds(CLOCK_REALTIME) / 1000);
    for (const auto& [name, value] : all) entry.recordUserMetadata(name, value);
    annotations_.push_back(std::move(entry));
    if (annotations_.size() > most_) annotations_.pop_front();
  }
  std::vector<AnnotationEntry> annotations() {
    std::lock_guard<std::mutex> held(lock_);
    return {annotations_.begin(), annotations_.end()};
  }

  /// The device's history as PyTorch's entries, the oldest first. `read` throws where it cannot.
  template <typename Read>
  std::vector<TraceEntry> entries(DeviceIndex device, Read read) {
    Telling telling{device};
    std::vector<TraceEntry::Action> skips;
    std::size_t most = 0;
    {
      std::lock_guard<std::mutex> held(lock_);
      if (!enabled_) return {};
      for (const Note& n : notes_) {
        telling.notes[{n.ptr, n.thread, n.free}].push_back(n);
        telling.calls[n.thread].push_back(n);
      }
      for (const auto& [at, entry] : marks_) {
        if (entry.device_ == device) telling.marks.emplace_back(at, entry);
      }
      telling.since = since_;
      skips = skips_;
      most = most_;
    }
    read(
        device,
        [](void* user_data, const Event* e) {
          static_cast<Telling*>(user_data)->event(*e);
          return true;
        },
        &telling);
    telling.marks_until(UINT64_MAX);
    auto& all = telling.out;
    const auto skipped = [&skips](const TraceEntry& entry) {
      return std::find(skips.begin(), skips.end(), entry.action_) != skips.end();
    };
    all.erase(std::remove_if(all.begin(), all.end(), skipped), all.end());
    if (all.size() > most) all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(most));
    return std::move(all);
  }

 private:
  struct Note {
    void* ptr;
    std::uint32_t thread;
    bool free;
    std::uint64_t began, ended;  // stamps
    Context context;
    std::string compiling, metadata;
  };
  using Notes = std::deque<Note>;
  using Marks = std::deque<std::pair<std::uint64_t, TraceEntry>>;  // and their stamps

  /// A reading of a history.
  struct Telling {
    explicit Telling(DeviceIndex of) : device(of) {}

    DeviceIndex device;
    std::map<std::tuple<void*, std::uint32_t, bool>, std::vector<Note>> notes{};
    std::map<std::uint32_t, std::vector<Note>> calls{};  // of a thread
    Marks marks{};
    std::vector<TraceEntry> out{};
    std::uint64_t since = 0;
    std::unordered_set<std::uint64_t> waiting{};  // freed blocks
    time_t last_us = 0;
    std::uint64_t now_ns = nanoseconds(CLOCK_MONOTONIC);
    std::uint64_t now_us = nanoseconds(CLOCK_REALTIME) / 1000;

    time_t unix_us(std::uint64_t ns) const {
      return static_cast<time_t>(now_us - (now_ns > ns ? now_ns - ns : 0) / 1000);
    }
    void marks_until(std::uint64_t stamp) {
      for (; !marks.empty() && marks.front().first <= stamp; marks.pop_front()) {
        const auto ns = static_cast<std::uint64_t>(marks.front().second.time_.t_);
        put(std::move(marks.front().second), unix_us(ns));
      }
    }
    /// Times of events are computed from their stamps, those of marks were read: of two that are
    /// near each other the later one may seem to be the earlier one.
    void put(TraceEntry entry, time_t at_us) {
      last_us = std::max(last_us, at_us);
      out.push_back(std::move(entry));
      out.back().time_.t_ = last_us;
    }

    /// The one of the calls, which are in the order of their ends, in which an event happened.
    static const Note* around(const std::vector<Note>& all, const Event& e) {
      const auto at = std::lower_bound(
          all.begin(), all.end(), e.stamp,
          [](const Note& note, std::uint64_t stamp) { return note.ended < stamp; });
      return at != all.end() && at->began <= e.stamp ? &*at : nullptr;
    }
    const Note* note_of(const Event& e, bool free) const {
      const auto known = notes.find({reinterpret_cast<void*>(e.address), e.thread, free});
      return known != notes.end() ? around(known->second, e) : nullptr;
    }
    const Note* call_of(const Event& e) const {
      const auto known = calls.find(e.thread);
      return known != calls.end() ? around(known->second, e) : nullptr;
    }

    void add(TraceEntry::Action action, const Event& e, const Note* note) {
      put(entry_of(action, device, e.address, e.size_bytes, reinterpret_cast<void*>(e.stream),
                   MempoolId_t{e.pool_first, e.pool_second}, 0,
                   note != nullptr ? note->context : nullptr,
                   note != nullptr ? note->compiling : std::string(),
                   note != nullptr ? note->metadata : std::string()),
          unix_us(e.time_ns));
    }

    void event(const Event& e) {
      if (e.stamp < since) return;
      marks_until(e.stamp);
      switch (e.kind) {
        case EventKind::kAlloc:
          return add(TraceEntry::ALLOC, e, note_of(e, false));
        case EventKind::kFreeRequested: {
          const Note* note = note_of(e, true);
          add(TraceEntry::FREE_REQUESTED, e, note);
          if (e.at_once) return add(TraceEntry::FREE_COMPLETED, e, note);
          waiting.insert(e.address);
          return;
        }
        case EventKind::kFreeCompleted:
          if (waiting.erase(e.address) != 0) add(TraceEntry::FREE_COMPLETED, e, nullptr);
          return;
        case EventKind::kFreeRefused:  // for PyTorch the block ends and begins anew
          if (waiting.erase(e.address) != 0) add(TraceEntry::FREE_COMPLETED, e, nullptr);
          return add(TraceEntry::ALLOC, e, nullptr);
        case EventKind::kSegmentAlloc:
          return add(TraceEntry::SEGMENT_ALLOC, e, call_of(e));
        case EventKind::kSegmentFree:
          return add(TraceEntry::SEGMENT_FREE, e, call_of(e));
        case EventKind::kSegmentMap:
          return add(TraceEntry::SEGMENT_MAP, e, call_of(e));
        case EventKind::kSegmentUnmap:
          return add(TraceEntry::SEGMENT_UNMAP, e, call_of(e));
        case EventKind::kOutOfMemory:  // there is a mark of it, with what the device had free
          return;
      }
    }
  };

  std::uint64_t stamp() const { return library_.history_stamp_(); }

  static std::string compiling() {
    const auto& all = words().compiling;
    return all.empty() ? std::string() : all.back();
  }

  /// Keeps what there is to keep of a call; the note that had to go for it. The lock is held.
  Note note(void* ptr, bool free, Call call) {
    Note gone{};
    if (call.context == nullptr && words().metadata.empty() && words().compiling.empty()) {
      return gone;
    }
    notes_.push_back({ptr, static_cast<std::uint32_t>(::syscall(SYS_gettid)), free, call.began,
                      stamp(), std::move(call.context), compiling(), words().metadata});
    if (notes_.size() > most_) {
      gone = std::move(notes_.front());
      notes_.pop_front();
    }
    return gone;
  }

  /// Frames of live blocks are kept up to their free, also after the recording. The lock is held.
  void decide() {
    watches_.store(enabled_ || trackers_ != nullptr || !live_.empty(), std::memory_order_relaxed);
  }

  const Library& library_;
  std::atomic<bool> watches_{false}, enabled_{false}, tracks_{false};
  std::mutex lock_;  // guards what follows; nothing of PyTorch's is called with it
  CreateContextFn recorder_ = nullptr;
  RecordContext when_ = RecordContext::NEVER;
  std::size_t most_ = 0;
  std::uint64_t since_ = 0;  // a stamp
  std::vector<TraceEntry::Action> skips_;
  std::shared_ptr<const std::vector<AllocatorTraceTracker>> trackers_;
  Notes notes_;
  Marks marks_;
  std::deque<AnnotationEntry> annotations_;
  std::unordered_map<void*, Context> live_;  // only of blocks whose frames were recorded
};

}  // namespace millpond_torch

#endif
