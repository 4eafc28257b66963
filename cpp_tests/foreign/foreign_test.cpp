// Plugins of other people under Millpond: their sizes to the byte, their failures, their
// exceptions. The plugins tell themselves what they were asked for (control.hpp).
// MILLPOND_FOREIGN_PLUGINS is "label=path;label=path".
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "control.hpp"
#include "millpond/millpond.hpp"
#include "support/check.hpp"

namespace millpond_tests {
namespace {

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;

std::string path_of(const std::string& label) {
  const char* list = std::getenv("MILLPOND_FOREIGN_PLUGINS");
  std::istringstream entries(list != nullptr ? list : "");
  std::string entry;
  while (std::getline(entries, entry, ';')) {
    if (entry.rfind(label + "=", 0) == 0) return entry.substr(label.size() + 1);
  }
  return "";
}

/// One plugin, opened by Millpond and, for its other exports, by the test.
class Plugin {
 public:
  explicit Plugin(const std::string& label) : path_(path_of(label)) {
    handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) return;
    control_ = reinterpret_cast<ForeignControl>(dlsym(handle_, "foreign_control"));
    memory_ = reinterpret_cast<ForeignMemoryOf>(dlsym(handle_, "foreign_memory"));
    overrun_ = reinterpret_cast<ForeignWasOverrun>(dlsym(handle_, "foreign_was_overrun"));
  }
  ~Plugin() {
    if (!type_.empty()) {
      EXPECT_OK(millpond_device_type_unregister(type_.c_str()));
    }
    if (handle_ == nullptr) return;
    for (int device = 0; device < 2; ++device) {
      EXPECT_EQ(0u, memory(device).bytes) << "memory was not given back to the plugin";
    }
    EXPECT_EQ(0, overrun_()) << "something was written behind the memory that was asked for";
    dlclose(handle_);
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  bool found() const { return handle_ != nullptr; }
  C_Status load() {
    char name[sizeof(millpond_device_info::type)] = {};
    const C_Status status = millpond_device_type_load(path_.c_str(), name, sizeof name);
    if (status == C_SUCCESS) type_ = name;
    return status;
  }
  millpond_device* device(int ordinal = 0) const {
    millpond_device* out = nullptr;
    EXPECT_OK(millpond_device_get(type_.c_str(), ordinal, &out));
    return out;
  }
  C_Status open(int ordinal = 0) const {
    millpond_device* out = nullptr;
    return millpond_device_get(type_.c_str(), ordinal, &out);
  }
  ForeignMemory memory(int device = 0) const {
    static ForeignMemory out;
    memory_(device, &out);
    return out;
  }
  void fault(ForeignCallback callback, ForeignFault kind, long after = 0) const {
    control_(callback, kind, after);
  }

 private:
  std::string path_;
  std::string type_;
  void* handle_ = nullptr;
  ForeignControl control_ = nullptr;
  ForeignMemoryOf memory_ = nullptr;
  ForeignWasOverrun overrun_ = nullptr;
};

void* alloc(millpond_device* device, std::size_t bytes) {
  void* out = nullptr;
  EXPECT_OK(millpond_alloc(device, bytes, &out)) << bytes;
  return out;
}

millpond_stats stats(millpond_device* device) {
  millpond_stats out{};
  out.struct_size = sizeof out;
  EXPECT_OK(millpond_device_get_stats(device, &out));
  return out;
}

millpond_device_info info(millpond_device* device) {
  millpond_device_info out{};
  out.struct_size = sizeof out;
  EXPECT_OK(millpond_device_get_info(device, &out));
  return out;
}

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

/// Writes the whole block and reads it back: it must be the caller's to its last byte.
void use(millpond_device* device, void* block, std::size_t bytes) {
  std::vector<unsigned char> in(bytes), out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) in[i] = static_cast<unsigned char>(i * 31 + bytes);
  ASSERT_OK(millpond_copy(device, MILLPOND_COPY_H2D, block, in.data(), bytes));
  ASSERT_OK(millpond_copy(device, MILLPOND_COPY_D2H, out.data(), block, bytes));
  EXPECT_EQ(in, out);
}

#define PLUGIN(label)   \
  Plugin plugin(label); \
  ASSERT_TRUE(plugin.found()) << "MILLPOND_FOREIGN_PLUGINS does not have " << (label)

TEST(Foreign, MinChunkAndPaddingAreAddedToEachRequest) {
  PLUGIN("large_chunk");
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();
  EXPECT_EQ(64 * KiB, info(device).min_chunk_bytes);
  EXPECT_EQ(1000u, info(device).extra_padding_bytes);
  std::vector<void*> blocks;
  std::size_t expected = 0;
  for (std::size_t bytes :
       {std::size_t{1}, 64 * KiB - 1000, 64 * KiB - 999, 64 * KiB, 300 * KiB, 3 * MiB}) {
    blocks.push_back(alloc(device, bytes));
    expected += round_up(bytes + 1000, 64 * KiB);
    EXPECT_EQ(expected, stats(device).allocated_bytes.current) << bytes;
    EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(blocks.back()) % (64 * KiB)) << bytes;
    use(device, blocks.back(), bytes);
  }
  for (void* block : blocks) EXPECT_OK(millpond_free(block));
  EXPECT_EQ(0u, stats(device).allocated_bytes.current);
}

