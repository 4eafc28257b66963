// libmillpond-torch.so, as native.cpp finds its functions.
#ifndef MILLPOND_TORCH_LIBRARY_HPP
#define MILLPOND_TORCH_LIBRARY_HPP

#include <dlfcn.h>

#include "pluggable.hpp"

namespace millpond_torch {

/// The functions of libmillpond-torch.so, by their names without the prefix.
struct Library {
// clang-format off
#define FUNCTIONS(X)                                                                         \
  X(request) X(delete) X(init) X(reset) X(memory_fraction) X(base_alloc) X(record_stream)    \
  X(begin_allocate_to_pool) X(end_allocate_to_pool) X(release_pool) X(memory_stats)          \
  X(memory_stats_name) X(reset_accumulated) X(reset_peaks) X(memory) X(blocks) X(pool_hold)  \
  X(pool_uses) X(copies_by_peer) X(last_error) X(history_start) X(history_stop)              \
  X(history_read) X(on_segments) X(checkpoint) X(restore) X(checkpoint_destroy)              \
  X(export_size) X(export) X(import) X(import_close) X(segments) X(stats) X(sweep)              \
  X(requested) X(pool_serves_others) X(begin_elsewhere) X(serving)              \
  X(pool_is_spare) X(avert_oom) X(history_stamp)
// clang-format on
#define MEMBER(name) decltype(&millpond_torch_##name) name##_;
  FUNCTIONS(MEMBER)

  bool load(const char* path) {
    void* file = dlopen(path, RTLD_NOW);
    bool all = file != nullptr;
#define FIND(name)                                                                               \
  name##_ =                                                                                      \
      all ? reinterpret_cast<decltype(name##_)>(dlsym(file, "millpond_torch_" #name)) : nullptr; \
  all = all && name##_ != nullptr;
    FUNCTIONS(FIND)
    return all;
  }
};

#undef FUNCTIONS
#undef MEMBER
#undef FIND

}  // namespace millpond_torch

#endif
