// What a program built with LeakSanitizer sees when it has used the library and ended it, or not
// ended it: nothing. The library keeps some of its own records until the process ends; they must be
// in reach of the sanitizer's search. Ends with the sanitizer's own status when there are leaks.
#include <list>
#include <memory_resource>
#include <millpond/millpond.hpp>
#include <thread>
#include <vector>

#include "programs/expect.hpp"

namespace {

void use_pools() {
  millpond::Device device("host", 0);
  for (int i = 0; i < 20; ++i) {
    millpond::Pool pool(device);
    millpond::Stream stream(device);
    millpond::Buffer block = pool.allocate(100000, stream);
    REQUIRE(stream.memset(block.data(), 1, block.size()) == C_SUCCESS);
    std::thread([&] { (void)pool.allocate(5000); }).join();
  }
  std::vector<millpond::Pool> together;
  for (int i = 0; i < 20; ++i) together.emplace_back(device);
  for (const millpond::Pool& pool : together) (void)pool.allocate(3 << 20);
  millpond::MemoryResource resource(device);
  const std::pmr::list<int> nodes(1000, 7, &resource);
  std::thread([&] { const std::pmr::list<int> others(nodes, &resource); }).join();
  millpond::memory::Free(millpond::GPUPlace(0),
                         millpond::memory::Alloc(millpond::GPUPlace(0), 1000));
}

}  // namespace

int main(int argc, char**) {
  for (int i = 0; i < 3; ++i) {
    use_pools();
    if (argc == 1) REQUIRE(millpond_finalize() == C_SUCCESS);
  }
}