TEST(Foreign, TheFirstSegmentHasTheInitSizeAndLaterOnesTheReallocSize) {
  PLUGIN("large_chunk");
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();
  EXPECT_EQ(0u, plugin.memory().calls) << "nothing is taken before it is needed";
  std::vector<void*> blocks;
  while (plugin.memory().calls < 4) blocks.push_back(alloc(device, 500 * KiB));
  const ForeignMemory memory = plugin.memory();
  EXPECT_EQ(8 * MiB, memory.sizes[0]);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(4 * MiB, memory.sizes[i]) << i;
  EXPECT_EQ(memory.bytes, stats(device).reserved_bytes.current);
  // 512 KiB each: sixteen in the first segment, eight in each of the others.
  EXPECT_EQ(16u + 8 + 8 + 1, blocks.size());
  for (void* block : blocks) EXPECT_OK(millpond_free(block));
  EXPECT_OK(millpond_device_empty_cache(device));
  EXPECT_EQ(0u, plugin.memory().bytes);
}

TEST(Foreign, SegmentsNeedNotBeRound) {
  PLUGIN("max_alloc");
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();
  std::vector<void*> blocks;
  while (plugin.memory().calls < 3) blocks.push_back(alloc(device, 100 * KiB));
  EXPECT_EQ(3 * MiB + 4096, plugin.memory().sizes[0]);
  EXPECT_EQ(5 * MiB + 512, plugin.memory().sizes[1]);
  EXPECT_EQ(5 * MiB + 512, plugin.memory().sizes[2]);
  for (void* block : blocks) {
    use(device, block, 100 * KiB);
    EXPECT_OK(millpond_free(block));
  }
}

TEST(Foreign, SmallSegmentsServeSmallRequests) {
  PLUGIN("small_max_chunk");
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();
  std::vector<void*> blocks;
  for (std::size_t bytes : {std::size_t{1}, std::size_t{256}, 5 * KiB, 100 * KiB, 256 * KiB}) {
    blocks.push_back(alloc(device, bytes));
    use(device, blocks.back(), bytes);
  }
  EXPECT_EQ(512 * KiB, plugin.memory().sizes[0]);
  while (plugin.memory().calls < 3) blocks.push_back(alloc(device, 200 * KiB));
  EXPECT_EQ(256 * KiB, plugin.memory().sizes[1]);
  EXPECT_EQ(256 * KiB, plugin.memory().sizes[2]);
  for (void* block : blocks) EXPECT_OK(millpond_free(block));
}

