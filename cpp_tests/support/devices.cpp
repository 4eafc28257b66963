// See devices.hpp. MILLPOND_HOST_MAPPING=0 turns the host device into one that can only give
// segments, so that one binary tests both ways of taking memory.
#include "support/devices.hpp"

#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

namespace millpond_tests {
namespace {

/// `list` is "label=path;label=path".
void add_plugins(const char* list, std::vector<DeviceCase>* out) {
  std::istringstream entries(list);
  std::string entry;
  while (std::getline(entries, entry, ';')) {
    const std::size_t at = entry.find('=');
    if (at == std::string::npos) continue;
    out->push_back({entry.substr(0, at), "", entry.substr(at + 1)});
  }
}

class HostConfiguration : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* mapping = std::getenv("MILLPOND_HOST_MAPPING");
    millpond_host_options options{};
    options.struct_size = sizeof options;
    options.disable_mapping = mapping != nullptr && std::strcmp(mapping, "0") == 0 ? 1 : 0;
    ASSERT_OK(millpond_host_configure(&options));
  }
};

// Registered before main() runs; GoogleTest owns it.
const ::testing::Environment* const kHostConfiguration =
    ::testing::AddGlobalTestEnvironment(new HostConfiguration);

/// The device type of a plugin, loaded once in a process. Empty when it cannot be loaded.
std::string load_once(const std::string& path) {
  static std::map<std::string, std::string> loaded;
  const auto found = loaded.find(path);
  if (found != loaded.end()) return found->second;
  char name[sizeof(millpond_device_info::type)] = {};
  const C_Status status = millpond_device_type_load(path.c_str(), name, sizeof name);
  EXPECT_OK(status) << path;
  return loaded[path] = status == C_SUCCESS ? name : "";
}

}  // namespace

std::vector<DeviceCase> device_cases() {
  std::vector<DeviceCase> cases = {
      {"host", "host", ""},
      {"cpu", "cpu", ""},
      {"cuda", "cuda", ""},
  };
  const char* plugins = std::getenv("MILLPOND_TEST_PLUGINS");
  if (plugins != nullptr) add_plugins(plugins, &cases);
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<DeviceCase>& info) { return info.param.label; }

void DeviceTest::SetUp() {
  (void)kHostConfiguration;
  type_ = GetParam().type;
  if (!GetParam().plugin.empty()) {
    type_ = load_once(GetParam().plugin);
    ASSERT_FALSE(type_.empty()) << "the plugin was not loaded: " << GetParam().plugin;
  }
  std::size_t count = 0;
  const C_Status known = millpond_device_get_count(type_.c_str(), &count);
  char reason[512] = {};
  (void)millpond_device_type_get_reason(type_.c_str(), reason, sizeof reason);
  if (type_ == "cuda" && std::getenv("MILLPOND_CUDA_LIBRARY") != nullptr) {
    ASSERT_NE(0u, count) << "the driver that the environment names serves no device: " << reason;
  }
  if (known != C_SUCCESS || count == 0) {
    GTEST_SKIP() << "no device of type " << type_ << ": " << reason;
  }
  ASSERT_OK(millpond_device_get(type_.c_str(), 0, &device_));
  ASSERT_OK(millpond_device_get_default_pool(device_, &pool_));
  before_ = stats();
}

void DeviceTest::TearDown() {
  if (device_ == nullptr) return;
  EXPECT_OK(millpond_device_synchronize(device_));
  for (C_Stream stream : streams_) EXPECT_OK(millpond_stream_destroy(device_, stream));
  EXPECT_OK(millpond_device_set_limit(device_, 0));
  const millpond_stats after = stats();
  EXPECT_EQ(before_.blocks.current, after.blocks.current) << "blocks were lost";
  EXPECT_EQ(before_.allocated_bytes.current, after.allocated_bytes.current);
  EXPECT_EQ(before_.requested_bytes.current, after.requested_bytes.current);
  EXPECT_OK(millpond_device_empty_cache(device_));
}

millpond_device_info DeviceTest::info(millpond_device* device) const {
  millpond_device_info out{};
  out.struct_size = sizeof out;
  EXPECT_OK(millpond_device_get_info(device, &out));
  return out;
}

millpond_stats DeviceTest::stats(millpond_device* device) const {
  millpond_stats out{};
  out.struct_size = sizeof out;
  EXPECT_OK(millpond_device_get_stats(device, &out));
  return out;
}

millpond_device* DeviceTest::second() const {
  std::size_t count = 0;
  EXPECT_OK(millpond_device_get_count(type_.c_str(), &count));
  if (count < 2) return nullptr;
  millpond_device* out = nullptr;
  EXPECT_OK(millpond_device_get(type_.c_str(), 1, &out));
  return out;
}

C_Stream DeviceTest::stream() {
  C_Stream out = nullptr;
  EXPECT_OK(millpond_stream_create(device_, &out));
  streams_.push_back(out);
  return out;
}

}  // namespace millpond_tests
