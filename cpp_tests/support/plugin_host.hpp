// A host of custom-runtime plugins, as a framework writes one: loads the shared object, hands
// InitPlugin a table, and drives it. Behind the table lie guard bytes, so that a plugin that writes
// past the size that the host declared is caught.
#ifndef MILLPOND_TESTS_PLUGIN_HOST_HPP
#define MILLPOND_TESTS_PLUGIN_HOST_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "millpond/custom_runtime.h"

namespace millpond_tests {

using InitPlugin = void (*)(CustomRuntimeParams*);

/// The two structs of one InitPlugin call, at the sizes that some host would declare.
class Table {
 public:
  static constexpr std::uint8_t kGuard = 0xA5;
  static constexpr std::size_t kGuardBytes = 512;

  Table(std::size_t params_size, std::size_t interface_size)
      : params_size_(params_size),
        interface_size_(interface_size),
        params_(buffer(params_size)),
        interface_(buffer(interface_size)) {
    // Members beyond the declared size belong to the guard, so set only what lies inside.
    set(params_, offsetof(CustomRuntimeParams, size), params_size, params_size);
    set(interface_, offsetof(C_DeviceInterface, size), interface_size, interface_size);
    set(params_, offsetof(CustomRuntimeParams, interface), interface_.data(), params_size);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  CustomRuntimeParams* params() { return reinterpret_cast<CustomRuntimeParams*>(params_.data()); }
  const C_DeviceInterface& get() const {
    return *reinterpret_cast<const C_DeviceInterface*>(interface_.data());
  }
  /// Whether every byte from `offset` of the interface to its declared end is still zero.
  bool untouched_from(std::size_t offset) const {
    for (std::size_t i = offset; i < interface_size_; ++i) {
      if (byte(interface_, i) != 0) return false;
    }
    return true;
  }
  /// Whether nothing was written past the two declared sizes.
  bool guards_intact() const {
    return intact(params_, params_size_) && intact(interface_, interface_size_);
  }
  std::string type() { return params()->device_type != nullptr ? params()->device_type : ""; }

 private:
  // Words, so that the structs are aligned.
  using Bytes = std::vector<std::uint64_t>;

  static Bytes buffer(std::size_t size) {
    Bytes out((size + kGuardBytes + 2048) / 8);
    std::memset(out.data(), kGuard, out.size() * 8);
    std::memset(out.data(), 0, size);
    return out;
  }
  template <typename T>
  static void set(Bytes& bytes, std::size_t offset, const T& value, std::size_t size) {
    if (offset + sizeof value > size) return;
    std::memcpy(reinterpret_cast<std::uint8_t*>(bytes.data()) + offset, &value, sizeof value);
  }
  static std::uint8_t byte(const Bytes& bytes, std::size_t index) {
    return reinterpret_cast<const std::uint8_t*>(bytes.data())[index];
  }
  static bool intact(const Bytes& bytes, std::size_t size) {
    for (std::size_t i = size; i < bytes.size() * 8; ++i) {
      if (byte(bytes, i) != kGuard) return false;
    }
    return true;
  }

  std::size_t params_size_;
  std::size_t interface_size_;
  Bytes params_;
  Bytes interface_;
};

/// A shared object; closed when it goes.
class Library {
 public:
  explicit Library(const std::string& path);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  /// NULL when the object or the symbol was not found; why() tells.
  InitPlugin init() const { return init_; }
  const std::string& why() const { return why_; }
  /// Closes it now; whether that worked.
  bool close();

 private:
  void* handle_ = nullptr;
  InitPlugin init_ = nullptr;
  std::string why_;
};

}  // namespace millpond_tests

#endif  // MILLPOND_TESTS_PLUGIN_HOST_HPP