TEST(Foreign, WhatIsAboveTheMaxChunkGoesToThePluginDirectly) {
  PLUGIN("small_max_chunk");
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();
  void* pooled = alloc(device, 256 * KiB);  // exactly the max chunk
  EXPECT_EQ(512 * KiB, plugin.memory().bytes);
  for (std::size_t bytes : {256 * KiB + 1, 1 * MiB + 17, 40 * MiB}) {
    const ForeignMemory before = plugin.memory();
    void* block = alloc(device, bytes);
    const ForeignMemory with = plugin.memory();
    EXPECT_EQ(before.calls + 1, with.calls);
    EXPECT_EQ(round_up(bytes, 256), with.sizes[before.calls]);
    EXPECT_EQ(round_up(bytes, 256), with.bytes - before.bytes);
    use(device, block, bytes);
    EXPECT_OK(millpond_free(block));
    EXPECT_EQ(before.bytes, plugin.memory().bytes) << "it goes back when the block ends";
    EXPECT_EQ(before.frees + 1, plugin.memory().frees);
  }
  EXPECT_OK(millpond_free(pooled));
}

TEST(Foreign, TheMaxAllocSizeIsNeverPassed) {
  PLUGIN("max_alloc");
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();
  EXPECT_EQ(200 * MiB, info(device).max_alloc_bytes);
  std::vector<void*> blocks;
  const std::size_t sizes[] = {70 * MiB, 1 * MiB, 64 * MiB, 300 * KiB, 65 * MiB, 10 * MiB, 100};
  for (int i = 0; i < 4000; ++i) {
    void* block = nullptr;
    const std::size_t bytes = sizes[static_cast<std::size_t>(i) % 7];
    if (millpond_alloc(device, bytes, &block) == C_SUCCESS) {
      blocks.push_back(block);
    } else {
      EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, millpond_last_error_code());
    }
    ASSERT_LE(plugin.memory().peak_bytes, 200 * MiB);
    if (i % 5 == 4 && !blocks.empty()) {
      EXPECT_OK(millpond_free(blocks.front()));
      blocks.erase(blocks.begin());
    }
  }
  EXPECT_GT(plugin.memory().peak_bytes, 190 * MiB) << "and nearly all of it can be had";
  EXPECT_GT(stats(device).out_of_memory_count, 0u);
  for (void* block : blocks) EXPECT_OK(millpond_free(block));
}

TEST(Foreign, AMinChunkThatIsNoPowerOfTwoIsKept) {
  PLUGIN("odd_chunk");  // the plugin refuses what is no multiple of 768
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();
  std::vector<void*> blocks;
  for (std::size_t bytes :
       {std::size_t{1}, std::size_t{767}, std::size_t{768}, 100 * KiB, 7 * MiB}) {
    blocks.push_back(alloc(device, bytes));
    EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(blocks.back()) % 256);
    use(device, blocks.back(), bytes);
  }
  const ForeignMemory memory = plugin.memory();
  for (std::size_t i = 0; i < memory.calls; ++i) EXPECT_EQ(0u, memory.sizes[i] % 768) << i;
  EXPECT_EQ(6 * MiB, memory.sizes[0]);
  for (void* block : blocks) EXPECT_OK(millpond_free(block));
}

/// Its blocks begin at multiples of 8 bytes, so what needs more may begin inside of its block.
TEST(Foreign, ASmallMinChunkIsNoAlignment) {
  PLUGIN("small_chunk");
  ASSERT_OK(plugin.load());
  const millpond::Device device(plugin.device());
  ASSERT_EQ(8u, info(device.get()).min_chunk_bytes);
  const millpond::StreamView stream = device.default_stream();
  const millpond::StreamResource<> resource(device);
  std::vector<void*> blocks;
  for (std::size_t alignment :
       {std::size_t{8}, std::size_t{16}, std::size_t{32}, std::size_t{64}}) {
    for (std::size_t i = 0; i < 50; ++i) {
      blocks.push_back(resource.allocate(stream, 40 + 8 * (i % 7), alignment));
      EXPECT_EQ(0u, reinterpret_cast<std::uintptr_t>(blocks.back()) % alignment);
    }
    for (std::size_t i = 0; i < 50; ++i) {
      resource.deallocate(stream, blocks[i], 40 + 8 * (i % 7), alignment);
    }
    blocks.clear();
    EXPECT_EQ(0u, stats(device.get()).blocks.current) << alignment;
  }
}

