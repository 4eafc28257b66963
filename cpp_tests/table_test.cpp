// Conformance of a custom-runtime plugin, driven over its table as a framework drives it: what is
// loaded, devices, statistics, bad input and the end. Memory and streams have files of their own.
#include "support/table.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace millpond_tests {
namespace {

#define FOR_ALL_PLUGINS(Suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(Plugins, Suite, ::testing::ValuesIn(plugin_cases()), plugin_name); \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Suite)

TEST(TablePlugins, WereNamed) {
  EXPECT_FALSE(plugin_cases().empty()) << "MILLPOND_TABLE_PLUGINS names no plugin to test";
}
FOR_ALL_PLUGINS(Loading);
FOR_ALL_PLUGINS(Driven);

// ---- loading ------------------------------------------------------------------------------------

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
