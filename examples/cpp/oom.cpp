// A program runs out of memory and finds out who holds it. Two pools share a small device: the one
// for weights takes most of it, and a request to the one for the cache fails. The exception says
// why, who holds the most, what was tried, and what could be done.
//
// Returns 0 when the report names the pool that holds the most.
#include <cstdio>
#include <cstring>
#include <vector>

#include "millpond/millpond.hpp"

int main() {
  millpond::configure_host(1, 64u << 20);  // one device of 64 MiB
  const millpond::Device device("host", 0);
  const millpond::Pool weights(device, 0, "weights");
  const millpond::Pool cache(device, 0, "kv_cache");
  const millpond::Stream stream(device);

  std::vector<millpond::Buffer> layers;
  for (int layer = 0; layer < 12; ++layer) {
    layers.push_back(weights.allocate(4u << 20, stream));
  }
  try {
    const millpond::Buffer block = cache.allocate(24u << 20, stream);
  } catch (const millpond::Error& e) {
    std::printf("%s\n\n", e.what());
    const millpond_oom_report* report = e.oom_report();
    if (report == nullptr) return 1;
    std::printf("%s", millpond::to_string(*report).c_str());
    return std::strcmp(report->pools[0].label, "pool 'weights'") == 0 ? 0 : 1;
  }
  return 1;
}