TEST(Foreign, PluginsOfOlderReleasesAreServed) {
  int found = 0;
  for (int i = 1; i < 8; ++i) {
    const std::string label = "older_" + std::to_string(i);
    if (path_of(label).empty()) break;
    PLUGIN(label);
    ASSERT_OK(plugin.load()) << label << ": " << millpond_last_error_message();
    void* block = alloc(plugin.device(1), 1 * MiB);
    use(plugin.device(1), block, 1 * MiB);
    EXPECT_EQ(0u, plugin.memory(0).calls);
    EXPECT_EQ(1u, plugin.memory(1).calls);
    EXPECT_OK(millpond_free(block));
    ++found;
  }
  EXPECT_GT(found, 0);
}

// A callback that throws is one that failed: the exception ends there, whatever the test plugin
// threw it from.
struct Failing {
  const char* plugin;
  ForeignFault kind;
};

class ForeignFailures : public ::testing::TestWithParam<Failing> {
 protected:
  void TearDown() override { EXPECT_EQ(0, std::uncaught_exceptions()); }

  static void ExpectTold(const char* callback) {
    EXPECT_NE(nullptr, std::strstr(millpond_last_error_message(), callback))
        << millpond_last_error_message();
    if (GetParam().kind != kForeignThrow) return;
    EXPECT_NE(nullptr, std::strstr(millpond_last_error_message(),
                                   "threw a C++ exception (St13runtime_error)"))
        << millpond_last_error_message();
  }
};

INSTANTIATE_TEST_SUITE_P(Plugins, ForeignFailures,
                         ::testing::Values(Failing{"fails", kForeignFail},
                                           Failing{"fails", kForeignThrow}),
                         [](const auto& each) {
                           return std::string(each.param.kind == kForeignThrow ? "throw" : "fail");
                         });

TEST_P(ForeignFailures, OfInitializeRefuseThePlugin) {
  PLUGIN(GetParam().plugin);
  plugin.fault(kForeignInitialize, GetParam().kind);
  EXPECT_EQ(C_FAILED, plugin.load());
  ExpectTold("initialize");
  ASSERT_OK(plugin.load());
  plugin.fault(kForeignInitDevice, GetParam().kind);
  EXPECT_EQ(C_FAILED, plugin.open());
  ExpectTold("init_device");
  EXPECT_OK(plugin.open());
}

