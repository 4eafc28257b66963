// Conformance of a custom-runtime plugin, driven over its table as a framework drives it.
// MILLPOND_TABLE_PLUGINS is "label=path;label=path"; the label "millpond" marks our own plugin, of
// which more is asked than the interface asks of every plugin.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "support/pattern.hpp"
#include "support/plugin_host.hpp"

namespace millpond_tests {
namespace {

struct PluginCase {
  std::string label;
  std::string path;
};
void PrintTo(const PluginCase& plugin, std::ostream* out) { *out << plugin.label; }

std::vector<PluginCase> plugin_cases() {
  std::vector<PluginCase> out;
  const char* list = std::getenv("MILLPOND_TABLE_PLUGINS");
  std::istringstream entries(list != nullptr ? list : "");
  std::string entry;
  while (std::getline(entries, entry, ';')) {
    const std::size_t at = entry.find('=');
    if (at != std::string::npos) out.push_back({entry.substr(0, at), entry.substr(at + 1)});
  }
  return out;
}
std::string plugin_name(const ::testing::TestParamInfo<PluginCase>& info) {
  return info.param.label;
}

#define FOR_ALL_PLUGINS(Suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(Plugins, Suite, ::testing::ValuesIn(plugin_cases()), plugin_name); \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Suite)

TEST(TablePlugins, WereNamed) {
  EXPECT_FALSE(plugin_cases().empty()) << "MILLPOND_TABLE_PLUGINS names no plugin to test";
}

constexpr std::size_t kParamsSize = MILLPOND_CUSTOM_RUNTIME_PARAMS_SIZE;
constexpr std::size_t kInterfaceSize = MILLPOND_CUSTOM_RUNTIME_INTERFACE_SIZE;
constexpr std::size_t kCommon = MILLPOND_CUSTOM_RUNTIME_COMMON_SIZE;

// ---- loading ------------------------------------------------------------------------------------

class Loading : public ::testing::TestWithParam<PluginCase> {
 protected:
  void SetUp() override {
    library_ = std::make_unique<Library>(GetParam().path);
    ASSERT_NE(nullptr, library_->init()) << library_->why();
  }
  bool ours() const { return GetParam().label == "millpond"; }
  static bool accepted(Table& table) {
    const CustomRuntimeVersion version = table.params()->version;
    return version.major * 10000 + version.minor * 100 + version.patch >= 101;
  }
  std::unique_ptr<Library> library_;
};
FOR_ALL_PLUGINS(Loading);

TEST_P(Loading, FillsTheTable) {
  Table table(kParamsSize, kInterfaceSize);
  library_->init()(table.params());
  EXPECT_TRUE(table.guards_intact());
  EXPECT_TRUE(accepted(table));
  EXPECT_FALSE(table.type().empty());
  EXPECT_EQ(kInterfaceSize, table.get().size) << "the size is the host's";
  EXPECT_EQ(kParamsSize, table.params()->size);
  EXPECT_NE(nullptr, table.get().device_memory_allocate);
  EXPECT_NE(nullptr, table.get().device_memory_deallocate);
  EXPECT_NE(nullptr, table.get().memory_copy_h2d);
  EXPECT_NE(nullptr, table.get().memory_copy_d2h);
  for (void* reserved : table.get().reserved_dev_api) EXPECT_EQ(nullptr, reserved);
  for (void* reserved : table.get().reserved_mem_api) EXPECT_EQ(nullptr, reserved);
}

TEST_P(Loading, FillsAllThatWeDeliver) {
  if (!ours()) GTEST_SKIP() << "a plugin may leave out what it does not have";
  Table table(kParamsSize, kInterfaceSize);
  library_->init()(table.params());
  // Every pointer of the device, memory and information sections, but the reserved ones.
  const auto* words = reinterpret_cast<void* const*>(&table.get());
  for (std::size_t at = offsetof(C_DeviceInterface, initialize); at < kCommon; at += 8) {
    const bool reserved = (at >= offsetof(C_DeviceInterface, reserved_dev_api) &&
                           at < offsetof(C_DeviceInterface, device_memory_allocate)) ||
                          (at >= offsetof(C_DeviceInterface, reserved_mem_api) &&
                           at < offsetof(C_DeviceInterface, get_device_count));
    if (!reserved) {
      EXPECT_NE(nullptr, words[at / 8]) << "offset " << at;
    }
  }
  EXPECT_NE(nullptr, table.get().get_compute_capability);
  EXPECT_NE(nullptr, table.get().get_runtime_version);
  EXPECT_NE(nullptr, table.get().get_driver_version);
  EXPECT_EQ(nullptr, table.get().get_device_properties) << "it would take a C++ object";
}

TEST_P(Loading, NothingIsWrittenPastAHostsSizes) {
  const std::size_t interfaces[] = {0,   8,   100, 216,  400,  416,  424,  472,  480, 500,
                                    912, 920, 976, 1032, 1064, 1127, 1128, 1136, 1400};
  const std::size_t all_params[] = {0, 8, 16, 40, 48, 56, 88, 96, 128};
  for (std::size_t params : all_params) {
    for (std::size_t interface : interfaces) {
      Table table(params, interface);
      library_->init()(table.params());
      EXPECT_TRUE(table.guards_intact()) << params << " and " << interface;
      // From 3.1.1 on, the three versions that follow the common part have kept their places.
      const bool three = params == kParamsSize && (interface == 976 || interface == 1032);
      const bool exact = params == kParamsSize && interface == kInterfaceSize;
      const std::size_t known =
          three ? offsetof(C_DeviceInterface, get_driver_version) + 8 : kCommon;
      if (!exact && interface > known) {
        EXPECT_TRUE(table.untouched_from(known))
            << "a member whose place differs between releases was written for sizes " << params
            << " and " << interface;
      }
    }
  }
}

TEST_P(Loading, OlderHostsAreServed) {
  const std::size_t known[][2] = {{88, 912}, {96, 920}, {96, 976}, {96, 1032}, {96, 1128}};
  for (const auto& sizes : known) {
    Table table(sizes[0], sizes[1]);
    library_->init()(table.params());
    EXPECT_TRUE(accepted(table)) << sizes[1];
    EXPECT_NE(nullptr, table.get().device_memory_allocate) << sizes[1];
    EXPECT_FALSE(table.type().empty()) << sizes[1];
  }
}

TEST_P(Loading, NullsAreSurvived) {
  if (!ours()) GTEST_SKIP() << "asked of our own plugin only";
  library_->init()(nullptr);
  Table table(kParamsSize, kInterfaceSize);
  table.params()->interface = nullptr;
  library_->init()(table.params());
  EXPECT_TRUE(table.guards_intact());
  EXPECT_FALSE(accepted(table)) << "a host without a table was told that all is well";
}

TEST_P(Loading, TwiceIsAsGoodAsOnce) {
  Table first(kParamsSize, kInterfaceSize), second(kParamsSize, kInterfaceSize);
  library_->init()(first.params());
  library_->init()(second.params());
  EXPECT_EQ(first.type(), second.type());
  EXPECT_EQ(first.get().device_memory_allocate, second.get().device_memory_allocate);
}

// ---- driving ------------------------------------------------------------------------------------

/// A plugin that is loaded, initialised, and has its first device ready.
class Driven : public Loading {
 protected:
  void SetUp() override {
    Loading::SetUp();
    if (HasFatalFailure()) return;
    table_ = std::make_unique<Table>(kParamsSize, kInterfaceSize);
    library_->init()(table_->params());
    if (at().initialize != nullptr) {
      ASSERT_EQ(C_SUCCESS, at().initialize());
    }
    ready_ = true;
    if (at().set_device != nullptr) {
      ASSERT_EQ(C_SUCCESS, at().set_device(&device_));
    }
    if (at().init_device != nullptr) {
      ASSERT_EQ(C_SUCCESS, at().init_device(&device_));
    }
  }
  void TearDown() override {
    if (!ready_) return;
    for (C_Stream stream : streams_) EXPECT_EQ(C_SUCCESS, at().destroy_stream(&device_, stream));
    if (at().deinit_device != nullptr) {
      EXPECT_EQ(C_SUCCESS, at().deinit_device(&device_));
    }
    if (at().finalize != nullptr) {
      EXPECT_EQ(C_SUCCESS, at().finalize());
    }
  }
  const C_DeviceInterface& at() const { return table_->get(); }
  std::size_t count() const {
    std::size_t out = 0;
    EXPECT_EQ(C_SUCCESS, at().get_device_count(&out));
    return out;
  }
  void* alloc(std::size_t size) {
    void* out = nullptr;
    EXPECT_EQ(C_SUCCESS, at().device_memory_allocate(&device_, &out, size));
    EXPECT_NE(nullptr, out);
    return out;
  }
  void free(void* block, std::size_t size) {
    EXPECT_EQ(C_SUCCESS, at().device_memory_deallocate(&device_, block, size));
  }
  std::vector<std::uint8_t> read(const void* src, std::size_t size) {
    std::vector<std::uint8_t> out(size);
    EXPECT_EQ(C_SUCCESS, at().memory_copy_d2h(&device_, out.data(), src, size));
    return out;
  }
  void write(void* dst, const std::vector<std::uint8_t>& bytes) {
    EXPECT_EQ(C_SUCCESS, at().memory_copy_h2d(&device_, dst, bytes.data(), bytes.size()));
  }
  C_Stream stream() {
    C_Stream out = nullptr;
    EXPECT_EQ(C_SUCCESS, at().create_stream(&device_, &out));
    streams_.push_back(out);
    return out;
  }

