// The C++ header from an installed package: the memory calls in the shape that Paddle developers
// know.
#include <cstring>
#include <iostream>
#include <millpond/millpond.hpp>

int main() {
  namespace memory = millpond::memory;
  const millpond::CPUPlace place;
  const auto before = memory::Used(place);
  void* p = memory::Alloc(place, 4 * 1024);
  if (p == nullptr || memory::Used(place) < before + 4 * 1024) {
    std::cerr << "nothing was allocated\n";
    return 1;
  }
  std::memset(p, 1, 4 * 1024);
  memory::Free(place, p);
  if (memory::Used(place) != before) {
    std::cerr << "the free did not count\n";
    return 1;
  }
}
