// Uses memory rightly in many ways ("right"), or wrongly in one: the way is the first argument.
// "each" goes through the ways that follow it, one after the other, and says before each which it
// is. Built with AddressSanitizer, or run by valgrind's memcheck, by checkers.rs.

#include <millpond/millpond.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

void check(C_Status status, int line) {
  if (status != C_SUCCESS) {
    std::fprintf(stderr, "line %d: %s\n", line, millpond_last_error_message());
    std::exit(3);
  }
}
#define OK(call) check((call), __LINE__)

using Byte = volatile unsigned char;

millpond_device* device;

C_Stream stream() {
  C_Stream s;
  OK(millpond_stream_create(device, &s));
  return s;
}

Byte* pool_alloc(millpond_pool* pool, std::size_t bytes, C_Stream s) {
  void* p;
  OK(millpond_pool_alloc(pool, bytes, s, &p));
  return static_cast<Byte*>(p);
}

Byte* alloc(std::size_t bytes) {
  void* p;
  OK(millpond_alloc(device, bytes, &p));
  return static_cast<Byte*>(p);
}

Byte* host_alloc(std::size_t bytes) {
  void* p;
  OK(millpond_host_alloc(device, bytes, &p));
  return static_cast<Byte*>(p);
}

void* plain(Byte* p) { return const_cast<unsigned char*>(p); }

/// The first and the last byte, and some between.
void write(Byte* p, std::size_t bytes, unsigned char value) {
  for (std::size_t i = 0; i < bytes; i += 1 + bytes / 64) p[i] = value;
  p[bytes - 1] = value;
}

void expect(Byte* p, std::size_t bytes, unsigned char value) {
  for (std::size_t i = 0; i < bytes; i += 1 + bytes / 64) {
    if (p[i] != value) std::exit(4);
  }
  if (p[bytes - 1] != value) std::exit(4);
}

/// Holds a stream until it goes.
struct Hold {
  std::atomic<bool> go{false};
  explicit Hold(C_Stream s) {
    auto wait = [](void* self, C_Status) {
      while (!static_cast<Hold*>(self)->go.load()) std::this_thread::yield();
    };
    OK(millpond_stream_add_callback(device, s, wait, this));
  }
  void end(C_Stream s) {
    go = true;
    OK(millpond_stream_synchronize(device, s));
  }
};

/// Work that is still queued touches what was freed, and what lies beside the next block there.
void right_in_stream_order(millpond_pool* pool) {
  C_Stream s = stream(), t = stream();
  for (std::size_t bytes : {std::size_t{1000}, std::size_t{50000}, std::size_t{3} << 20}) {
    Byte* seen = host_alloc(bytes);
    Byte* first = pool_alloc(pool, bytes, s);
    Hold hold(s);
    OK(millpond_memset_async(device, s, plain(first), 7, bytes));
    OK(millpond_copy_async(device, s, MILLPOND_COPY_D2H, plain(seen), plain(first), bytes));
    OK(millpond_pool_free(pool, plain(first), s));
    Byte* second = pool_alloc(pool, bytes - 100, s);  // most likely the same memory
    OK(millpond_memset_async(device, s, plain(second), 9, bytes - 100));
    Byte* third = pool_alloc(pool, bytes, t);
    OK(millpond_memset_async(device, t, plain(third), 1, bytes));
    OK(millpond_record_stream(plain(third), s));
    OK(millpond_memset_async(device, s, plain(third), 2, bytes));
    OK(millpond_pool_free(pool, plain(third), t));  // s has not begun
    Byte* fourth = pool_alloc(pool, bytes, t);
    OK(millpond_memset_async(device, t, plain(fourth), 4, bytes));
    OK(millpond_stream_synchronize(device, t));
    expect(fourth, bytes, 4);
    hold.end(s);
    expect(seen, bytes, 7);
    expect(second, bytes - 100, 9);
    OK(millpond_pool_free(pool, plain(second), t));
    OK(millpond_pool_free(pool, plain(fourth), t));
    OK(millpond_host_free(device, plain(seen)));
  }
  // A stream that ends with work queued.
  Byte* last = pool_alloc(pool, 1 << 20, s);
  Hold* hold = new Hold(s);
  OK(millpond_memset_async(device, s, plain(last), 5, 1 << 20));
  OK(millpond_pool_free(pool, plain(last), s));
  OK(millpond_stream_destroy(device, s));
  hold->go = true;
  OK(millpond_device_synchronize(device));
  delete hold;
  OK(millpond_stream_destroy(device, t));
}