  static constexpr std::size_t kSize = 1 << 20;
  std::unique_ptr<Table> table_;
  C_Device_st device_ = {0};
  bool ready_ = false;

 private:
  std::vector<C_Stream> streams_;
};
FOR_ALL_PLUGINS(Driven);

/// Skips aloud when the plugin leaves a callback out.
#define NEED(member)                                                              \
  do {                                                                            \
    if (at().member == nullptr) GTEST_SKIP() << "the plugin leaves out " #member; \
  } while (0)

TEST_P(Driven, DevicesAreNumberedFromZero) {
  const std::size_t devices = count();
  ASSERT_GE(devices, 1u);
  NEED(get_device_list);
  std::vector<std::size_t> ids(devices + 1, 0xABCD);
  EXPECT_EQ(C_SUCCESS, at().get_device_list(ids.data()));
  for (std::size_t i = 0; i < devices; ++i) EXPECT_EQ(i, ids[i]);
  EXPECT_EQ(0xABCDu, ids[devices]) << "one id too many was written";
}

TEST_P(Driven, TheCurrentDeviceIsTheThreadsOwn) {
  NEED(set_device);
  NEED(get_device);
  if (count() < 2) GTEST_SKIP() << "one device";
  C_Device_st one = {1}, got = {77};
  EXPECT_EQ(C_SUCCESS, at().set_device(&device_));
  std::thread([&] {
    EXPECT_EQ(C_SUCCESS, at().set_device(&one));
    C_Device_st mine = {77};
    EXPECT_EQ(C_SUCCESS, at().get_device(&mine));
    EXPECT_EQ(1, mine.id);
  }).join();
  EXPECT_EQ(C_SUCCESS, at().get_device(&got));
  EXPECT_EQ(0, got.id);
}

TEST_P(Driven, SizesFitTogether) {
  std::size_t min = 1, max_chunk = ~std::size_t{0}, max_alloc = ~std::size_t{0}, init = 0,
              realloc = 0, padding = 0, total = 0, left = 0;
  const auto ask = [this](C_Status (*call)(C_Device, std::size_t*), std::size_t* out) {
    if (call != nullptr) {
      EXPECT_EQ(C_SUCCESS, call(&device_, out));
    }
  };
  ask(at().device_min_chunk_size, &min);
  ask(at().device_max_alloc_size, &max_alloc);
  ask(at().device_max_chunk_size, &max_chunk);
  ask(at().device_init_alloc_size, &init);
  ask(at().device_realloc_size, &realloc);
  ask(at().device_extra_padding_size, &padding);
  EXPECT_GT(min, 0u);
  EXPECT_EQ(0u, min & (min - 1)) << "not a power of two";
  EXPECT_LE(min, max_chunk);
  EXPECT_LE(init, max_alloc);
  EXPECT_LE(realloc, max_alloc);
  EXPECT_LT(padding, std::size_t{1} << 30);
  NEED(device_memory_stats);
  EXPECT_EQ(C_SUCCESS, at().device_memory_stats(&device_, &total, &left));
  EXPECT_GT(total, 0u);
  EXPECT_LE(left, total);
}

TEST_P(Driven, StatsFollowAllocations) {
  NEED(device_memory_stats);
  std::size_t total = 0, before = 0, during = 0, after = 0;
  EXPECT_EQ(C_SUCCESS, at().device_memory_stats(&device_, &total, &before));
  void* block = alloc(64 << 20);
  EXPECT_EQ(C_SUCCESS, at().device_memory_stats(&device_, &total, &during));
  EXPECT_LE(during + (64u << 20), before) << "64 MiB were taken";
  free(block, 64 << 20);
  if (at().synchronize_device != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().synchronize_device(&device_));
  }
  EXPECT_EQ(C_SUCCESS, at().device_memory_stats(&device_, &total, &after));
  if (ours()) {
    EXPECT_EQ(before, after) << "what a framework frees is free for others at once";
  }
}

TEST_P(Driven, MemoryHoldsWhatIsCopied) {
  std::vector<std::pair<void*, std::size_t>> blocks;
  std::size_t min = 256;
  if (at().device_min_chunk_size != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().device_min_chunk_size(&device_, &min));
  }
  for (std::size_t size : {std::size_t{1}, std::size_t{255}, std::size_t{4096}, kSize + 7}) {
    blocks.emplace_back(alloc(size), size);
    EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(blocks.back().first) %
                      (min < 256 ? min : std::size_t{256}));
    write(blocks.back().first, pattern(size, size));
  }
  for (const auto& block : blocks) {
    EXPECT_EQ(pattern(block.second, block.second), read(block.first, block.second));
  }
  if (at().memory_copy_d2d != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().memory_copy_d2d(&device_, blocks[3].first, blocks[2].first, 4096));
    EXPECT_EQ(pattern(4096, 4096), read(blocks[3].first, 4096));
  }
  for (const auto& block : blocks) free(block.first, block.second);
}

