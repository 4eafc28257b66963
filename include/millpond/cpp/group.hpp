// Programs that share a card: GroupMembership, which serves the others from a thread of its own,
// and what the members of a group have. docs/groups.md describes how it fits together.
#ifndef MILLPOND_CPP_GROUP_HPP
#define MILLPOND_CPP_GROUP_HPP

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millpond/cpp/device.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

/// The members of the group whose file is `path`, sorted by number. No device is opened.
inline std::vector<millpond_group_member> group_members(const std::string& path) {
  std::vector<millpond_group_member> all(64);  // as many as a group may have
  std::size_t count = 0;                       // stays so after an error
  check(millpond_group_list(path.c_str(), all.data(), sizeof all[0], all.size(), &count));
  all.resize(count);
  return all;
}

/// Tells a member of the group to keep below a budget, which it does when it next looks; 0: none.
/// Throws MILLPOND_E_INVALID_ARGUMENT if there is no such member.
MILLPOND_CPP_CHECKED inline C_Status set_group_budget(const std::string& path,
                                                      std::uint64_t member_id,
                                                      std::uint64_t budget_bytes) {
  return check(millpond_group_set_budget(path.c_str(), member_id, budget_bytes));
}

/// The membership of a device in a group, while this object lives; **it starts a thread**, which
/// gives back what others want. Programs that want none use Device::join_group() and
/// Device::serve_group(). Moves, does not copy.
class [[nodiscard]] GroupMembership {
 public:
  /// In no group.
  GroupMembership() noexcept = default;
  /// Joins, and serves. Throws as Device::join_group(), and std::system_error without a thread.
  GroupMembership(Device device, const std::string& path, const std::string& name = {},
                  std::chrono::milliseconds wait = std::chrono::seconds(1)) {
    id_ = device.join_group(path, name, wait);
    if (id_ == 0) return;
    device_ = device;
#if MILLPOND_CPP_EXCEPTIONS
    try {
      thread_ = std::thread(serve, device);
    } catch (...) {
      millpond_device_leave_group(device_.get());
      throw;
    }
#else
    thread_ = std::thread(serve, device);
#endif
  }
  GroupMembership(GroupMembership&& other) noexcept
      : device_(std::exchange(other.device_, Device())),
        id_(std::exchange(other.id_, 0)),
        thread_(std::move(other.thread_)) {}
  /// Leaves its group, then takes the other's over.
  GroupMembership& operator=(GroupMembership&& other) noexcept {
    if (this == &other) return *this;
    leave();
    device_ = std::exchange(other.device_, Device());
    id_ = std::exchange(other.id_, 0);
    thread_ = std::move(other.thread_);
    return *this;
  }
  GroupMembership(const GroupMembership&) = delete;
  GroupMembership& operator=(const GroupMembership&) = delete;
  /// As leave().
  ~GroupMembership() { leave(); }

  /// The number of the member; 0: in no group.
  std::uint64_t id() const noexcept { return id_; }

  /// Leaves the group, if it is in one, and waits for the thread, which may be giving memory back.
  void leave() noexcept {
    if (id_ == 0) return;
    id_ = 0;
    millpond_device_leave_group(device_.get());  // it may have ended with its device
    if (thread_.joinable()) thread_.join();
  }

 private:
  static void serve(Device device) {
    // Ends with the membership, and with the device. Where the file is damaged, nobody can ask.
    // A host that has no memory for the call may have some a moment later.
    for (;;) {
      if (millpond_device_serve_group(device.get(), 60000, nullptr) == C_SUCCESS) continue;
      if (millpond_last_error_code() != MILLPOND_E_OUT_OF_MEMORY) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  Device device_;
  std::uint64_t id_ = 0;
  std::thread thread_;
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_GROUP_HPP
