// The history of a device and a recording of it, in C++.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"

namespace millpond_tests {
namespace {

using millpond::Device;
using millpond::Pool;
using millpond::Stream;

TEST(History, TellsEveryBlockUnderLoad) {
  Device device{"host", 0};
  constexpr int kThreads = 8;
  constexpr int kPairs = 500;
  device.start_history({}, 1 << 16);
  EXPECT_EQ(C_SUCCESS, millpond_history_annotate("begin"));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&device] {
      Stream stream(device);
      for (int i = 0; i < kPairs; ++i) {
        const auto block =
            device.default_pool().allocate(1000 + static_cast<std::size_t>(i), stream);
        EXPECT_TRUE(block);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(0u, device.stop_history());
  std::map<void*, std::uint64_t> live;
  int allocs = 0, frees = 0, notes = 0;
  std::uint64_t last = 0;
  const std::uint64_t dropped = device.read_history([&](const millpond_history_event& e) {
    if (e.kind == MILLPOND_HISTORY_ALLOC) {
      ++allocs;
      EXPECT_TRUE(live.emplace(e.ptr, e.size_bytes).second);
      EXPECT_NE(0u, e.thread);
      EXPECT_EQ(MILLPOND_HISTORY_STREAM, e.flags);
    } else if (e.kind == MILLPOND_HISTORY_FREE_REQUESTED) {
      ++frees;
      EXPECT_EQ(1u, live.erase(e.ptr));
    } else if (e.kind == MILLPOND_HISTORY_ANNOTATE) {
      ++notes;
      EXPECT_STREQ("begin", e.text);
    }
    last = e.time_ns;
    return true;
  });
  EXPECT_EQ(0u, dropped);
  EXPECT_EQ(kThreads * kPairs, allocs);
  EXPECT_EQ(kThreads * kPairs, frees);
  EXPECT_EQ(1, notes);
  EXPECT_NE(0u, last);
  EXPECT_TRUE(live.empty());
}

TEST(History, ARecordingIsATrace) {
  Device device{"host", 0};
  const std::string path = ::testing::TempDir() + "millpond_cpp_record.trace";
  device.start_record(path);
  {
    Stream stream(device);
    Pool pool(device);
    const auto first = pool.allocate(1000, stream);
    const auto second = pool.allocate(2000, stream);
  }
  EXPECT_EQ(0u, device.stop_record());
  std::ifstream file(path);
  std::ostringstream lines;
  for (std::string line; std::getline(file, line);) {
    if (line[0] != '#') lines << line << '\n';
  }
  EXPECT_EQ("a 1 1000 1\na 2 2000 1\nf 2\nf 1\n", lines.str());
  std::remove(path.c_str());
  EXPECT_THROW(device.start_record("/nonexistent/x"), millpond::Error);
  EXPECT_THROW(device.stop_record(), millpond::Error);
}

}  // namespace
}  // namespace millpond_tests