/// Work that waits until it may touch the block that it is given.
struct Late {
  std::atomic<bool> go{false};
  std::atomic<bool> done{false};
  Byte* at;
  std::size_t bytes;
  Late(C_Stream s, Byte* at_, std::size_t bytes_) : at(at_), bytes(bytes_) {
    auto touch = [](void* self, C_Status) {
      Late& l = *static_cast<Late*>(self);
      while (!l.go.load()) std::this_thread::yield();
      write(l.at, l.bytes, 6);
      l.done = true;
    };
    OK(millpond_stream_add_callback(device, s, touch, this));
  }
  /// The library looks what has completed, and then the work goes on.
  void end(C_Stream other) {
    bool idle;
    millpond_memory_stats stats{};
    stats.struct_size = sizeof stats;
    for (int i = 0; i < 3; ++i) {
      OK(millpond_device_get_memory_stats(device, &stats));
      OK(millpond_stream_query(device, other, &idle));
    }
    go = true;
    while (!done.load()) std::this_thread::yield();
  }
};

/// A stream ends before its work has: its blocks may be used until that is done, whenever and
/// however they are freed.
void right_when_streams_end(millpond_pool* pool) {
  C_Stream other = stream();
  for (std::size_t bytes : {std::size_t{1000}, std::size_t{50000}, std::size_t{3} << 20}) {
    for (int way = 0; way < 6; ++way) {
      C_Stream s = stream();
      Byte* p = pool_alloc(pool, bytes, s);
      Late late(s, p, bytes);
      Hold busy(other);  // so that a block which `other` uses has to wait
      if (way == 0) OK(millpond_pool_free(pool, plain(p), other));
      if (way == 1) {
        OK(millpond_record_stream(plain(p), other));
        OK(millpond_free(plain(p)));
      }
      if (way == 2) OK(millpond_free(plain(p)));
      OK(millpond_stream_destroy(device, s));
      if (way == 3) OK(millpond_free(plain(p)));
      if (way == 4) OK(millpond_pool_free(pool, plain(p), other));
      if (way == 5) {
        OK(millpond_record_stream(plain(p), other));
        OK(millpond_free(plain(p)));
      }
      busy.end(other);
      late.end(other);
    }
  }
  OK(millpond_device_synchronize(device));
  OK(millpond_stream_destroy(device, other));
}

/// The default stream waits for what others do with a block of its own.
void right_on_the_default_stream(millpond_pool* pool) {
  C_Stream s = stream(), other = stream();
  Byte* p = pool_alloc(pool, 1000, nullptr);
  Late late(s, p, 1000);
  C_Event event;
  OK(millpond_event_create(device, &event));
  OK(millpond_event_record(device, s, event));
  OK(millpond_stream_wait_event(device, nullptr, event));
  OK(millpond_pool_free(pool, plain(p), nullptr));
  late.end(other);
  OK(millpond_device_synchronize(device));
  OK(millpond_event_destroy(device, event));
  OK(millpond_stream_destroy(device, s));
  OK(millpond_stream_destroy(device, other));
}

/// A restore frees a block that queued work still uses, in the order of its stream.
void right_after_a_restore(millpond_device* of) {
  millpond_pool* pool;
  OK(millpond_pool_create(of, nullptr, &pool));
  C_Stream s = stream(), other = stream();
  Byte* kept = pool_alloc(pool, 1000, s);
  millpond_checkpoint* then;
  OK(millpond_pool_checkpoint(pool, &then));
  Byte* younger = pool_alloc(pool, 5000, s);
  Late late(s, younger, 5000);
  OK(millpond_pool_restore(pool, then, nullptr, nullptr));
  late.end(other);
  OK(millpond_stream_synchronize(of, s));
  write(kept, 1000, 1);
  OK(millpond_pool_free(pool, plain(kept), s));
  OK(millpond_checkpoint_destroy(then));
  OK(millpond_stream_destroy(of, s));
  OK(millpond_stream_destroy(of, other));
  OK(millpond_pool_destroy(pool));
}

