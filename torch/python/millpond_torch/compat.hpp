// What differs between the releases of PyTorch that native.cpp is built against: 2.9 to 2.15. What
// a release lacks is left out there, and nothing else changes.
#ifndef MILLPOND_TORCH_COMPAT_HPP
#define MILLPOND_TORCH_COMPAT_HPP

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

/// Whether this is PyTorch major.minor or a later one.
#define MILLPOND_TORCH_FROM(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||       \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

/// Of functions that the class has in 2.15 and not in 2.11, and in 2.11 and not in 2.9: in releases
/// between those it overrides what is there.
#if MILLPOND_TORCH_FROM(2, 15)
#define MILLPOND_TORCH_LATE override
#else
#define MILLPOND_TORCH_LATE
#endif
#if MILLPOND_TORCH_FROM(2, 11)
#define MILLPOND_TORCH_MIDDLE override
#else
#define MILLPOND_TORCH_MIDDLE
#endif

namespace millpond_torch {

// Where these have always been found; later releases define them elsewhere.
using c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
using c10::cuda::CUDACachingAllocator::CreateContextFn;
using c10::cuda::CUDACachingAllocator::RecordContext;
using c10::cuda::CUDACachingAllocator::TraceEntry;
using AnnotationEntry =
    decltype(c10::cuda::CUDACachingAllocator::SnapshotInfo::external_annotations)::value_type;

/// An entry; what a release has no room for is left out.
template <typename Entry = TraceEntry>
Entry entry_of(typename Entry::Action action, c10::DeviceIndex device, std::size_t address,
               std::size_t size, void* stream, c10::MempoolId_t pool, c10::approx_time_t time,
               std::shared_ptr<c10::GatheredContext> context, std::string compiling,
               std::string metadata) {
  const auto on = static_cast<cudaStream_t>(stream);
  if constexpr (requires(Entry entry) { entry.user_metadata_; }) {
    return Entry(action, device, address, size, on, pool, time, std::move(context),
                 std::move(compiling), std::move(metadata));
  } else {
    return Entry(action, device, address, size, on, pool, time, std::move(context),
                 std::move(compiling));
  }
}

/// Calls `note` with the action of a note on a block, where this release has that.
template <typename Entry, typename Note>
void with_annotate(Note note) {
  if constexpr (requires { Entry::ANNOTATE; }) note(Entry::ANNOTATE);
}

/// PyTorch's name of an action, as memory histories leave some out. Releases before 2.11 do not
/// ask.
inline TraceEntry::Action action_named(const std::string& name) {
  static constexpr std::pair<const char*, TraceEntry::Action> kNames[] = {
      {"alloc", TraceEntry::ALLOC},
      {"free_requested", TraceEntry::FREE_REQUESTED},
      {"free_completed", TraceEntry::FREE_COMPLETED},
      {"segment_alloc", TraceEntry::SEGMENT_ALLOC},
      {"segment_free", TraceEntry::SEGMENT_FREE},
      {"segment_map", TraceEntry::SEGMENT_MAP},
      {"segment_unmap", TraceEntry::SEGMENT_UNMAP},
      {"snapshot", TraceEntry::SNAPSHOT},
      {"oom", TraceEntry::OOM},
  };
  for (const auto& [known, action] : kNames) {
    if (name == known) return action;
  }
  bool found = false;
  auto annotate = TraceEntry::OOM;
  with_annotate<TraceEntry>([&](auto action) {
    found = name == "annotate";
    annotate = action;
  });
  if (found) return annotate;
  TORCH_CHECK(false, "Unknown TraceEntry action: ", name);
}

/// 2.15's OomRejectionObserver: the device, what was asked for, what is allocated, and what the
/// device has.
using RejectionObserver = std::function<void(std::int64_t device, std::size_t asked,
                                             std::size_t allocated, std::size_t device_total)>;

/// The segments of an allocator's pool; of 0, 0: of all its pools.
template <typename Allocator>
auto snapshot_of(Allocator& allocator, c10::MempoolId_t pool) {
  if constexpr (requires { allocator.snapshot(pool, false); }) {
    return allocator.snapshot(pool, false);
  } else {
    return allocator.snapshot(pool);
  }
}

/// Sets a number that not every release's DeviceStats has.
template <typename Stats>
void set_oom_rejections(Stats& stats, std::int64_t value) {
  if constexpr (requires { stats.num_oom_rejections; }) stats.num_oom_rejections = value;
}

/// Tells NCCL which segment of a snapshot it is to register first, where this release asks: the
/// same on all ranks where each did the same.
template <typename SegmentInfo>
void set_registration_order(SegmentInfo& segment, std::size_t place) {
  if constexpr (requires { segment.registration_counter; }) {
    segment.registration_counter = static_cast<std::int32_t>(place);
  }
}

}  // namespace millpond_torch

#endif
