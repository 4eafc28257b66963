// Small nodes of containers where things end: forks, threads that are in the store meanwhile, the
// device, and the process.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <memory_resource>
#include <new>
#include <thread>
#include <vector>

#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

namespace {

using millpond::Device;
using millpond::MemoryResource;

bool refused(MemoryResource& resource) {
  try {
    resource.deallocate(resource.allocate(24), 24);
    return false;
  } catch (const std::bad_alloc&) {
    return true;
  }
}

// Frees when all else has been destroyed.
struct FreesLate {
  std::pmr::list<int>* list = nullptr;
  ~FreesLate() { delete list; }
} frees_late;

/// A fork while other threads are in the store: the child gets no memory of its parent's, gives
/// none back, and hangs at no lock.
void forks() {
  const Device device("host", 0);
  MemoryResource resource(device);
  std::pmr::list<int> list(1000, 7, &resource);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop) resource.deallocate(resource.allocate(24), 24);
    });
  }
  for (int round = 0; round < 50; ++round) {
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      alarm(20);
      REQUIRE(refused(resource));
      list.clear();
      REQUIRE(refused(resource));
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  REQUIRE(list.size() == 1000);
  for (const int value : list) REQUIRE(value == 7);
}

/// What the device's end leaves: nodes can be freed, and there are no new ones.
void ends() {
  Device device("host", 0);
  MemoryResource resource(device);
  void* const node = resource.allocate(24);
  std::vector<void*> many;
  for (int i = 0; i < 10000; ++i) many.push_back(resource.allocate(64));
  millpond::finalize();
  REQUIRE(refused(resource));
  resource.deallocate(node, 24);
  for (void* p : many) resource.deallocate(p, 64);
  resource.trim();
  REQUIRE(refused(resource));
  // The device of the same name is another one, and so are its nodes.
  device = Device("host", 0);
  MemoryResource again(device);
  REQUIRE(!refused(again));
  REQUIRE(!(again == resource));
  void* const fresh = again.allocate(24);
  resource.deallocate(fresh, 24);  // not of its device: nothing happens
  void* const other = again.allocate(24);
  REQUIRE(other != fresh);
  again.deallocate(other, 24);
  again.deallocate(fresh, 24);
  again.trim();
  REQUIRE(device.stats().blocks.current == 0);
}

/// Sleep and checkpoints of the default pool leave them alone.
void pools() {
  const Device device("host", 0);
  const millpond::PoolView pool = device.default_pool();
  MemoryResource resource(device);
  std::pmr::list<int> list(100, 1, &resource);
  const millpond::Checkpoint before(pool);
  list.assign(20000, 5);
  before.restore();
  if (device.can(MILLPOND_CAP_MAPPING)) {
    pool.sleep(false);
    list.push_back(5);
    pool.wake();
  }
  std::pmr::list<int> second(20000, 6, &resource);
  for (const int value : list) REQUIRE(value == 5);
  for (const int value : second) REQUIRE(value == 6);
}

}  // namespace

int main() {
  forks();
  pools();
  ends();
  static MemoryResource resource(Device("host", 0));
  frees_late.list = new std::pmr::list<int>(1000, 7, &resource);
  std::thread([] {  // still at work when main() returns
    for (;;) resource.deallocate(resource.allocate(24), 24);
  })
      .detach();
  return 0;
}