/// Sizes of every tier come and go, so that memory is cut, merged, scattered and taken by others.
void right_at_random(millpond_pool* pool) {
  C_Stream streams[] = {stream(), stream()};
  struct Block {
    Byte* at;
    std::size_t bytes;
    unsigned char value;
    C_Stream s;
  };
  std::vector<Block> live;
  unsigned state = 1;
  auto random = [&](unsigned n) { return (state = state * 1664525u + 1013904223u) / 65536u % n; };
  for (int i = 0; i < 600; ++i) {
    if (live.size() < 12 && random(3) != 0) {
      const std::size_t scale[] = {700, 9000, 200000, 3000000};
      Block b{nullptr, 1 + random(65536) % scale[random(4)], static_cast<unsigned char>(i),
              streams[random(2)]};
      if (random(8) == 0) b.bytes += 2 << 20;
      b.at = pool_alloc(pool, b.bytes, b.s);
      if (random(2) != 0) {
        OK(millpond_stream_synchronize(device, b.s));
        write(b.at, b.bytes, b.value);
      } else {
        OK(millpond_memset_async(device, b.s, plain(b.at), b.value, b.bytes));
      }
      live.push_back(b);
    } else if (!live.empty()) {
      const std::size_t n = random(static_cast<unsigned>(live.size()));
      Block b = live[n];
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(n));
      OK(millpond_stream_synchronize(device, b.s));
      expect(b.at, b.bytes, b.value);
      OK(millpond_pool_free(pool, plain(b.at), streams[random(2)]));
    }
    if (random(200) == 0) OK(millpond_device_empty_cache(device));
  }
  for (const Block& b : live) OK(millpond_pool_free(pool, plain(b.at), b.s));
  for (C_Stream s : streams) OK(millpond_stream_destroy(device, s));
}

/// Memory goes and comes back at the same addresses, with the blocks.
void right_with_sleep(millpond_device* of) {
  millpond_pool* pool;
  OK(millpond_pool_create(of, nullptr, &pool));
  C_Stream s = stream();
  Byte* blocks[3];
  const std::size_t sizes[] = {100, 60000, 5 << 20};
  for (int i = 0; i < 3; ++i) {
    blocks[i] = pool_alloc(pool, sizes[i], s);
    OK(millpond_stream_synchronize(of, s));
    write(blocks[i], sizes[i], 8);
  }
  if (millpond_pool_sleep(pool, MILLPOND_SLEEP_KEEP) == C_SUCCESS) {
    OK(millpond_pool_wake(pool));
  }
  for (int i = 0; i < 3; ++i) expect(blocks[i], sizes[i], 8);

  millpond_checkpoint* then;
  OK(millpond_pool_checkpoint(pool, &then));
  OK(millpond_pool_free(pool, plain(blocks[1]), s));
  Byte* other = pool_alloc(pool, 3000, s);
  write(other, 3000, 1);
  (void)other;
  OK(millpond_pool_restore(pool, then, nullptr, nullptr));
  write(blocks[1], sizes[1], 3);
  expect(blocks[0], sizes[0], 8);
  expect(blocks[2], sizes[2], 8);
  OK(millpond_checkpoint_destroy(then));
  for (Byte* b : blocks) OK(millpond_pool_free(pool, plain(b), s));

  // A graph may use what it was given, also after that was freed.
  millpond_capture* capture;
  OK(millpond_capture_begin(pool, s, &capture));
  Byte* graph = pool_alloc(pool, 5000, s);
  OK(millpond_pool_free(pool, plain(graph), s));
  OK(millpond_capture_end(capture));
  write(graph, 5000, 1);
  OK(millpond_stream_synchronize(of, s));
  write(graph, 5000, 1);
  OK(millpond_capture_release(capture));
  OK(millpond_stream_destroy(of, s));
  OK(millpond_pool_destroy(pool));
}

void right_on_the_host() {
  std::vector<Byte*> small;
  for (std::size_t i = 1; i < 200; ++i) {
    small.push_back(host_alloc(i));
    write(small.back(), i, 1);
  }
  for (std::size_t i = 1; i < 200; ++i) {
    expect(small[i - 1], i, 1);
    OK(millpond_host_free(device, plain(small[i - 1])));
  }
  Byte* large = host_alloc(3 << 20);
  write(large, 3 << 20, 1);
  OK(millpond_host_free(device, plain(large)));
  OK(millpond_device_empty_host_cache(device));
  Byte* again = host_alloc(100);
  write(again, 100, 1);
}

/// `frees_wait`: for what is queued, as each does without pooling.
void right(millpond_pool* pool, bool frees_wait) {
  for (std::size_t bytes : {1, 7, 8, 9, 511, 512, 1000, 4097, 70000}) {
    Byte* p = alloc(bytes);
    write(p, bytes, 1);
    expect(p, bytes, 1);
    OK(millpond_free(plain(p)));
    p = alloc(bytes);
    write(p, bytes, 2);
    OK(millpond_free(plain(p)));
  }
  if (!frees_wait) {
    right_in_stream_order(pool);
    right_when_streams_end(pool);
    right_on_the_default_stream(pool);
    right_after_a_restore(device);
  }
  right_at_random(pool);
  if (!frees_wait) right_with_sleep(device);
  right_on_the_host();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      millpond_pool* shared;
      OK(millpond_device_get_default_pool(device, &shared));
      C_Stream s = stream();
      for (std::size_t i = 1; i < 400; ++i) {
        Byte* p = pool_alloc(shared, i * 37, s);
        OK(millpond_memset_async(device, s, plain(p), 1, i * 37));
        Byte* q = alloc(i);
        write(q, i, 1);
        OK(millpond_pool_free(shared, plain(p), s));
        OK(millpond_free(plain(q)));
      }
      OK(millpond_stream_destroy(device, s));
    });
  }
  for (std::thread& t : threads) t.join();
}

