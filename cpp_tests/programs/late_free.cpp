// Objects with static lifetime free their memory after main() has returned, and so does a thread
// that still runs. The program must end with status 0, and every call must come back.
#include <cstdlib>
#include <list>
#include <memory>
#include <memory_resource>
#include <thread>

#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

namespace {

// Runs after everything else in this file has been destroyed. The status matters less than that the
// call returns one.
struct AtTheVeryEnd {
  void* block = nullptr;
  ~AtTheVeryEnd() {
    const C_Status status = millpond_free(block);
    REQUIRE(status == C_SUCCESS || status == C_ERROR);
    millpond_device* device = nullptr;
    (void)millpond_device_get("host", 0, &device);
    void* more = nullptr;
    if (millpond_alloc(device, 64, &more) == C_SUCCESS) REQUIRE(millpond_free(more) == C_SUCCESS);
    REQUIRE(millpond_last_error_message() != nullptr);
  }
};

AtTheVeryEnd at_the_very_end;
millpond::Stream stream;
millpond::Buffer buffer;
millpond::PinnedBuffer pinned;
millpond::Pool pool;
millpond::Event event;
std::unique_ptr<millpond::MemoryResource> resource;
std::pmr::list<int>* list;

// Destroyed after the main thread's own objects.
struct FreesLate {
  ~FreesLate() {
    list->push_back(1);
    delete list;
  }
} frees_late;

void at_exit() {
  millpond::Device device("host", 0);
  REQUIRE(device.allocate(1000).size() == 1000);
}

}  // namespace

int main() {
  std::atexit(&at_exit);
  const millpond::Device device("host", 0);
  stream = millpond::Stream(device);
  pool = millpond::Pool(device);
  buffer = pool.allocate(100000, stream);
  pinned = millpond::PinnedBuffer(device, 4096);
  event = millpond::Event(device);
  resource = std::make_unique<millpond::MemoryResource>(device);
  list = new std::pmr::list<int>(100, 7, resource.get());
  at_the_very_end.block = device.allocate(5000).release();
  stream.memset(buffer.data(), 1, buffer.size());
  stream.record(event);
  std::thread([] {  // still at work when main() returns
    for (;;) {
      void* p = millpond::memory::Alloc(millpond::CPUPlace(), 256, std::nothrow);
      (void)millpond::memory::Free(millpond::CPUPlace(), p, std::nothrow);
    }
  })
      .detach();
  return 0;
}
