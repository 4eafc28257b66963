// A program without a tag or a pool of its own, which runs out of memory: docs/oom.md goes from its
// message to the name of who holds the memory. It needs a small device: MILLPOND_HOST_CAPACITY=64M.
#include <vector>

#include "millpond/millpond.hpp"

static std::vector<millpond::Buffer> kept;

static void load_weights(const millpond::Device& device) {
  for (int layer = 0; layer < 8; ++layer) kept.push_back(device.allocate(4u << 20));
}

static void step(const millpond::Device& device) {
  const millpond::Buffer workspace = device.allocate(2u << 20);
  kept.push_back(device.allocate(1536u << 10));  // and nobody lets it go
}

int main() {
  const millpond::Device device("host", 0);
  load_weights(device);
  for (;;) step(device);
}