/// From the opening of the library to its end.
int run(const std::string& way, bool frees_wait) {
  OK(millpond_device_get("host", 0, &device));
  millpond_pool* pool;
  OK(millpond_device_get_default_pool(device, &pool));
  C_Stream s = stream();
  if (way == "right") {
    right(pool, frees_wait);
  } else if (way == "overrun") {
    Byte* p = alloc(1001);
    p[1000] = 1;
    p[1001] = 1;  // wrong
  } else if (way == "underrun") {
    alloc(1000);
    Byte* p = alloc(1000);
    p[-1] = 1;  // wrong
  } else if (way == "after_free") {
    Byte* p = alloc(1000);
    p[999] = 1;
    OK(millpond_free(plain(p)));
    p[999] = 1;  // wrong
  } else if (way == "stream_overrun") {
    Byte* p = pool_alloc(pool, 100000, s);
    p[99999] = 1;
    p[100000] = 1;  // wrong
  } else if (way == "stream_after_free") {
    Byte* p = pool_alloc(pool, 100000, s);
    Hold hold(s);
    OK(millpond_memset_async(device, s, plain(p), 1, 100000));
    OK(millpond_pool_free(pool, plain(p), s));
    hold.end(s);
    p[5] = 1;  // wrong
  } else if (way == "queued_after_free") {
    Byte* p = pool_alloc(pool, 100000, s);
    OK(millpond_pool_free(pool, plain(p), s));
    std::thread([&] { std::memset(plain(p), 1, 100000); }).join();  // wrong
  } else if (way == "ended_after_free") {
    Byte* p = pool_alloc(pool, 100000, s);
    C_Stream ends = stream();
    Byte* q = pool_alloc(pool, 100000, ends);
    Late late(ends, q, 100000);
    OK(millpond_stream_destroy(device, ends));
    OK(millpond_free(plain(q)));
    late.end(s);
    OK(millpond_device_synchronize(device));
    p[5] = 1;
    q[5] = 1;  // wrong
  } else if (way == "default_after_free") {
    Byte* p = pool_alloc(pool, 100000, nullptr);
    OK(millpond_memset_async(device, nullptr, plain(p), 1, 100000));
    OK(millpond_pool_free(pool, plain(p), nullptr));
    p[5] = 1;  // wrong
  } else if (way == "after_a_restore") {
    millpond_pool* own;
    OK(millpond_pool_create(device, nullptr, &own));
    millpond_checkpoint* then;
    OK(millpond_pool_checkpoint(own, &then));
    Byte* p = pool_alloc(own, 100000, s);
    p[5] = 1;
    OK(millpond_pool_restore(own, then, nullptr, nullptr));
    p[5] = 1;  // wrong
  } else if (way == "pinned_overrun") {
    Byte* p = host_alloc(1000);
    p[999] = 1;
    p[1000] = 1;  // wrong
  } else if (way == "pinned_after_free") {
    Byte* p = host_alloc(100000);
    p[5] = 1;
    OK(millpond_host_free(device, plain(p)));
    p[5] = 1;  // wrong
  } else if (way == "undefined") {
    Byte* p = alloc(1000);
    if (p[5] == 1) std::puts("one");  // wrong, for memcheck
  } else {
    return 2;
  }
  OK(millpond_stream_destroy(device, s));
  OK(millpond_finalize());
  // What is the system's again may be anybody's.
  std::vector<char*> heap;
  for (int i = 0; i < 64; ++i) {
    heap.push_back(static_cast<char*>(std::malloc(1 << 20)));
    std::memset(heap.back(), 1, 1 << 20);
  }
  for (char* p : heap) std::free(p);
  std::puts("done");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string way = argv[1];
  if (way != "each") return run(way, argc > 2);
  for (int i = 2; i < argc; ++i) {
    std::fprintf(stderr, "way: %s\n", argv[i]);
    if (const int status = run(argv[i], false)) return status;
  }
  return 0;
}