TEST_P(ForeignFailures, OfAnyCallLeaveEverythingAsItWas) {
  PLUGIN(GetParam().plugin);
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();

  // One failure of allocate: what is idle goes back and the plugin is asked again.
  plugin.fault(kForeignAllocate, GetParam().kind);
  void* first = nullptr;
  const C_Status status = millpond_alloc(device, 1 * MiB, &first);
  if (status != C_SUCCESS) {
    EXPECT_EQ(MILLPOND_E_OUT_OF_MEMORY, millpond_last_error_code());
    EXPECT_EQ(nullptr, first);
    EXPECT_EQ(0u, stats(device).reserved_bytes.current);
    first = alloc(device, 1 * MiB);
  }
  use(device, first, 1 * MiB);

  std::vector<unsigned char> bytes(1 * MiB, 7);
  plugin.fault(kForeignCopy, GetParam().kind);
  EXPECT_EQ(C_FAILED, millpond_copy(device, MILLPOND_COPY_H2D, first, bytes.data(), bytes.size()));
  EXPECT_EQ(MILLPOND_E_DEVICE, millpond_last_error_code());
  ExpectTold("memory_copy_h2d");
  use(device, first, 1 * MiB);

  plugin.fault(kForeignCreateStream, GetParam().kind);
  C_Stream stream = nullptr;
  EXPECT_EQ(C_FAILED, millpond_stream_create(device, &stream));
  EXPECT_EQ(nullptr, stream);
  ASSERT_OK(millpond_stream_create(device, &stream));
  plugin.fault(kForeignCreateEvent, GetParam().kind);
  C_Event event = nullptr;
  EXPECT_EQ(C_FAILED, millpond_event_create(device, &event));
  EXPECT_EQ(nullptr, event);
  ASSERT_OK(millpond_event_create(device, &event));
  plugin.fault(kForeignRecordEvent, GetParam().kind);
  EXPECT_EQ(C_FAILED, millpond_event_record(device, stream, event));
  EXPECT_OK(millpond_event_record(device, stream, event));
  EXPECT_OK(millpond_event_synchronize(device, event));
  EXPECT_OK(millpond_event_destroy(device, event));
  EXPECT_OK(millpond_stream_destroy(device, stream));

  // A block above the max chunk ends with the plugin's own free, and lives on when that fails.
  void* direct = alloc(device, 100 * MiB);
  plugin.fault(kForeignDeallocate, GetParam().kind);
  EXPECT_EQ(C_FAILED, millpond_free(direct));
  EXPECT_EQ(MILLPOND_E_DEVICE, millpond_last_error_code());
  use(device, direct, 100 * MiB);
  EXPECT_EQ(101 * MiB, stats(device).allocated_bytes.current);
  EXPECT_OK(millpond_free(direct));
  EXPECT_EQ(1 * MiB, stats(device).allocated_bytes.current);

  // The plugin will not take its memory back: it stays counted, and the next attempt gives it back.
  EXPECT_OK(millpond_free(first));
  const std::uint64_t reserved = stats(device).reserved_bytes.current;
  EXPECT_GT(reserved, 0u);
  plugin.fault(kForeignDeallocate, GetParam().kind);
  const C_Status emptied = millpond_device_empty_cache(device);
  EXPECT_EQ(plugin.memory().bytes, stats(device).reserved_bytes.current)
      << "after " << emptied << ", the account must be the plugin's";
  EXPECT_OK(millpond_device_empty_cache(device));
  EXPECT_EQ(plugin.memory().bytes, stats(device).reserved_bytes.current);
  EXPECT_EQ(0u, plugin.memory().bytes);
  plugin.fault(kForeignAllocate, kForeignFine);
}

TEST_P(ForeignFailures, OfEveryAllocationCanBeTriedAgain) {
  PLUGIN(GetParam().plugin);
  ASSERT_OK(plugin.load());
  millpond_device* device = plugin.device();
  for (long after = 0; after < 6; ++after) {
    std::vector<void*> blocks;
    plugin.fault(kForeignAllocate, GetParam().kind, after);
    for (int i = 0; i < 24; ++i) {
      void* block = nullptr;
      if (millpond_alloc(device, 1 * MiB, &block) != C_SUCCESS) block = alloc(device, 1 * MiB);
      blocks.push_back(block);
    }
    EXPECT_EQ(24 * MiB, stats(device).allocated_bytes.current);
    EXPECT_EQ(plugin.memory().bytes, stats(device).reserved_bytes.current);
    for (void* block : blocks) EXPECT_OK(millpond_free(block));
    EXPECT_OK(millpond_device_empty_cache(device));
    EXPECT_EQ(0u, plugin.memory().bytes);
  }
}

TEST(Foreign, APluginThatThrowsInInitPluginIsRefused) {
  ASSERT_EQ(0, setenv("FOREIGN_INIT_THROWS", "1", 1));
  PLUGIN("throws");
  EXPECT_EQ(C_ERROR, plugin.load());
  EXPECT_EQ(MILLPOND_E_PLUGIN_REFUSED, millpond_last_error_code());
  EXPECT_NE(nullptr, std::strstr(millpond_last_error_message(), "InitPlugin threw a C++ exception"))
      << millpond_last_error_message();
  unsetenv("FOREIGN_INIT_THROWS");
  EXPECT_EQ(0, std::uncaught_exceptions());
  EXPECT_OK(plugin.load());
}

}  // namespace
}  // namespace millpond_tests