TEST_P(Driven, MemsetFillsItsRange) {
  NEED(device_memory_set);
  void* block = alloc(kSize);
  write(block, std::vector<std::uint8_t>(kSize, 0x11));
  EXPECT_EQ(C_SUCCESS,
            at().device_memory_set(&device_, static_cast<std::uint8_t*>(block) + 5, 0xEE, 1000));
  const std::vector<std::uint8_t> got = read(block, kSize);
  EXPECT_EQ(5u, first_other(got, 0x11, 0, 5));
  EXPECT_EQ(1005u, first_other(got, 0xEE, 5, 1005));
  EXPECT_EQ(kSize, first_other(got, 0x11, 1005, kSize));
  free(block, kSize);
}

TEST_P(Driven, HostAndUnifiedMemory) {
  const auto round = [this](C_Status (*take)(C_Device, void**, std::size_t),
                            C_Status (*give)(C_Device, void*, std::size_t)) {
    if (take == nullptr) return;
    ASSERT_NE(nullptr, give);
    void* host = nullptr;
    ASSERT_EQ(C_SUCCESS, take(&device_, &host, 10000));
    ASSERT_NE(nullptr, host);
    const std::vector<std::uint8_t> bytes = pattern(3, 10000);
    std::memcpy(host, bytes.data(), 10000);
    void* block = alloc(10000);
    EXPECT_EQ(C_SUCCESS, at().memory_copy_h2d(&device_, block, host, 10000));
    EXPECT_EQ(bytes, read(block, 10000));
    free(block, 10000);
    EXPECT_EQ(C_SUCCESS, give(&device_, host, 10000));
  };
  round(at().host_memory_allocate, at().host_memory_deallocate);
  round(at().unified_memory_allocate, at().unified_memory_deallocate);
}

