// Loads our plugin, uses it, and closes it, several times: also with work queued and memory still
// allocated, as frameworks leave. After finalize no thread of the plugin is left; a host that
// closes it without finalize must not take the code away from under those that still run.
#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "millpond/custom_runtime.h"
#include "programs/expect.hpp"
#include "support/plugin_host.hpp"

namespace {

int threads() {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  REQUIRE(tasks != nullptr);
  while (const dirent* entry = readdir(tasks)) count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}

enum class End { tidy, finalized, left_running };

void use(const char* path, End end) {
  const bool tidy = end == End::tidy;
  millpond_tests::Library library(path);
  REQUIRE(library.init() != nullptr);
  millpond_tests::Table table(MILLPOND_CUSTOM_RUNTIME_PARAMS_SIZE,
                              MILLPOND_CUSTOM_RUNTIME_INTERFACE_SIZE);
  library.init()(table.params());
  const C_DeviceInterface& call = table.get();
  REQUIRE(call.initialize() == C_SUCCESS);
  C_Device_st device = {0};
  REQUIRE(call.set_device(&device) == C_SUCCESS);
  REQUIRE(call.init_device(&device) == C_SUCCESS);
  C_Stream streams[3] = {};
  for (C_Stream& stream : streams) REQUIRE(call.create_stream(&device, &stream) == C_SUCCESS);
  const std::size_t size = 32 << 20;
  void* a = nullptr;
  void* b = nullptr;
  REQUIRE(call.device_memory_allocate(&device, &a, size) == C_SUCCESS && a != nullptr);
  REQUIRE(call.device_memory_allocate(&device, &b, size) == C_SUCCESS && b != nullptr);
  for (int i = 0; i < 10; ++i) {
    for (C_Stream stream : streams) {
      REQUIRE(call.async_memory_copy_d2d(&device, stream, a, b, size) == C_SUCCESS);
    }
  }
  for (C_Stream stream : streams) {
    if (end == End::left_running) continue;
    if (tidy) REQUIRE(call.synchronize_stream(&device, stream) == C_SUCCESS);
    REQUIRE(call.destroy_stream(&device, stream) == C_SUCCESS);
  }
  if (tidy) {
    REQUIRE(call.device_memory_deallocate(&device, a, size) == C_SUCCESS);
    REQUIRE(call.device_memory_deallocate(&device, b, size) == C_SUCCESS);
  }
  if (end == End::left_running) {
    REQUIRE(threads() > 1);
    REQUIRE(library.close());
    REQUIRE(threads() > 1);  // still copying, or waiting for more
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return;
  }
  REQUIRE(call.deinit_device(&device) == C_SUCCESS);
  REQUIRE(call.finalize() == C_SUCCESS);
  REQUIRE(threads() == 1);
  REQUIRE(library.close());
}

}  // namespace

int main(int count, char** arguments) {
  REQUIRE(count == 2);
  REQUIRE(threads() == 1);
  for (int i = 0; i < 6; ++i) use(arguments[1], i % 2 == 0 ? End::tidy : End::finalized);
  use(arguments[1], End::left_running);
  use(arguments[1], End::tidy);  // its finalize ends what the one before left
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return 0;
}
