// All memory of a device at one moment, segment by segment, for an allocator of C++
// (python/millpond_torch/native.cpp). Read from Millpond's own snapshot (docs/snapshots.md),
// which alone has all of it; its history, which comes after the segments, is not written.
#include <millpond/millpond.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "devices.hpp"
#include "pluggable.hpp"

using namespace millpond_torch;

namespace {

/// Takes the snapshot piece by piece. Knows JSON as Millpond writes it: whole, without spaces.
class Reader {
 public:
  Reader(void* user_data, void (*each)(void*, const Segment*, const SegmentBlock*))
      : user_data_(user_data), each_(each) {}

  /// False: the segments are over.
  bool take(const char* data, std::size_t size) {
    for (std::size_t i = 0; i < size && !done_; ++i) byte(data[i]);
    return !done_;
  }
  bool done() const { return done_; }

 private:
  void byte(char c) {
    if (in_text_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
        return;
      } else if (c == '"') {
        in_text_ = false;
        return;
      }
      token_ += c;
      return;
    }
    switch (c) {
      case '"':
        in_text_ = true;
        token_.clear();
        return;
      case ':':
        key_ = std::move(token_);
        token_.clear();
        if (depth_ == 1) part_ = key_;
        return;
      case '{':
      case '[':
        ++depth_;
        open();
        return;
      case ',':
        value();
        return;
      case '}':
      case ']':
        value();
        close();
        --depth_;
        return;
      case '\n':
        return;
      default:
        token_ += c;
    }
  }

  bool in_segments() const { return part_ == "segments"; }
  bool in_block() const { return in_segments() && depth_ == 5 && in_blocks_; }
  bool in_pool() const { return part_ == "account" && in_pools_ && depth_ == 4; }

  void open() {
    if (part_ == "account" && depth_ == 3) in_pools_ = key_ == "pools";
    if (in_segments() && depth_ == 3) {
      segment_ = {};
      blocks_.clear();
    }
    // A segment has other lists, too.
    if (in_segments() && depth_ == 4) in_blocks_ = key_ == "blocks";
    if (in_block()) blocks_.emplace_back();
    if (in_pool()) pool_ = 0, name_.clear();
    token_.clear();
    key_.clear();
  }

  void value() {
    if (key_.empty()) return;
    const std::uint64_t number = std::strtoull(token_.c_str(), nullptr, 10);
    if (in_segments() && depth_ == 3) {
      if (key_ == "address") segment_.address = number;
      if (key_ == "size_bytes") segment_.size_bytes = number;
      if (key_ == "stream") segment_.stream = number;
      if (key_ == "kind") segment_.mapped = token_ != "segment", segment_.small = token_ == "small";
      if (key_ == "sleeps") segment_.sleeps = true;
      const auto named = key_ == "pool" ? names_.find(number) : names_.end();
      if (named != names_.end()) {
        segment_.pool_first = named->second.first;
        segment_.pool_second = named->second.second;
      }
    } else if (in_block() && !blocks_.empty()) {
      SegmentBlock& block = blocks_.back();
      if (key_ == "address") block.address = number;
      if (key_ == "size_bytes") block.size_bytes = block.span_bytes = number;
      if (key_ == "span_bytes") block.span_bytes = number;
      if (key_ == "requested_bytes") block.requested_bytes = number;
      if (key_ == "state") block.live = token_ == "live", block.waiting = token_ == "waiting";
    } else if (in_pool()) {
      if (key_ == "id") pool_ = number;
      if (key_ == "name") name_ = token_;
    }
    token_.clear();
    key_.clear();
  }

  void close() {
    if (in_pool()) {
      PoolId id;
      if (id_of_name(name_, id)) names_[pool_] = id;
    }
    if (in_segments() && depth_ == 3) {
      segment_.blocks = blocks_.size();
      each_(user_data_, &segment_, blocks_.data());
    }
    if (in_segments() && depth_ == 2) done_ = true;
  }

  void* user_data_;
  void (*each_)(void*, const Segment*, const SegmentBlock*);
  int depth_ = 0;
  bool in_text_ = false, escaped_ = false, in_pools_ = false, in_blocks_ = false, done_ = false;
  std::string token_, key_, part_, name_;
  std::uint64_t pool_ = 0;
  std::map<std::uint64_t, PoolId> names_;  // by Millpond's number of the pool
  Segment segment_{};
  std::vector<SegmentBlock> blocks_;
};

bool piece(void* user_data, const void* data, std::size_t size) {
  return static_cast<Reader*>(user_data)->take(static_cast<const char*>(data), size);
}

constexpr const char* kName = "torch pool (%llu, %llu)";

}  // namespace

std::string millpond_torch::name_of(PoolId id) {
  char text[64];
  std::snprintf(text, sizeof text, kName, id.first, id.second);
  return text;
}

bool millpond_torch::id_of_name(const std::string& name, PoolId& out) {
  return std::sscanf(name.c_str(), kName, &out.first, &out.second) == 2;
}

int millpond_torch_segments(int device,
                            void (*each)(void* user_data, const Segment* segment,
                                         const SegmentBlock* blocks),
                            void* user_data) {
  return guard(1, [&] {
    Device* on = open_device(device);
    if (on == nullptr) return 0;
    Reader reader(user_data, each);
    const C_Status status =
        millpond_device_send_snapshot(on->get(), MILLPOND_SNAPSHOT_JSON, piece, &reader);
    return reader.done() || !failed(status) ? 0 : 1;
  });
}