TEST_P(Driven, CopiesBetweenDevices) {
  NEED(memory_copy_p2p);
  if (count() < 2) GTEST_SKIP() << "one device";
  C_Device_st other = {1};
  if (at().init_device != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().init_device(&other));
  }
  void* here = alloc(kSize);
  void* there = nullptr;
  ASSERT_EQ(C_SUCCESS, at().device_memory_allocate(&other, &there, kSize));
  write(here, pattern(7, kSize));
  EXPECT_EQ(C_SUCCESS, at().memory_copy_p2p(&other, &device_, there, here, kSize));
  std::vector<std::uint8_t> got(kSize);
  EXPECT_EQ(C_SUCCESS, at().memory_copy_d2h(&other, got.data(), there, kSize));
  EXPECT_EQ(pattern(7, kSize), got);
  if (at().async_memory_copy_p2p != nullptr && at().create_stream != nullptr) {
    C_Stream queue = stream();
    write(here, pattern(8, kSize));
    EXPECT_EQ(C_SUCCESS, at().async_memory_copy_p2p(&other, &device_, queue, there, here, kSize));
    EXPECT_EQ(C_SUCCESS, at().synchronize_stream(&device_, queue));
    EXPECT_EQ(C_SUCCESS, at().memory_copy_d2h(&other, got.data(), there, kSize));
    EXPECT_EQ(pattern(8, kSize), got);
  }
  EXPECT_EQ(C_SUCCESS, at().device_memory_deallocate(&other, there, kSize));
  free(here, kSize);
}

