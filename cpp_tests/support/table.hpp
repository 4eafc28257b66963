// What the table tests share: the plugins that the environment names, and a plugin that is loaded,
// or ready to be driven. MILLPOND_TABLE_PLUGINS is "label=path;label=path"; the label "millpond"
// marks our own plugin, of which more is asked than the interface asks of every plugin.
#ifndef MILLPOND_TESTS_TABLE_HPP
#define MILLPOND_TESTS_TABLE_HPP

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/plugin_host.hpp"

namespace millpond_tests {

struct PluginCase {
  std::string label;
  std::string path;
};
inline void PrintTo(const PluginCase& plugin, std::ostream* out) { *out << plugin.label; }

inline std::vector<PluginCase> plugin_cases() {
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
inline std::string plugin_name(const ::testing::TestParamInfo<PluginCase>& info) {
  return info.param.label;
}

constexpr std::size_t kParamsSize = MILLPOND_CUSTOM_RUNTIME_PARAMS_SIZE;
constexpr std::size_t kInterfaceSize = MILLPOND_CUSTOM_RUNTIME_INTERFACE_SIZE;
constexpr std::size_t kCommon = MILLPOND_CUSTOM_RUNTIME_COMMON_SIZE;

/// A plugin that is loaded.
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

/// Skips aloud when the plugin leaves a callback out.
#define NEED(member)                                                              \
  do {                                                                            \
    if (at().member == nullptr) GTEST_SKIP() << "the plugin leaves out " #member; \
  } while (0)

}  // namespace millpond_tests

#endif
