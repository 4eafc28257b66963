// Streams that end while memory of theirs is about: those of Millpond, and those of the program,
// with and without `millpond_stream_forget`. A driver may die of a handle that has ended, so each
// case is a process of its own.
//
//   ends              all cases, a row each
//   ends --case NAME  one of them
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "raw.hpp"
#include "report.hpp"

namespace {

using gpu::check;
using gpu::driver;
using gpu::Handle;

constexpr std::size_t kMiB = std::size_t{1} << 20;

millpond_device* device = nullptr;
millpond_pool* pool = nullptr;

void* allocate(std::size_t bytes, C_Stream stream) {
  void* at = nullptr;
  check(millpond_pool_alloc(pool, bytes, stream, &at));
  return at;
}

C_Stream foreign(unsigned flags) {
  Handle stream = nullptr;
  MILLPOND_GPU(cuStreamCreate, &stream, flags);
  return reinterpret_cast<C_Stream>(stream);
}

/// Memory that was freed on `stream` while work of it was queued there.
void used_on(C_Stream stream) {
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(allocate(4 * kMiB, stream));
  for (void* at : blocks) {
    check(millpond_memset_async(device, stream, at, 7, 4 * kMiB));
    check(millpond_pool_free(pool, at, stream));
  }
}

/// Made before any stream ends: a driver gives the handle of an ended stream to the next one.
C_Stream other = nullptr;

/// All that takes memory of other streams, or waits for them.
void everything_after() {
  check(millpond_device_set_limit(device, 40 * kMiB));
  void* at = allocate(32 * kMiB, other);  // of what the ended stream had
  check(millpond_memset_async(device, other, at, 9, 32 * kMiB));
  check(millpond_pool_free(pool, at, other));
  void* unordered = nullptr;
  check(millpond_alloc(device, 16 * kMiB, &unordered));
  check(millpond_free(unordered));
  check(millpond_device_synchronize(device));
  check(millpond_device_empty_cache(device));
  check(millpond_stream_destroy(device, other));
}

struct Case {
  const char* name;
  void (*run)();
};

const Case kCases[] = {
    {"a stream of Millpond",
     [] {
       C_Stream stream = nullptr;
       check(millpond_stream_create(device, &stream));
       used_on(stream);
       check(millpond_stream_destroy(device, stream));
       everything_after();
     }},
    {"a stream of the program, announced",
     [] {
       const C_Stream stream = foreign(1);
       used_on(stream);
       check(millpond_stream_forget(device, stream));
       MILLPOND_GPU(cuStreamDestroy_v2, reinterpret_cast<Handle>(stream));
       everything_after();
     }},
    {"a stream of the program, unannounced",
     [] {
       const C_Stream stream = foreign(1);
       used_on(stream);
       MILLPOND_GPU(cuStreamDestroy_v2, reinterpret_cast<Handle>(stream));
       everything_after();
     }},
    {"a stream of the program, unannounced, after a wait for the device",
     [] {
       const C_Stream stream = foreign(0);
       used_on(stream);
       check(millpond_device_synchronize(device));
       check(millpond_device_empty_cache(device));
       used_on(stream);
       MILLPOND_GPU(cuStreamDestroy_v2, reinterpret_cast<Handle>(stream));
       everything_after();
     }},
    {"a stream that a block was recorded on, unannounced",
     [] {
       const C_Stream stream = foreign(1);
       C_Stream own = nullptr;
       check(millpond_stream_create(device, &own));
       void* at = allocate(4 * kMiB, own);
       check(millpond_memset_async(device, stream, at, 7, 4 * kMiB));
       check(millpond_record_stream(at, stream));
       check(millpond_pool_free(pool, at, own));
       MILLPOND_GPU(cuStreamDestroy_v2, reinterpret_cast<Handle>(stream));
       everything_after();
       check(millpond_stream_destroy(device, own));
     }},
    {"many streams of the program, one after the other, unannounced",
     [] {
       for (int i = 0; i < 50; ++i) {
         const C_Stream stream = foreign(1);
         used_on(stream);
         MILLPOND_GPU(cuStreamDestroy_v2, reinterpret_cast<Handle>(stream));
       }
       everything_after();
     }},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "--case") == 0) {
    gpu::start();
    check(millpond_device_get("cuda", 0, &device));
    check(millpond_device_get_default_pool(device, &pool));
    check(millpond_stream_create(device, &other));
    for (const Case& c : kCases) {
      if (std::strcmp(c.name, argv[2]) == 0) c.run();
    }
    check(millpond_finalize());
    return 0;
  }
  gpu::Report report("ends");
  for (const Case& c : kCases) {
    const std::string command =
        std::string("timeout -k 1 20 '") + argv[0] + "' --case '" + c.name + "' 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) gpu::fail("a process cannot be started");
    std::string said;
    char text[512];
    while (std::fgets(text, sizeof text, pipe) != nullptr) said += text;
    const int status = pclose(pipe);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    for (char& letter : said) {
      if (letter == '\t' || letter == '\n') letter = ' ';
    }
    report.row(c.name,
               code == 0 ? "well" : "status " + std::to_string(code) + " " + said.substr(0, 80),
               "well", code == 0);
  }
  return report.status();
}
