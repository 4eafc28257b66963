// Warm pairs by ways that only C++ has, on the host device, for counting instructions:
// cpp <place | node | heap> <count>. A node is one of a list that grows and is destroyed; heap: by
// `new`, as a measure.
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory_resource>

#include "millpond/millpond.hpp"

int main(int argc, char** argv) {
  using namespace millpond;
  if (argc != 3) return 2;
  const long count = std::atol(argv[2]);
  configure_host(1, std::uint64_t{1} << 30);
  MemoryResource ours(Device("host"));
  if (std::strcmp(argv[1], "place") == 0) {
    for (long i = 0; i < count; ++i) {
      memory::Free(CustomPlace("host"), memory::Alloc(CustomPlace("host"), 4096));
    }
    return 0;
  }
  std::pmr::list<long> list(std::strcmp(argv[1], "heap") == 0
                                ? std::pmr::new_delete_resource()
                                : static_cast<std::pmr::memory_resource*>(&ours));
  for (long i = 0; i < count; ++i) list.push_back(i);
  return 0;
}
