// What Millpond holds, in PyTorch's own types, for native.cpp: numbers, live blocks, segments.
#ifndef MILLPOND_TORCH_HOLDINGS_HPP
#define MILLPOND_TORCH_HOLDINGS_HPP

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "library.hpp"
#include "numbers.hpp"
#include "pluggable.hpp"
#include "trace.hpp"

namespace millpond_torch {

/// All functions may be called from any thread.
class Holdings {
 public:
  using DeviceIndex = c10::DeviceIndex;
  using SnapshotInfo = c10::cuda::CUDACachingAllocator::SnapshotInfo;

  Holdings(const Library& library, Trace& trace) : library_(library), trace_(trace) {}

  /// By PyTorch's names.
  Numbers numbers(DeviceIndex device) const {
    std::vector<std::uint64_t> values(512);
    std::size_t count = 0;
    check(library_.memory_stats_(device, values.data(), values.size(), &count));
    Numbers out;
    for (std::size_t i = 0; i < count && i < values.size(); ++i) {
      out.emplace(library_.memory_stats_name_(i), values[i]);
    }
    return out;
  }

  /// The live blocks of a device, in the order of their addresses.
  std::vector<Block> live(DeviceIndex device) const {
    std::vector<Block> blocks(1024);
    for (;;) {
      const std::size_t n = library_.blocks_(device, blocks.data(), blocks.size());
      const bool all = n <= blocks.size();
      blocks.resize(all ? n : n + n / 4);
      if (all) break;
    }
    std::sort(blocks.begin(), blocks.end(),
              [](const Block& a, const Block& b) { return a.address < b.address; });
    return blocks;
  }

  /// Adds the segments of a device's pool; of 0, 0: of all its pools.
  void add_segments(SnapshotInfo& out, DeviceIndex device, c10::MempoolId_t pool) const {
    Telling telling{&out, device, pool, &trace_};
    check(library_.segments_(device, add, &telling));
  }

 private:
  struct Telling {
    SnapshotInfo* out;
    DeviceIndex device;
    c10::MempoolId_t wanted;
    Trace* trace;
  };

  void check(int status) const { TORCH_CHECK(status == 0, library_.last_error_()); }

  static void add(void* user_data, const Segment* s, const SegmentBlock* blocks) {
    const auto& telling = *static_cast<Telling*>(user_data);
    const c10::MempoolId_t pool{s->pool_first, s->pool_second};
    if (s->sleeps || (telling.wanted != c10::MempoolId_t{0, 0} && telling.wanted != pool)) return;
    c10::cuda::CUDACachingAllocator::SegmentInfo segment;
    segment.device = telling.device;
    segment.address = s->address;
    segment.total_size = s->size_bytes;
    segment.stream = reinterpret_cast<decltype(segment.stream)>(s->stream);
    segment.is_large = !s->small;
    segment.is_expandable = s->mapped;
    segment.owner_private_pool_id = pool;
    set_registration_order(segment, telling.out->segments.size());
    for (const SegmentBlock* b = blocks; b != blocks + s->blocks; ++b) {
      c10::cuda::CUDACachingAllocator::BlockInfo block;
      block.size = b->span_bytes;  // PyTorch's tools add these up to find the next one
      block.requested_size = b->requested_bytes;
      block.allocated = b->live;
      block.active = b->live || b->waiting;
      if (block.active) {
        block.context_when_allocated =
            telling.trace->context_of(reinterpret_cast<void*>(b->address));
        segment.active_size += b->size_bytes;
        segment.requested_size += b->requested_bytes;
      }
      if (block.allocated) segment.allocated_size += b->size_bytes;
      segment.blocks.push_back(std::move(block));
    }
    telling.out->segments.push_back(std::move(segment));
  }

  const Library& library_;
  Trace& trace_;
};

}  // namespace millpond_torch

#endif