TEST_P(Driven, StreamsRunInOrder) {
  NEED(create_stream);
  NEED(async_memory_copy_h2d);
  NEED(async_memory_copy_d2d);
  NEED(async_memory_copy_d2h);
  NEED(synchronize_stream);
  C_Stream queue = stream();
  void* a = alloc(kSize);
  void* b = alloc(kSize);
  std::vector<std::uint8_t> from(kSize), got(kSize);
  for (std::uint64_t round = 0; round < 10; ++round) {
    from = pattern(round, kSize);
    EXPECT_EQ(C_SUCCESS, at().async_memory_copy_h2d(&device_, queue, a, from.data(), kSize));
    from.assign(kSize, 0xDD);  // a pageable source has been read by now
    EXPECT_EQ(C_SUCCESS, at().async_memory_copy_d2d(&device_, queue, b, a, kSize));
    EXPECT_EQ(C_SUCCESS, at().async_memory_copy_d2h(&device_, queue, got.data(), b, kSize));
    EXPECT_EQ(C_SUCCESS, at().synchronize_stream(&device_, queue));
    ASSERT_EQ(pattern(round, kSize), got);
  }
  if (at().query_stream != nullptr) {
    EXPECT_EQ(C_SUCCESS, at().query_stream(&device_, queue));
  }
  free(a, kSize);
  free(b, kSize);
}

/// Holds a stream back, and remembers what the callback was given.
struct Held {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  int calls = 0;
  int id = -1;
  C_Stream stream = nullptr;
  C_Status status = C_INTERNAL_ERROR;

