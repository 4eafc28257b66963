// The history of a device and a recording of it, in C++.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
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

/// Whoever stamps its calls finds their events, whatever the clock does meanwhile.
TEST(History, StampsTellWhichCallItWas) {
  constexpr int kThreads = 4, kCalls = 200;
  Device device{"host", 0};
  millpond::History history(device);
  using Calls = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // from, to
  std::mutex lock;
  std::map<std::uint32_t, Calls> all;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      Stream stream(device);
      Calls own;
      for (int i = 0; i < kCalls; ++i) {
        const std::uint64_t from = millpond::history_stamp();
        auto block = device.default_pool().allocate(1000 + 100 * (i % 7), stream);
        own.emplace_back(from, millpond_history_stamp());
      }
      std::lock_guard<std::mutex> held(lock);
      all.emplace(static_cast<std::uint32_t>(::syscall(SYS_gettid)), std::move(own));
    });
  }
  for (std::thread& t : threads) t.join();
  history.stop();
  std::map<std::uint32_t, std::size_t> told;
  for (const millpond::HistoryEvent& e : history.events()) {
    const Calls& own = all.at(e.thread);
    if (e.kind != MILLPOND_HISTORY_ALLOC) continue;
    const auto& [from, to] = own.at(told[e.thread]++);
    EXPECT_LE(from, e.stamp);
    EXPECT_GE(to, e.stamp);
  }
  EXPECT_EQ(static_cast<std::size_t>(kThreads), told.size());
  for (const auto& [thread, count] : told) EXPECT_EQ(static_cast<std::size_t>(kCalls), count);
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

std::string path_of(const char* name) { return ::testing::TempDir() + "millpond_cpp_" + name; }

std::size_t size_of_file(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str().size();
}

template <typename Call>
std::uint32_t code_of(Call call) {
  try {
    call();
  } catch (const millpond::Error& e) {
    return e.code();
  }
  return MILLPOND_OK;
}

TEST(History, AnObjectBeginsAndEndsIt) {
  static_assert(!std::is_copy_constructible_v<millpond::History>);
  static_assert(std::is_nothrow_move_constructible_v<millpond::History>);
  static_assert(std::is_nothrow_move_assignable_v<millpond::Recording>);
  Device device{"host", 0};
  const std::string path = path_of("scope.history");
  millpond::History kept;
  EXPECT_FALSE(kept);
  EXPECT_EQ(0u, kept.stop());
  EXPECT_TRUE(kept.events().empty());
  {
    millpond::History history(device, {path, 1 << 12, 8});
    EXPECT_TRUE(history);
    EXPECT_EQ(MILLPOND_E_BUSY, code_of([&] { millpond::History second(device); }));
    millpond::annotate("epoch 3");
    { const auto block = device.allocate(1234); }
    EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY,
              code_of([&] { (void)device.allocate(std::size_t{1} << 50); }));
    std::uint64_t dropped = 7;
    const std::vector<millpond::HistoryEvent> events = history.events(&dropped);
    EXPECT_EQ(0u, dropped);
    std::vector<std::uint32_t> kinds;
    for (const millpond::HistoryEvent& e : events) {
      if (e.kind == MILLPOND_HISTORY_ANNOTATE) {
        EXPECT_EQ("epoch 3", e.text);
      }
      if (e.kind == MILLPOND_HISTORY_OOM) {
        EXPECT_EQ(device.info().free_bytes, e.device_free_bytes);
        continue;
      }
      EXPECT_EQ(0u, e.device_free_bytes);
      if (e.kind == MILLPOND_HISTORY_ALLOC) {
        EXPECT_EQ(1234u, e.requested_bytes);
        EXPECT_FALSE(e.frames.empty());
      }
      if (e.kind != MILLPOND_HISTORY_SEGMENT_ALLOC) kinds.push_back(e.kind);
    }
    const std::vector<std::uint32_t> want{MILLPOND_HISTORY_ANNOTATE, MILLPOND_HISTORY_ALLOC,
                                          MILLPOND_HISTORY_FREE_REQUESTED};
    kinds.resize(std::min(kinds.size(), want.size()));  // then what the free waited for, or nothing
    EXPECT_EQ(want, kinds);
    kept = std::move(history);
    EXPECT_FALSE(history);  // NOLINT: an object that was moved from is empty
    EXPECT_TRUE(kept);
  }
  EXPECT_EQ(MILLPOND_E_BUSY, code_of([&] { millpond::History second(device); })) << "it goes on";
  EXPECT_EQ(0u, kept.stop());
  EXPECT_FALSE(kept);
  EXPECT_EQ(3u, std::min<std::size_t>(3, kept.events().size())) << "also after the end";
  EXPECT_GT(size_of_file(path), 100u);
  std::remove(path.c_str());
  { const millpond::History again(device); }
  EXPECT_EQ(C_SUCCESS, device.start_history()) << "the destructor has ended it";
  device.stop_history();
  EXPECT_EQ(MILLPOND_E_SYSTEM,
            code_of([&] { millpond::History h(device, {"/nowhere/at/all/run.history"}); }));
}

TEST(History, AnObjectBeginsAndEndsARecording) {
  Device device{"host", 0};
  const std::string path = path_of("scope.trace");
  {
    millpond::Recording recording(device, path);
    EXPECT_EQ(MILLPOND_E_BUSY, code_of([&] { millpond::Recording second(device, path); }));
    { const auto block = device.allocate(4321); }
    millpond::Recording moved(std::move(recording));
    EXPECT_EQ(0u, recording.stop());  // NOLINT: as above
    EXPECT_EQ(0u, moved.stop());
    EXPECT_FALSE(moved);
  }
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_NE(std::string::npos, text.str().find("a 1 4321 0\n")) << text.str();
  EXPECT_NE(std::string::npos, text.str().find("# events: 2\n")) << text.str();
  std::remove(path.c_str());
}

TEST(History, ASignalBeginsAndEndsIt) {
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, code_of([] { millpond::history_on_signal(SIGSEGV); }));
  EXPECT_EQ(C_SUCCESS, millpond::history_on_signal(SIGUSR2, {{}, 100, 0}));
  EXPECT_EQ(C_SUCCESS, millpond::history_on_signal(0));
}

}  // namespace
}  // namespace millpond_tests
