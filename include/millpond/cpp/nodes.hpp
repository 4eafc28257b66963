// Small blocks for containers that the host uses: nodes of up to 256 bytes, carved from blocks of
// the device's default pool, as a heap does with pages. A block of its own costs at least the
// device's min chunk, 512 bytes on the built-in ones.
//
// Each thread keeps some free nodes of each size and takes no lock for them; the rest are in a
// store, one for each device, that all threads share. Freed nodes serve requests of their size
// only, and their chunks stay with the store until the device ends. Every call first asks whether
// the device is open: in a forked child, and after finalize(), no node is touched.
#ifndef MILLPOND_CPP_NODES_HPP
#define MILLPOND_CPP_NODES_HPP

#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "millpond/cpp/device.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {
namespace detail {

inline constexpr std::size_t kNodeUnit = 16;      // [B] sizes are multiples of it, and addresses
inline constexpr std::size_t kLargestNode = 256;  // [B]
inline constexpr std::size_t kNodeSizes = kLargestNode / kNodeUnit;
inline constexpr std::size_t kNodeBatch = 64;        // nodes that a thread takes or gives at once
inline constexpr std::size_t kFirstChunk = 4096;     // [B]
inline constexpr std::size_t kLargestChunk = 32768;  // [B]

/// Free nodes of one size, linked through their first bytes. The first node of a batch that lies in
/// a store links to the next batch through the bytes after that.
struct NodeList {
  void* first = nullptr;
  std::size_t count = 0;

  void push(void* node) noexcept {
    std::memcpy(node, &first, sizeof first);
    first = node;
    ++count;
  }
  /// Must not be empty.
  void* pop() noexcept {
    void* const node = first;
    std::memcpy(&first, node, sizeof first);
    --count;
    return node;
  }
};

/// The nodes of one device that no thread keeps. Never destroyed: a program may free nodes until it
/// ends.
class NodeStore {
 public:
  explicit NodeStore(millpond_device* device) noexcept : device_(device) {}
  millpond_device* device() const noexcept { return device_; }
  NodeStore* next = nullptr;

  /// Fills an empty list with nodes of a size; false, with the reason as the thread's last error,
  /// if there is no memory.
  bool fill(std::size_t size, NodeList& empty) {
    for (;;) {
      std::size_t bytes = 0;
      {
        const std::lock_guard<std::mutex> held(lock_);
        if (batches_[size] != nullptr) {
          empty = pop_batch(size);
          return true;
        }
        while (empty.count < kNodeBatch && loose_[size].first != nullptr) {
          empty.push(loose_[size].pop());
        }
        carve(size, empty);
        if (empty.first != nullptr) return true;
        bytes = chunk_bytes_;
      }
      // Not under the lock: an out-of-memory callback may free nodes.
      unsigned char* const chunk = new_chunk(bytes);
      if (chunk == nullptr) return false;
      const std::lock_guard<std::mutex> held(lock_);
      shelve_rest();
      at_ = chunk;
      end_ = chunk + bytes;
      if (chunk_bytes_ < kLargestChunk) chunk_bytes_ *= 2;
    }
  }
  /// Takes all nodes of a list over, which is empty then.
  void take(std::size_t size, NodeList& nodes) {
    if (nodes.first == nullptr) return;
    const std::lock_guard<std::mutex> held(lock_);
    if (nodes.count == kNodeBatch) {
      push_batch(size, nodes);
      nodes = NodeList();
    }
    while (nodes.first != nullptr) loose_[size].push(nodes.pop());
  }

 private:
  // What follows the link to the next node in the first one of a batch.
  struct Batch {
    void* next_node;
    void* next_batch;
  };
  static_assert(sizeof(Batch) <= kNodeUnit, "the links fit into the smallest node");

  void push_batch(std::size_t size, const NodeList& nodes) noexcept {
    Batch links;
    std::memcpy(&links.next_node, nodes.first, sizeof links.next_node);
    links.next_batch = batches_[size];
    std::memcpy(nodes.first, &links, sizeof links);
    batches_[size] = nodes.first;
  }
  NodeList pop_batch(std::size_t size) noexcept {
    Batch links;
    std::memcpy(&links, batches_[size], sizeof links);
    NodeList nodes;
    nodes.first = batches_[size];
    nodes.count = kNodeBatch;
    batches_[size] = links.next_batch;
    return nodes;
  }
  void carve(std::size_t size, NodeList& to) noexcept {
    const std::size_t bytes = (size + 1) * kNodeUnit;
    while (to.count < kNodeBatch && static_cast<std::size_t>(end_ - at_) >= bytes) {
      to.push(at_);
      at_ += bytes;
    }
  }
  void shelve_rest() noexcept {
    while (end_ != at_) {
      const std::size_t left = static_cast<std::size_t>(end_ - at_);
      const std::size_t bytes = left < kLargestNode ? left : kLargestNode;
      loose_[bytes / kNodeUnit - 1].push(at_);
      at_ += bytes;
    }
  }
  /// A block of the default pool, whatever scope the thread is in: it outlives every scope.
  unsigned char* new_chunk(std::size_t bytes) noexcept {
    void* chunk = nullptr;
    millpond_pool* pool = nullptr;
    if (millpond_device_get_default_pool(device_, &pool) != C_SUCCESS) return nullptr;
    const bool scoped = millpond_scope_begin(pool) == C_SUCCESS;
    const C_Status status = millpond_alloc(device_, bytes, &chunk);
    if (scoped) (void)millpond_scope_end(pool);
    return status == C_SUCCESS ? static_cast<unsigned char*>(chunk) : nullptr;
  }

