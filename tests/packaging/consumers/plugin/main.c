#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  void* plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (plugin == NULL) {
    fprintf(stderr, "cannot load the plugin: %s\n", argc == 2 ? dlerror() : "give its path");
    return 1;
  }
  if (dlsym(plugin, "InitPlugin") == NULL) {
    fprintf(stderr, "no InitPlugin: %s\n", dlerror());
    return 1;
  }
  if (dlsym(plugin, "millpond_version") != NULL) {
    fprintf(stderr, "the plugin exports the C API too\n");
    return 1;
  }
  return dlclose(plugin);
}
