// Functions of the program that the library calls: OomCallback and OomHandler where there is no
// memory, BlockHook at each allocation and free.
#ifndef MILLPOND_CPP_CALLBACKS_HPP
#define MILLPOND_CPP_CALLBACKS_HPP

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "millpond/cpp/device.hpp"
#include "millpond/cpp/memory.hpp"

namespace millpond {
inline namespace MILLPOND_CPP_ABI {

namespace detail {

/// A function that the library calls with a pointer to this. It outlives each call of it.
template <typename Function>
struct Held : std::enable_shared_from_this<Held<Function>> {
  explicit Held(Function from) : function(std::move(from)) {}
  /// The one behind `user_data`, to keep during the call; NULL if it is not to be called any more.
  static std::shared_ptr<const Held> of(const void* user_data) noexcept {
    const Held& held = *static_cast<const Held*>(user_data);
    if (held.off.load(std::memory_order_acquire)) return nullptr;
    return held.weak_from_this().lock();
  }
  Function function;
  std::atomic<bool> off{false};  // its registration could not be ended
  std::shared_ptr<Held> self;    // the library's own share, where it has one
};

/// A function that is registered with a device while this object lives. `Calls` has the type
/// `Function` and the two calls `add(device, user_data, out_id)` and `remove(device, id)`. Moves,
/// does not copy.
template <typename Calls>
class [[nodiscard]] Registration {
 public:
  using Function = typename Calls::Function;

  Registration() noexcept = default;
  Registration(Device on, Function function)
      : Registration(on, std::move(function), [on](void* user_data, std::uint64_t* id) {
          return Calls::add(on.get(), user_data, id);
        }) {}
  /// `add(user_data, out_id)` registers with something of the device.
  template <typename Add>
  Registration(Device on, Function function, Add add) {
    function_.reset(new (std::nothrow) Held<Function>(std::move(function)));
    if (!function_ || !function_->function) {
      const bool made = function_ != nullptr;
      function_.reset();
      refuse_function(made);
      return;
    }
    const C_Status status = add(function_.get(), &id_);
    if (status != C_SUCCESS) {
      function_.reset();
      check(status);
      return;
    }
    device_ = on;
  }
  Registration(Registration&& other) noexcept { swap(other); }
  Registration& operator=(Registration&& other) noexcept {
    Registration taken(std::move(other));
    swap(taken);
    return *this;
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { reset(); }

  void reset() noexcept {
    if (!function_) return;
    // Fails with the device, and is refused in a stream callback: then a thread may be in the
    // function, and the library has it on. What little that is stays.
    if (Calls::remove(device_.get(), id_) != C_SUCCESS &&
        millpond_last_error_code() == MILLPOND_E_NOT_PERMITTED) {
      function_->self = function_;
      function_->off.store(true, std::memory_order_release);
    }
    function_.reset();
  }
  explicit operator bool() const noexcept { return function_ != nullptr; }

 private:
  void swap(Registration& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(id_, other.id_);
    function_.swap(other.function_);
  }

  Device device_;
  std::uint64_t id_ = 0;
  std::shared_ptr<Held<Function>> function_;  // at the same address while it is registered
};

}  // namespace detail

/// A function that is called, while this object lives, when a request for memory of the device
/// finds none, after everything else was tried. Moves, does not copy; its destructor calls reset().
class [[nodiscard]] OomCallback {
 public:
  /// Gets the size of the request in bytes; returns true if it has freed something, and then the
  /// request is tried again, and the function called again if that was too little. Runs on the
  /// thread of the request, with no lock held, possibly on several threads at once. It may allocate
  /// and free; a request that fails inside it calls no function. An exception that leaves it counts
  /// as false.
  using Function = std::function<bool(std::uint64_t size_bytes)>;

  /// The empty object.
  OomCallback() noexcept = default;
  /// Registers `function`. If that fails, throws and does not keep it.
  OomCallback(Device on, Function function) : held_(on, std::move(function)) {}

  /// Ends the registration, and waits for other threads that are in the function, so it must not
  /// be called while holding a lock that the function takes. The function may end itself: it is
  /// destroyed when it returns. In a stream callback, and within an out-of-memory callback or a
  /// hook while another thread is in the function, nothing may wait: it is then not called again,
  /// and never destroyed. Does nothing if empty, or if the device has ended.
  void reset() noexcept { held_.reset(); }
  /// Whether a function is registered.
  explicit operator bool() const noexcept { return static_cast<bool>(held_); }

 private:
  static bool run(void* user_data, std::uint64_t size_bytes) noexcept {
    const auto held = detail::Held<Function>::of(user_data);
    return held && detail::answer([&] { return held->function(size_bytes); });
  }

  struct Calls {
    using Function = OomCallback::Function;
    static C_Status add(millpond_device* device, void* function, std::uint64_t* id) {
      return millpond_device_add_oom_callback(device, &OomCallback::run, function, id);
    }
    static C_Status remove(millpond_device* device, std::uint64_t id) {
      return millpond_device_remove_oom_callback(device, id);
    }
  };

  detail::Registration<Calls> held_;
};

/// As OomCallback, for a function that gets the report of why there is no memory: which pool, who
/// holds how much, and what was tried. It is not called for a request that nobody can help.
class [[nodiscard]] OomHandler {
 public:
  /// Gets the report, which lives for the call; else as OomCallback::Function.
  using Function = std::function<bool(const millpond_oom_report& report)>;

  /// The empty object.
  OomHandler() noexcept = default;
  /// Registers `function`. Throws, and does not keep it, when it cannot be registered.
  OomHandler(Device on, Function function) : held_(on, std::move(function)) {}
  /// The same for requests that this pool should have served only. It ends with the pool at the
  /// latest.
  OomHandler(PoolView of, Function function)
      : held_(of.device(), std::move(function), [of](void* user_data, std::uint64_t* id) {
          return millpond_pool_add_oom_handler(of.get(), &OomHandler::run, user_data, id);
        }) {}

  /// As OomCallback::reset().
  void reset() noexcept { held_.reset(); }
  /// Whether a function is registered.
  explicit operator bool() const noexcept { return static_cast<bool>(held_); }

 private:
  static bool run(void* user_data, const millpond_oom_report* report) noexcept {
    const auto held = detail::Held<Function>::of(user_data);
    return held && detail::answer([&] { return held->function(*report); });
  }

  struct Calls {
    using Function = OomHandler::Function;
    static C_Status add(millpond_device* device, void* function, std::uint64_t* id) {
      return millpond_device_add_oom_handler(device, &OomHandler::run, function, id);
    }
    static C_Status remove(millpond_device* device, std::uint64_t id) {
      return millpond_device_remove_oom_callback(device, id);
    }
  };

  detail::Registration<Calls> held_;
};

/// A function that is told of each block of a device that is allocated or freed, as long as this
/// object lives; see millpond_device_add_hook. Moves, does not copy; its destructor calls reset().
class [[nodiscard]] BlockHook {
 public:
  /// Gets what happens (`kind` is one of MILLPOND_HOOK_*), for the time of the call, on the thread
  /// that allocates or frees, on several at once, and with no lock of Millpond held. It may
  /// allocate and free, of which no hook is told. An exception that leaves it is lost.
  using Function = std::function<void(const millpond_block_event& event)>;

 private:
  using Held = detail::Held<Function>;

 public:
  /// The empty object.
  BlockHook() noexcept = default;
  /// Registers `function`. Throws, and does not keep it, when it cannot be registered.
  BlockHook(Device on, Function function) {
    std::shared_ptr<Held> made(new (std::nothrow) Held(std::move(function)));
    if (!made || !made->function) {
      detail::refuse_function(made != nullptr);
      return;
    }
    made->self = made;  // the library ends it
    const C_Status status = millpond_device_add_hook(on.get(), &run, made.get(), &destroy, &id_);
    if (status != C_SUCCESS) {
      made->self.reset();
      check(status);
      return;
    }
    device_ = on;
    held_ = std::move(made);
  }
  /// Takes the registration over; `other` is left empty.
  BlockHook(BlockHook&& other) noexcept
      : device_(std::exchange(other.device_, Device())),
        id_(std::exchange(other.id_, 0u)),
        held_(std::move(other.held_)) {}
  /// Ends its own registration, then takes the other's over.
  BlockHook& operator=(BlockHook&& other) noexcept {
    if (this == &other) return *this;
    reset();
    device_ = std::exchange(other.device_, Device());
    id_ = std::exchange(other.id_, 0u);
    held_ = std::move(other.held_);
    return *this;
  }
  BlockHook(const BlockHook&) = delete;
  BlockHook& operator=(const BlockHook&) = delete;
  ~BlockHook() { reset(); }

  /// Ends the registration: the function is not called any more, and no thread is in it when this
  /// returns. From within a hook, an out-of-memory callback or a stream callback it does not wait:
  /// another thread may still be in the function, which is destroyed when the last one leaves it.
  /// Else it must not be called while holding a lock that the function takes, nor by two threads at
  /// once. In a segment callback, where the library takes no calls, the function is only switched
  /// off. Does nothing if empty, or if the device has ended, which has destroyed the function.
  void reset() noexcept {
    if (id_ == 0) return;
    if (millpond_device_remove_hook(device_.get(), id_) != C_SUCCESS) {
      held_->off.store(true, std::memory_order_release);
    }
    id_ = 0;
    held_.reset();
    device_ = Device();
  }
  /// Whether a function is registered.
  explicit operator bool() const noexcept { return id_ != 0; }

 private:
  static void run(void* user_data, const millpond_block_event* event) noexcept {
    if (const auto held = Held::of(user_data)) {
      (void)detail::answer([&] {
        held->function(*event);
        return true;
      });
    }
  }
  static void destroy(void* user_data) noexcept {
    const std::shared_ptr<Held> last = std::move(static_cast<Held*>(user_data)->self);
  }

  Device device_;
  std::uint64_t id_ = 0;        // 0: empty
  std::shared_ptr<Held> held_;  // the library has it, too
};

}  // namespace MILLPOND_CPP_ABI
}  // namespace millpond

#endif  // MILLPOND_CPP_CALLBACKS_HPP
