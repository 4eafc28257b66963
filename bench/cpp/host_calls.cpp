// What a pair of request and free costs on the device type "host", by each way that C++ has, beside
// the same pair on a stream; and a node of a list beside the heap's. Best of several runs, CPU time
// of one thread. Prints a table in Markdown; bench/cpp/run.sh builds and runs it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <list>
#include <memory_resource>
#include <vector>

#include "millpond/millpond.hpp"

namespace {

using namespace millpond;

void require(C_Status status) {
  if (status == C_SUCCESS) return;
  std::fprintf(stderr, "host_calls: %s\n", millpond_last_error_message());
  std::exit(1);
}

double cpu_ns() {
  timespec t{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

/// [ns] of a call, at its best.
template <typename Call>
double cost(long calls, Call call) {
  double best = 1e18;
  for (int run = 0; run < 15; ++run) {
    const double begin = cpu_ns();
    for (long i = 0; i < calls; ++i) call();
    best = std::min(best, (cpu_ns() - begin) / static_cast<double>(calls));
  }
  return best;
}

void line(const char* what, double ns, double beside) {
  std::printf("| %s | %.1f | %.2f |\n", what, ns, ns / beside);
}

double pair(std::pmr::memory_resource* resource, std::size_t bytes) {
  return cost(100000, [=] {
    void* const p = resource->allocate(bytes);
    *static_cast<volatile char*>(p) = 1;
    resource->deallocate(p, bytes);
  });
}

double list_node(std::pmr::memory_resource* resource) {
  constexpr long kNodes = 100000;
  return cost(1,
              [=] {
                std::pmr::list<long> list(resource);
                for (long i = 0; i < kNodes; ++i) list.push_back(i);
              }) /
         static_cast<double>(kNodes);
}

}  // namespace

int main() {
  const Device device("host", 0);
  millpond_pool* const pool = device.default_pool().get();
  std::vector<Stream> streams;
  streams.emplace_back(device);
  void* p = nullptr;
  const auto ordered = [&] {
    require(millpond_pool_alloc(pool, 4096, streams[0].get(), &p));
    require(millpond_pool_free(pool, p, streams[0].get()));
  };
  const auto unordered = [&] {
    require(millpond_alloc(device.get(), 4096, &p));
    require(millpond_free(p));
  };
  const auto by_place = [&] {
    p = memory::Alloc(GPUPlace(0), 4096);
    memory::Free(GPUPlace(0), p);
  };
  std::puts("| a pair of 4 KiB | ns | x on a stream |\n| --- | ---: | ---: |");
  const double base = cost(200000, ordered);
  line("on a stream: `millpond_pool_alloc`, `millpond_pool_free`", base, base);
  line("without a stream, 1 stream: `millpond_alloc`, `millpond_free`", cost(200000, unordered),
       base);
  while (streams.size() < 64) streams.emplace_back(device);
  line("the same, 64 streams", cost(200000, unordered), base);
  line("`memory::Alloc(GPUPlace(0))`, `memory::Free`, 64 streams", cost(200000, by_place), base);

  std::puts(
      "\n| `std::pmr` | `new` [ns] | `MemoryResource` [ns] | x |\n| --- | ---: | ---: | ---: |");
  MemoryResource ours(device);
  std::pmr::memory_resource* const heap = std::pmr::new_delete_resource();
  std::pmr::unsynchronized_pool_resource pooled(&ours);
  const double nodes[3] = {list_node(heap), list_node(&ours), list_node(&pooled)};
  std::printf("| a node of a list of 100 000 | %.1f | %.1f | %.2f |\n", nodes[0], nodes[1],
              nodes[1] / nodes[0]);
  std::printf("| the same, under `std::pmr::unsynchronized_pool_resource` | %.1f | %.1f | %.2f |\n",
              nodes[0], nodes[2], nodes[2] / nodes[0]);
  for (const std::size_t bytes : {24u, 64u, 256u, 4096u, 65536u}) {
    const double pairs[2] = {pair(heap, bytes), pair(&ours, bytes)};
    std::printf("| a pair of %zu bytes | %.1f | %.1f | %.2f |\n", bytes, pairs[0], pairs[1],
                pairs[1] / pairs[0]);
  }
  return 0;
}
