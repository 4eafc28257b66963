// What a program sets by torch.cuda.memory._set_allocator_settings, for Millpond's devices: as what
// PYTORCH_CUDA_ALLOC_CONF says, but from now on. PyTorch has checked the text by then.
#include <millpond/millpond.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "devices.hpp"
#include "pluggable.hpp"

namespace millpond_torch {
namespace {

using Setting = std::pair<std::string, std::string>;  // the key, and its value

/// An open device keeps them.
constexpr std::array<const char*, 2> kFixed{"backend", "expandable_segments"};
/// What PyTorch sets back where a text leaves it out.
const std::array<Setting, 3>& set_back() {
  static const auto* all = new std::array<Setting, 3>{{{"max_split_size_mb", "unlimited"},
                                                       {"roundup_power2_divisions", "1"},
                                                       {"garbage_collection_threshold", "0"}}};
  return *all;
}

/// The latest ones, for devices that are opened later; under `opening`.
std::vector<Setting>& latest() {
  static auto* const all = new std::vector<Setting>;
  return *all;
}

/// Pairs between commas; a list in brackets is one value. Blanks mean nothing.
std::vector<Setting> parsed(const std::string& text) {
  std::vector<Setting> all;
  Setting now;
  bool value = false;
  int depth = 0;
  const auto take = [&] {
    if (!now.first.empty()) all.push_back(std::move(now));
    now = {};
    value = false;
  };
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ' ' || c == '\t' || c == '\n') continue;
    if (c == ',' && depth == 0) {
      take();
    } else if (c == ':' && depth == 0 && !value) {
      value = true;
    } else {
      (value ? now.second : now.first) += c;
    }
  }
  take();
  return all;
}

bool fixed(const std::string& key) {
  return std::any_of(kFixed.begin(), kFixed.end(), [&](const char* name) { return key == name; });
}

/// Whether the device took all that are options of Millpond's, and what they were before, as a
/// text. Keys that are only PyTorch's are left out, as from its variables.
std::pair<bool, std::string> set_on(millpond_device* device, const std::vector<Setting>& settings) {
  std::string text, before;
  char value[MILLPOND_OPTION_BYTES];
  for (const Setting& setting : settings) {
    if (fixed(setting.first) || millpond_device_get_option(device, setting.first.c_str(), value,
                                                           sizeof value) != C_SUCCESS) {
      continue;
    }
    text += (text.empty() ? "" : ",") + setting.first + ":" + setting.second;
    before += (before.empty() ? "" : ",") + setting.first + ":" + value;
  }
  const bool done = text.empty() || !failed(millpond_device_set_options(device, text.c_str()));
  return {done, before};
}

/// `all`, and what was set before of other keys.
std::vector<Setting> with_earlier(const std::vector<Setting>& all, std::vector<Setting> earlier) {
  for (const Setting& setting : all) {
    const auto same = [&](const Setting& s) { return s.first == setting.first; };
    const auto known = std::find_if(earlier.begin(), earlier.end(), same);
    known != earlier.end() ? * known = setting : earlier.emplace_back(setting);
  }
  return earlier;
}

}  // namespace

bool apply_settings(millpond_device* device) { return set_on(device, latest()).first; }

}  // namespace millpond_torch

using namespace millpond_torch;

int millpond_torch_settings(const char* text) {
  return guard(1, [&] {
    std::vector<Setting> all = parsed(text);
    for (const Setting& left_out : set_back()) {
      const auto same = [&](const Setting& s) { return s.first == left_out.first; };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back(left_out);
    }
    std::lock_guard<std::mutex> held(opening());  // no device comes between
    std::vector<std::pair<millpond_device*, std::string>> done;
    for (int ordinal = 0; ordinal < device_limit(); ++ordinal) {
      Device* device = open_device(ordinal);
      if (device == nullptr) continue;
      auto [taken, before] = set_on(device->get(), all);
      if (!taken) {
        // All devices or none, and none that is opened later.
        for (const auto& [other, earlier] : done)
          (void)millpond_device_set_options(other, earlier.c_str());
        return 1;
      }
      if (!before.empty()) done.emplace_back(device->get(), std::move(before));
    }
    for (const Setting& setting : all) {
      const std::string option = setting.first + ":" + setting.second;
      if (setting.first == "expandable_segments" &&
          failed(millpond_set_default_options(device_type().c_str(), -1, option.c_str()))) {
        return 1;
      }
    }
    latest() = with_earlier(all, std::move(latest()));
    return 0;
  });
}
