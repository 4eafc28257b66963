// A host that forks with devices open, streams running and memory live. The parent must not notice.
// In the child each call must come back with some status, nothing may hang, and both ways of
// leaving must work: _exit, and exit with its static destructors.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "millpond/millpond.hpp"
#include "programs/expect.hpp"

namespace {

millpond::Buffer in_static_storage;

void use_everything(millpond_device* device, C_Stream stream, void* block) {
  void* out = nullptr;
  bool done = false;
  char bytes[64] = {};
  C_Stream fresh = nullptr;
  (void)millpond_stream_query(device, stream, &done);
  (void)millpond_stream_synchronize(device, stream);
  (void)millpond_device_synchronize(device);
  (void)millpond_memset_async(device, stream, block, 1, 64);
  (void)millpond_copy(device, MILLPOND_COPY_D2H, bytes, block, sizeof bytes);
  if (millpond_stream_create(device, &fresh) == C_SUCCESS) {
    (void)millpond_stream_synchronize(device, fresh);
    (void)millpond_stream_destroy(device, fresh);
  }
  if (millpond_alloc(device, 4096, &out) == C_SUCCESS) (void)millpond_free(out);
  (void)millpond_free(block);
  (void)millpond_stream_destroy(device, stream);
  (void)millpond_finalize();
}

/// Forks, runs `child` there, and checks that it leaves with status 0 within 20 seconds.
template <typename Child>
void in_child(Child child) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    alarm(20);
    child();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(!WIFSIGNALED(status));
  REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  const millpond::Device device("host", 0);
  millpond::Stream stream(device);
  millpond::Buffer block = device.default_pool().allocate(1 << 20, stream);
  in_static_storage = device.allocate(1000);
  for (int i = 0; i < 50; ++i) stream.memset(block.data(), static_cast<std::uint8_t>(i), 1 << 20);

  millpond::MemoryResource resource(device);
  char* const node = static_cast<char*>(resource.allocate(64));
  resource.deallocate(resource.allocate(64), 64);  // the next one
  std::memset(node, 7, 64);
  in_child([&] {
    // Host memory of a device is the parent's too: nothing is written there.
    resource.deallocate(node, 64);
    try {
      (void)resource.allocate(64);
    } catch (const millpond::BadAlloc& e) {
      _exit(e.code() == MILLPOND_E_NOT_PERMITTED ? 0 : 1);
    }
    _exit(1);
  });
  for (int i = 0; i < 64; ++i) REQUIRE(node[i] == 7);
  resource.deallocate(node, 64);

  in_child([&] { use_everything(device.get(), stream.get(), block.data()); });
  in_child([] { std::exit(0); });
  in_child([] { _exit(0); });
  in_child([&] {
    millpond_device* other = nullptr;  // never opened in the parent
    if (millpond_device_get("host", 1, &other) == C_SUCCESS) {
      (void)millpond_device_synchronize(other);
    } else {
      REQUIRE(millpond_last_error_code() == MILLPOND_E_NOT_PERMITTED);
    }
  });

  stream.memset(block.data(), 0x5A, 1 << 20);
  std::vector<unsigned char> got(1 << 20);
  stream.copy(millpond::CopyKind::kDeviceToHost, got.data(), block.data(), got.size());
  stream.synchronize();
  for (unsigned char byte : got) REQUIRE(byte == 0x5A);
  return 0;
}
