// What is registered with UCX: exactly the addresses of a device that have memory, by the segment
// callback.
#ifndef REGISTRATIONS_HPP
#define REGISTRATIONS_HPP

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <millpond/millpond.hpp>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

inline void must(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    throw std::runtime_error(std::string(what) + ": " + ucs_status_string(status));
}

// A part of a block that lies in one registration, and the key that a peer needs for it.
struct Piece {
  std::uint64_t address;
  std::uint64_t bytes;
  std::string key;
};

class Registrations {
 public:
  // `context` must outlive this object, and this object the device's memory.
  Registrations(ucp_context_h context, millpond::Device device)
      : context_(context), callback_(device, [this](bool added, void* data, std::size_t bytes) {
          change(added, reinterpret_cast<std::uint64_t>(data), bytes);
        }) {}

  // The registrations that a block lies in, in the order of their addresses. Adjacent ranges may
  // have come one by one, so a block can have several.
  std::vector<Piece> cover(const void* block, std::size_t bytes) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<std::uint64_t>(block);
    const std::uint64_t end = begin + bytes;
    std::vector<Piece> pieces;
    for (std::uint64_t at = begin; at < end;) {
      auto next = ranges_.upper_bound(at);
      if (next == ranges_.begin() || std::prev(next)->second.end <= at) {
        throw std::runtime_error("a block lies where nothing is registered");
      }
      const Range& range = std::prev(next)->second;
      const std::uint64_t to = range.end < end ? range.end : end;
      pieces.push_back({at, to - at, range.key});
      at = to;
    }
    return pieces;
  }

  // Throws what went wrong inside the callback, which must not throw itself.
  void check() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_.empty()) throw std::runtime_error(error_);
  }

  struct Counts {
    std::uint64_t bytes = 0;    // registered now
    std::uint64_t most = 0;     // at any time
    std::uint64_t added = 0;    // ranges that came
    std::uint64_t removed = 0;  // ranges that went
    std::uint64_t again = 0;    // ranges that came where one had gone
  };
  Counts counts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }

 private:
  struct Range {
    std::uint64_t end = 0;
    ucp_mem_h memory = nullptr;
    std::string key;
  };

  // Millpond holds a lock around this: it calls nothing of Millpond, and waits for nobody who does.
  void change(bool added, std::uint64_t begin, std::uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      // The memory is there when a range is added, and still there when it is about to go.
      (void)*reinterpret_cast<volatile char*>(begin);
      (void)*reinterpret_cast<volatile char*>(begin + bytes - 1);
      if (added) {
        add(begin, begin + bytes);
        counts_.added += 1;
        counts_.bytes += bytes;
        if (counts_.most < counts_.bytes) counts_.most = counts_.bytes;
        if (gone_.count(begin) != 0) counts_.again += 1;
      } else {
        remove(begin, begin + bytes);
        counts_.removed += 1;
        counts_.bytes -= bytes;
        gone_[begin] = true;
      }
    } catch (const std::exception& error) {
      if (error_.empty()) error_ = error.what();
    }
  }

  void add(std::uint64_t begin, std::uint64_t end) {
    ucp_mem_map_params_t wish{};
    wish.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    wish.address = reinterpret_cast<void*>(begin);
    wish.length = end - begin;
    Range range;
    range.end = end;
    must(ucp_mem_map(context_, &wish, &range.memory), "ucp_mem_map");
    void* key = nullptr;
    std::size_t length = 0;
    const ucs_status_t packed = ucp_rkey_pack(context_, range.memory, &key, &length);
    if (packed != UCS_OK) {
      ucp_mem_unmap(context_, range.memory);
      must(packed, "ucp_rkey_pack");
    }
    range.key.assign(static_cast<char*>(key), length);
    ucp_rkey_buffer_release(key);
    ranges_.emplace(begin, std::move(range));
  }

  // A range that was added, or a part of one: UCX cannot shrink a registration, so what is left of
  // it is registered anew.
  void remove(std::uint64_t begin, std::uint64_t end) {
    auto next = ranges_.upper_bound(begin);
    if (next == ranges_.begin()) throw std::runtime_error("a range went that had not come");
    const auto at = std::prev(next);
    const std::uint64_t first = at->first;
    const Range range = at->second;
    if (range.end < end) throw std::runtime_error("more of a range went than had come");
    ranges_.erase(at);
    must(ucp_mem_unmap(context_, range.memory), "ucp_mem_unmap");
    if (first < begin) add(first, begin);
    if (end < range.end) add(end, range.end);
  }

  ucp_context_h context_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Range> ranges_;  // by their first address
  std::map<std::uint64_t, bool> gone_;     // where a range has gone
  Counts counts_;
  std::string error_;
  millpond::SegmentCallback callback_;  // last: it is called from its construction to its end
};

#endif  // REGISTRATIONS_HPP
