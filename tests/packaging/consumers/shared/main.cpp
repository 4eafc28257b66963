// A C++ program and two adapters, each linked to libmillpond.so.0: all see the blocks of all, and
// free them.
#include <dlfcn.h>

#include <cstdio>
#include <millpond/millpond.hpp>

extern "C" void* linked_alloc(size_t size_bytes);
extern "C" uint64_t linked_live_bytes();

int main(int, char** argv) {
  // As Python opens an extension: its symbols are nobody else's.
  void* opened = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  auto opened_alloc = reinterpret_cast<void* (*)(size_t)>(dlsym(opened, "opened_alloc"));
  auto opened_live_bytes = reinterpret_cast<uint64_t (*)()>(dlsym(opened, "opened_live_bytes"));

  millpond::Device device("host", 0);
  void* first = linked_alloc(1000);
  void* second = opened_alloc(20000);
  millpond::Buffer third = device.default_pool().allocate(300000, millpond::Stream(device));
  const uint64_t seen[] = {linked_live_bytes(), opened_live_bytes(),
                           device.stats().requested_bytes.current};
  for (uint64_t bytes : seen) {
    if (bytes != 321000)
      return std::fprintf(stderr, "%llu bytes live\n", (unsigned long long)bytes), 1;
  }
  if (millpond_free(first) != C_SUCCESS || millpond_free(second) != C_SUCCESS) return 1;
  third = millpond::Buffer();
  std::printf("one pond; after all was freed %llu bytes live\n",
              (unsigned long long)opened_live_bytes());
  return opened_live_bytes() == 0 ? 0 : 1;
}
