// Millpond as PyTorch's allocator for the processor's memory: a c10::Allocator, so that every CPU
// tensor is a block of Millpond's device `cpu`. Built on the user's machine against the PyTorch
// that is there (millpond_torch.enable_cpu), since PyTorch's classes differ between releases.
//
// Needed of it, by c10/core/CPUAllocator.cpp and those who use it: an alignment of 64 bytes,
// frees from any thread, frees after a fork, and a word to the profiler.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <type_traits>
#include <unordered_set>

#include "pluggable.hpp"

namespace {

// The functions of libmillpond-torch.so.
decltype(&millpond_torch_cpu_request) request = nullptr;
decltype(&millpond_torch_cpu_delete) release_block = nullptr;
decltype(&millpond_torch_last_error) last_error = nullptr;

/// Whether this is a child of fork(), as the workers of a DataLoader are: Millpond does nothing
/// there. New memory comes from PyTorch's own allocator, and the parent's blocks, which the child
/// has as copies, are left alone.
std::atomic<bool> forked{false};

/// The child's own blocks, which tell them from the parent's.
struct Others {
  std::mutex lock;
  std::unordered_set<void*> blocks;
};
Others* others = nullptr;  // never freed: tensors may be freed as the process ends

// No other thread has the lock in the moment of a fork.
void before_fork() { others->lock.lock(); }
void in_the_parent() { others->lock.unlock(); }
void in_the_child() {
  forked.store(true, std::memory_order_relaxed);
  others->lock.unlock();
}

bool is_another(void* ptr) {
  const std::lock_guard<std::mutex> guard(others->lock);
  return others->blocks.erase(ptr) != 0;
}

void release(void* ptr) {
  if (ptr == nullptr) return;
  const c10::DeleterFnPtr usual = c10::GetDefaultCPUAllocator()->raw_deleter();
  if (forked.load(std::memory_order_relaxed)) {
    if (is_another(ptr)) usual(ptr);
    return;
  }
  // The profiler first: another thread may get the address as soon as it is free.
  c10::profiledCPUMemoryReporter().Delete(ptr);
  // What was taken raw before the change is PyTorch's own.
  if (release_block(ptr) == 2) usual(ptr);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    void* ptr = size == 0 ? nullptr : take(size);
    return {ptr, ptr, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static void* take(std::size_t size) {
    if (forked.load(std::memory_order_relaxed)) {
      // A guard first: what throws must not lose the memory.
      c10::DataPtr own = c10::GetDefaultCPUAllocator()->allocate(size);
      const std::lock_guard<std::mutex> guard(others->lock);
      others->blocks.insert(own.get());  // may throw, and then `own` frees it
      return own.release_context();
    }
    bool lacking = false;
    void* ptr = request(size, &lacking);
    if (ptr != nullptr) {
      c10::profiledCPUMemoryReporter().New(ptr, size);
      return ptr;
    }
    if (lacking) c10::profiledCPUMemoryReporter().OutOfMemory(size);
    TORCH_CHECK(false, "Millpond: not enough memory: you tried to allocate ", size, " bytes. ",
                last_error());
  }
};

}  // namespace

// 1: every CPU tensor that is made from now on is Millpond's. 0: `library` is of another version,
// or there is no memory for it.
extern "C" __attribute__((visibility("default"))) int millpond_cpu_install(const char* library) {
  void* file = dlopen(library, RTLD_NOW);
  if (file == nullptr) return 0;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(file, name));
    return function != nullptr;
  };
  if (!find(request, "millpond_torch_cpu_request") ||
      !find(release_block, "millpond_torch_cpu_delete") ||
      !find(last_error, "millpond_torch_last_error")) {
    return 0;
  }
  others = new (std::nothrow) Others;
  if (others == nullptr || pthread_atfork(&before_fork, &in_the_parent, &in_the_child) != 0) {
    return 0;
  }
  static Allocator& allocator = *new Allocator;  // PyTorch keeps it to the end
  c10::SetCPUAllocator(&allocator, 100);         // higher than what PyTorch itself sets
  return 1;
}