  static void wait(C_Device device, C_Stream stream, void* user_data, C_Status* status) {
    Held& self = *static_cast<Held*>(user_data);
    std::unique_lock<std::mutex> lock(self.mutex);
    self.calls += 1;
    self.id = device != nullptr ? device->id : -2;
    self.stream = stream;
    self.status = status != nullptr ? *status : C_INTERNAL_ERROR;
    self.changed.wait(lock, [&self] { return self.open; });
  }
  void release() {
    const std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
};

TEST_P(Driven, EventsAndCallbacks) {
  NEED(create_stream);
  NEED(stream_add_callback);
  NEED(create_event);
  NEED(query_event);
  NEED(query_stream);
  NEED(stream_wait_event);
  NEED(async_memory_copy_d2h);
  C_Stream first = stream();
  C_Stream then = stream();
  C_Event point = nullptr;
  ASSERT_EQ(C_SUCCESS, at().create_event(&device_, &point));
  EXPECT_EQ(C_SUCCESS, at().query_event(&device_, point)) << "never recorded";
  void* block = alloc(kSize);
  write(block, std::vector<std::uint8_t>(kSize, 0x01));
  const std::vector<std::uint8_t> two(kSize, 0x02);
  std::vector<std::uint8_t> got(kSize, 0);
  Held held;
  EXPECT_EQ(C_SUCCESS, at().stream_add_callback(&device_, first, &Held::wait, &held));
  EXPECT_EQ(C_SUCCESS, at().async_memory_copy_h2d(&device_, first, block, two.data(), kSize));
  EXPECT_EQ(C_SUCCESS, at().record_event(&device_, first, point));
  EXPECT_EQ(C_SUCCESS, at().stream_wait_event(&device_, then, point));
  EXPECT_EQ(C_SUCCESS, at().async_memory_copy_d2h(&device_, then, got.data(), block, kSize));
  EXPECT_NE(C_SUCCESS, at().query_event(&device_, point));
  EXPECT_NE(C_SUCCESS, at().query_stream(&device_, first));
  EXPECT_NE(C_SUCCESS, at().query_stream(&device_, then));
  held.release();
  EXPECT_EQ(C_SUCCESS, at().synchronize_event(&device_, point));
  EXPECT_EQ(C_SUCCESS, at().query_event(&device_, point));
  EXPECT_EQ(C_SUCCESS, at().synchronize_stream(&device_, then));
  EXPECT_EQ(kSize, first_other(got, 0x02, 0, kSize));
  EXPECT_EQ(1, held.calls);
  EXPECT_EQ(0, held.id);
  EXPECT_EQ(first, held.stream);
  EXPECT_EQ(C_SUCCESS, held.status);
  EXPECT_EQ(C_SUCCESS, at().destroy_event(&device_, point));
  free(block, kSize);
}

TEST_P(Driven, AFreeWaitsForQueuedWork) {
  NEED(create_stream);
  NEED(stream_add_callback);
  NEED(async_memory_copy_d2h);
  if (!ours()) GTEST_SKIP() << "asked of our own plugin only";
  C_Stream queue = stream();
  void* block = alloc(kSize);
  write(block, std::vector<std::uint8_t>(kSize, 0x44));
  std::vector<std::uint8_t> got(kSize, 0);
  Held held;
  EXPECT_EQ(C_SUCCESS, at().stream_add_callback(&device_, queue, &Held::wait, &held));
  EXPECT_EQ(C_SUCCESS, at().async_memory_copy_d2h(&device_, queue, got.data(), block, kSize));
  // The free may wait for the stream itself, so the gate opens from another thread.
  std::thread opener([&held] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    held.release();
  });
  free(block, kSize);
  C_Stream other = stream();
  void* next = alloc(kSize);
  const std::vector<std::uint8_t> harm(kSize, 0xEE);
  EXPECT_EQ(C_SUCCESS, at().async_memory_copy_h2d(&device_, other, next, harm.data(), kSize));
  opener.join();
  EXPECT_EQ(C_SUCCESS, at().synchronize_device(&device_));
  EXPECT_EQ(kSize, first_other(got, 0x44, 0, kSize)) << "reused while it was still being read";
  free(next, kSize);
}

TEST_P(Driven, RunningOutIsAStatus) {
  NEED(device_memory_stats);
  std::size_t total = 0, left = 0;
  EXPECT_EQ(C_SUCCESS, at().device_memory_stats(&device_, &total, &left));
  int mark = 0;
  void* out = &mark;
  // Failure, or success with a null pointer: both tell a host that nothing is left.
  const C_Status status = at().device_memory_allocate(&device_, &out, total + (total >> 1));
  if (status == C_SUCCESS) {
    EXPECT_EQ(nullptr, out);
  } else {
    EXPECT_EQ(&mark, out) << "an output was written by a failed call";
  }
  void* block = alloc(1000);
  free(block, 1000);
}

