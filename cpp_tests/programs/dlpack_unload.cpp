// A tensor outlives the shared object that made it: the consumer reads it and calls its deleter
// after the object was closed. The consumer has no Millpond at all.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "support/dlpack_layout.hpp"

int main(int count, char** arguments) {
  if (count < 2) return 2;
  void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const auto make =
      reinterpret_cast<DLManagedTensorVersioned* (*)()>(dlsym(library, "make_tensor"));
  if (make == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  DLManagedTensorVersioned* tensor = make();
  DLManagedTensorVersioned* second = make();
  if (dlclose(library) != 0) return std::fprintf(stderr, "%s\n", dlerror()), 1;

  std::memset(tensor->dl_tensor.data, 7, static_cast<std::size_t>(tensor->dl_tensor.shape[0]));
  tensor->deleter(tensor);
  std::memset(second->dl_tensor.data, 7, static_cast<std::size_t>(second->dl_tensor.shape[0]));
  second->deleter(second);
  std::puts("both tensors were used and given back");
  return 0;
}
