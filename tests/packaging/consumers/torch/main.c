/* Finds what PyTorch calls in the library that it is given the path of. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  static const char* const names[] = {"millpond_torch_alloc", "millpond_torch_free"};
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "cannot load it: %s\n", argc == 2 ? dlerror() : "give its path");
    return 1;
  }
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (dlsym(library, names[i]) == NULL) {
      fprintf(stderr, "no %s: %s\n", names[i], dlerror());
      return 1;
    }
  }
  return 0;
}