  millpond_device* const device_;
  std::mutex lock_;                 // guards what follows
  void* batches_[kNodeSizes] = {};  // of kNodeBatch nodes each
  NodeList loose_[kNodeSizes];
  unsigned char* at_ = nullptr;  // the rest of the chunk that is being carved
  unsigned char* end_ = nullptr;
  std::size_t chunk_bytes_ = kFirstChunk;  // of the next chunk
};

inline std::atomic<NodeStore*> node_stores{nullptr};

/// The store of a device, made at the first use. nullptr if the host has no memory for it.
inline NodeStore* node_store(millpond_device* device) noexcept {
  NodeStore* first = node_stores.load(std::memory_order_acquire);
  NodeStore* made = nullptr;
  for (;;) {
    for (NodeStore* store = first; store != nullptr; store = store->next) {
      if (store->device() != device) continue;
      delete made;
      return store;
    }
    if (made == nullptr) made = new (std::nothrow) NodeStore(device);
    if (made == nullptr) return nullptr;
    made->next = first;
    if (node_stores.compare_exchange_weak(first, made, std::memory_order_release,
                                          std::memory_order_acquire)) {
      return made;
    }
  }
}

/// The free nodes of one size and device that a thread keeps: those that it works with, and a batch
/// in reserve, so that a thread that takes and frees in turn seldom goes to the store.
struct NodeStock {
  NodeList free;
  NodeList reserve;  // empty, or a batch
};

/// The free nodes of one device that a thread keeps.
struct NodeCache {
  NodeStore* store = nullptr;
  NodeCache* next = nullptr;
  NodeStock stocks[kNodeSizes];

  /// nullptr if there is no memory.
  void* pop(std::size_t size) {
    NodeStock& s = stocks[size];
    if (s.free.first == nullptr) {
      std::swap(s.free, s.reserve);
      if (s.free.first == nullptr && !store->fill(size, s.free)) return nullptr;
    }
    return s.free.pop();
  }
  void push(std::size_t size, void* node) {
    NodeStock& s = stocks[size];
    if (s.free.count >= kNodeBatch) {
      store->take(size, s.reserve);
      s.reserve = s.free;
      s.free = NodeList();
    }
    s.free.push(node);
  }
};

inline bool is_open(millpond_device* device) noexcept {
  millpond_pool* pool = nullptr;
  return millpond_device_get_default_pool(device, &pool) == C_SUCCESS;
}

/// The caches of a thread, one for each device. Their nodes go back to the stores with the thread.
struct NodeCaches {
  NodeCache* first = nullptr;
  inline static thread_local NodeCache* last_used = nullptr;
  inline static thread_local bool ended = false;  // the thread is ending: it keeps no more nodes

  ~NodeCaches() {
    last_used = nullptr;
    ended = true;
    while (first != nullptr) {
      NodeCache* const cache = first;
      first = cache->next;
      if (is_open(cache->store->device())) {
        for (std::size_t size = 0; size != kNodeSizes; ++size) {
          cache->store->take(size, cache->stocks[size].free);
          cache->store->take(size, cache->stocks[size].reserve);
        }
      }
      delete cache;
    }
  }
  NodeCache* find(millpond_device* device) noexcept {
    NodeCache* cache = first;
    while (cache != nullptr && cache->store->device() != device) cache = cache->next;
    if (cache == nullptr) {
      NodeStore* const store = node_store(device);
      cache = store == nullptr ? nullptr : new (std::nothrow) NodeCache();
      if (cache == nullptr) return nullptr;
      cache->store = store;
      cache->next = first;
      first = cache;
    }
    last_used = cache;
    return cache;
  }
};

/// The calling thread's cache for a device; nullptr while the thread ends, and without host memory.
inline NodeCache* node_cache(millpond_device* device) noexcept {
  NodeCache* const last = NodeCaches::last_used;
  if (last != nullptr && last->store->device() == device) return last;
  if (NodeCaches::ended) return nullptr;
  thread_local NodeCaches caches;
  return caches.find(device);
}

inline bool is_node(std::size_t size_bytes, std::size_t alignment) noexcept {
  return size_bytes <= kLargestNode && alignment <= kNodeUnit;
}

/// A node of at least `size_bytes`, 1 to kLargestNode. nullptr, with the reason as the thread's
/// last error, if there is none to be had.
inline void* take_node(Device on, std::size_t size_bytes) noexcept {
  millpond_device* const device = on.get();
  if (!is_open(device)) return nullptr;
  const std::size_t size = (size_bytes - 1) / kNodeUnit;
  if (NodeCache* const cache = node_cache(device)) return cache->pop(size);
  NodeList some;
  NodeStore* const store = node_store(device);
  if (store == nullptr || !store->fill(size, some)) return nullptr;
  void* const node = some.pop();
  store->take(size, some);
  return node;
}

/// Frees a node.
inline void give_node(Device on, void* node, std::size_t size_bytes) noexcept {
  millpond_device* const device = on.get();
  if (!is_open(device)) return;
  const std::size_t size = (size_bytes - 1) / kNodeUnit;
  if (NodeCache* const cache = node_cache(device)) {
    cache->push(size, node);
  } else if (NodeStore* const store = node_store(device)) {
    NodeList one;
    one.push(node);
    store->take(size, one);
  }
}

}  // namespace detail
}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_NODES_HPP
