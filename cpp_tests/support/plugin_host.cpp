// See plugin_host.hpp.
#include "support/plugin_host.hpp"

#include <dlfcn.h>

#include <utility>

namespace millpond_tests {

Library::Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) init_ = reinterpret_cast<InitPlugin>(dlsym(handle_, "InitPlugin"));
  if (init_ == nullptr) {
    const char* why = dlerror();
    why_ = why != nullptr ? why : "no InitPlugin";
  }
}

Library::~Library() { (void)close(); }

bool Library::close() {
  void* const handle = std::exchange(handle_, nullptr);
  init_ = nullptr;
  return handle == nullptr || dlclose(handle) == 0;
}

}  // namespace millpond_tests