TEST_P(Driven, ManyThreadsCopyAtOnce) {
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      if (at().set_device != nullptr) {
        EXPECT_EQ(C_SUCCESS, at().set_device(&device_));
      }
      for (std::uint64_t i = 0; i < 50; ++i) {
        const std::size_t size = 1000 + i * 997;
        void* block = alloc(size);
        write(block, pattern(t * 100 + i, size));
        EXPECT_EQ(pattern(t * 100 + i, size), read(block, size));
        free(block, size);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Driven, BadInputIsAStatus) {
  if (!ours()) GTEST_SKIP() << "asked of our own plugin only";
  const C_DeviceInterface& call = at();
  C_Device_st nowhere = {99}, negative = {-1};
  void* block = alloc(4096);
  std::uint8_t byte = 0;
  std::size_t number = 77;
  C_Stream queue = nullptr;
  C_Event event = nullptr;
  int mark = 0;
  void* out = &mark;
  for (C_Device bad : {static_cast<C_Device>(nullptr), &nowhere, &negative}) {
    EXPECT_NE(C_SUCCESS, call.init_device(bad));
    EXPECT_NE(C_SUCCESS, call.set_device(bad));
    EXPECT_NE(C_SUCCESS, call.create_stream(bad, &queue));
    EXPECT_NE(C_SUCCESS, call.create_event(bad, &event));
    EXPECT_NE(C_SUCCESS, call.synchronize_device(bad));
    EXPECT_NE(C_SUCCESS, call.device_memory_allocate(bad, &out, 64));
    EXPECT_NE(C_SUCCESS, call.device_memory_deallocate(bad, block, 4096));
    EXPECT_NE(C_SUCCESS, call.device_memory_set(bad, block, 0, 1));
    EXPECT_NE(C_SUCCESS, call.host_memory_allocate(bad, &out, 64));
    EXPECT_NE(C_SUCCESS, call.unified_memory_allocate(bad, &out, 64));
    EXPECT_NE(C_SUCCESS, call.memory_copy_h2d(bad, block, &byte, 1));
    EXPECT_NE(C_SUCCESS, call.memory_copy_d2h(bad, &byte, block, 1));
    EXPECT_NE(C_SUCCESS, call.memory_copy_d2d(bad, block, block, 1));
    EXPECT_NE(C_SUCCESS, call.memory_copy_p2p(bad, &device_, block, block, 1));
    EXPECT_NE(C_SUCCESS, call.memory_copy_p2p(&device_, bad, block, block, 1));
    EXPECT_NE(C_SUCCESS, call.device_memory_stats(bad, &number, &number));
    EXPECT_NE(C_SUCCESS, call.device_min_chunk_size(bad, &number));
    EXPECT_NE(C_SUCCESS, call.device_max_chunk_size(bad, &number));
    EXPECT_NE(C_SUCCESS, call.device_max_alloc_size(bad, &number));
    EXPECT_NE(C_SUCCESS, call.device_extra_padding_size(bad, &number));
    EXPECT_NE(C_SUCCESS, call.device_init_alloc_size(bad, &number));
    EXPECT_NE(C_SUCCESS, call.device_realloc_size(bad, &number));
    EXPECT_NE(C_SUCCESS, call.get_compute_capability(bad, &number));
  }
  EXPECT_NE(C_SUCCESS, call.get_device(nullptr));
  EXPECT_NE(C_SUCCESS, call.get_device_count(nullptr));
  EXPECT_NE(C_SUCCESS, call.get_device_list(nullptr));
  EXPECT_NE(C_SUCCESS, call.create_stream(&device_, nullptr));
  EXPECT_NE(C_SUCCESS, call.create_event(&device_, nullptr));
  EXPECT_NE(C_SUCCESS, call.device_memory_allocate(&device_, nullptr, 64));
  EXPECT_NE(C_SUCCESS, call.host_memory_allocate(&device_, nullptr, 64));
  EXPECT_NE(C_SUCCESS, call.unified_memory_allocate(&device_, nullptr, 64));
  EXPECT_NE(C_SUCCESS, call.device_memory_stats(&device_, nullptr, &number));
  EXPECT_NE(C_SUCCESS, call.device_memory_stats(&device_, &number, nullptr));
  EXPECT_NE(C_SUCCESS, call.device_min_chunk_size(&device_, nullptr));
  EXPECT_EQ(&mark, out);
  for (const std::size_t less : {std::size_t{0}, std::size_t{4096}, ~std::size_t{0} / 2}) {
    // Success with a null pointer is how a host is told to give back its cache and ask again.
    if (call.device_memory_allocate(&device_, &out, ~std::size_t{0} - less) == C_SUCCESS) {
      EXPECT_EQ(nullptr, out);
    }
    out = &mark;
  }
  EXPECT_EQ(77u, number);

  EXPECT_NE(C_SUCCESS, call.device_memory_deallocate(&device_, &mark, 4));
  EXPECT_NE(C_SUCCESS, call.device_memory_deallocate(&device_, block, 4097)) << "wrong size";
  EXPECT_NE(C_SUCCESS,
            call.device_memory_deallocate(&device_, static_cast<char*>(block) + 64, 4096));
  EXPECT_NE(C_SUCCESS, call.host_memory_deallocate(&device_, &mark, 4));
  EXPECT_NE(C_SUCCESS, call.unified_memory_deallocate(&device_, &mark, 4));
  EXPECT_NE(C_SUCCESS, call.memory_copy_h2d(&device_, block, nullptr, 1));
  EXPECT_NE(C_SUCCESS, call.memory_copy_d2h(&device_, nullptr, block, 1));
  EXPECT_NE(C_SUCCESS, call.memory_copy_h2d(&device_, block, &byte, std::size_t{1} << 40));
  EXPECT_NE(C_SUCCESS, call.memory_copy_h2d(&device_, block, &byte, ~std::size_t{0}));

  C_Stream bad_stream = reinterpret_cast<C_Stream>(std::uintptr_t{0x12340});
  C_Event bad_event = reinterpret_cast<C_Event>(std::uintptr_t{0x12340});
  EXPECT_NE(C_SUCCESS, call.synchronize_stream(&device_, bad_stream));
  EXPECT_NE(C_SUCCESS, call.query_stream(&device_, bad_stream));
  EXPECT_NE(C_SUCCESS, call.destroy_stream(&device_, bad_stream));
  EXPECT_NE(C_SUCCESS, call.async_memory_copy_h2d(&device_, bad_stream, block, &byte, 1));
  EXPECT_NE(C_SUCCESS, call.synchronize_event(&device_, bad_event));
  EXPECT_NE(C_SUCCESS, call.query_event(&device_, bad_event));
  EXPECT_NE(C_SUCCESS, call.destroy_event(&device_, bad_event));
  EXPECT_NE(C_SUCCESS, call.record_event(&device_, nullptr, bad_event));
  EXPECT_NE(C_SUCCESS, call.stream_add_callback(&device_, nullptr, nullptr, nullptr));

  free(block, 4096);
  EXPECT_NE(C_SUCCESS, call.device_memory_deallocate(&device_, block, 4096)) << "double free";
}

TEST_P(Driven, NothingWorksAfterFinalizeUntilInitialize) {
  if (!ours()) GTEST_SKIP() << "asked of our own plugin only";
  void* lost = alloc(4096);  // hosts leave with memory still allocated
  ASSERT_EQ(C_SUCCESS, at().deinit_device(&device_));
  ASSERT_EQ(C_SUCCESS, at().finalize());
  void* out = nullptr;
  C_Stream queue = nullptr;
  EXPECT_NE(C_SUCCESS, at().device_memory_allocate(&device_, &out, 64));
  // A late free is not an error for a host that is leaving, but it must come back.
  (void)at().device_memory_deallocate(&device_, lost, 4096);
  EXPECT_NE(C_SUCCESS, at().create_stream(&device_, &queue));
  ASSERT_EQ(C_SUCCESS, at().initialize());
  ASSERT_EQ(C_SUCCESS, at().init_device(&device_));
  free(alloc(64), 64);
}

}  // namespace
}  // namespace millpond_tests
