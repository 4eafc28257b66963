// Tensors for other processes, for native.cpp: what PyTorch sends of a block is a text of bytes, so
// the descriptors that Millpond's export consists of stay open here, and the other process takes
// copies of them by their numbers (pidfd_getfd), as with PyTorch's own expandable segments. Which
// process still uses a block is counted by PyTorch, which frees it when none does.
#ifndef MILLPOND_TORCH_SHARING_HPP
#define MILLPOND_TORCH_SHARING_HPP

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace millpond_torch {

/// Descriptors that are closed with it.
struct Descriptors {
  std::vector<int> all;
  Descriptors() = default;
  Descriptors(Descriptors&& from) noexcept : all(std::exchange(from.all, {})) {}
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    for (int fd : all) ::close(fd);
  }
};

/// When a process began, in the system's ticks; 0: it is not known. A number of a process that has
/// ended may be another's.
inline std::uint64_t began(std::uint32_t process) {
  std::string text(4096, '\0');
  const int file =
      ::open(("/proc/" + std::to_string(process) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t size = ::read(file, text.data(), text.size());
  ::close(file);
  if (size <= 0) return 0;
  text.resize(static_cast<std::size_t>(size));
  std::size_t at = text.rfind(')');  // the name may have any characters; the 22nd field is wanted
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  return at != std::string::npos ? std::strtoull(text.c_str() + at, nullptr, 10) : 0;
}

/// `Library` has the functions of libmillpond-torch.so. There is one, for good.
template <typename Library>
class Sharing {
 public:
  explicit Sharing(const Library& library) : library_(library) {
    // A forked child gives its copies of the descriptors back: it would withhold the memory of
    // freed tensors for as long as it lives.
    forked_ = this;
    (void)pthread_atfork([] { forked_->lock_.lock(); }, [] { forked_->lock_.unlock(); },
                         [] {
                           for (auto& shared : forked_->exports_) {
                             std::vector<int>& fds = shared.second.second.all;
                             for (int fd : fds) ::close(fd);
                             fds.clear();
                           }
                           forked_->lock_.unlock();
                         });
  }

  /// What another process needs to open the block that begins at `base`.
  std::string share(void* base) {
    std::lock_guard<std::mutex> held(lock_);
    const auto known = exports_.find(base);
    if (known != exports_.end()) return known->second.first;
    std::size_t info_bytes = 0, fd_count = 0;
    check(library_.export_size_(base, &info_bytes, &fd_count));
    std::string info(info_bytes, '\0');
    Descriptors fds;
    std::vector<int> made(fd_count, -1);
    check(library_.export_(base, info.data(), info_bytes, made.data(), fd_count));
    fds.all = std::move(made);
    Head head{};
    std::memcpy(head.magic, kMagic, sizeof head.magic);
    head.process = static_cast<std::uint32_t>(::getpid());
    head.began = began(head.process);
    head.serial = ++serial_;
    head.info_bytes = info_bytes;
    head.fd_count = fd_count;
    std::string text(reinterpret_cast<const char*>(&head), sizeof head);
    text += info;
    text.append(reinterpret_cast<const char*>(fds.all.data()), fd_count * sizeof(int));
    exports_.emplace(base, std::pair{text, std::move(fds)});
    any_.store(true, std::memory_order_release);
    return text;
  }

  /// The block is about to be freed: its memory is reused when nobody has a descriptor of it.
  void freeing(void* base) {
    if (!any_.load(std::memory_order_acquire)) return;
    std::lock_guard<std::mutex> held(lock_);
    exports_.erase(base);
    any_.store(!exports_.empty(), std::memory_order_release);
  }

  /// The memory that another process has shared, for as long as somebody holds it.
  std::shared_ptr<void> open(c10::DeviceIndex device, const std::string& text) {
    close_late();
    {
      std::lock_guard<std::mutex> held(lock_);
      const auto known = imports_.find({device, text});
      if (known != imports_.end()) {
        if (std::shared_ptr<void> there = known->second.lock()) return there;
        imports_.erase(known);
      }
    }
    Head head{};
    TORCH_CHECK(text.size() >= sizeof head && std::memcmp(text.data(), kMagic, sizeof kMagic) == 0,
                "the tensor was not shared by Millpond: the process that sends it must use "
                "millpond_torch.enable(native=True) as well");
    std::memcpy(&head, text.data(), sizeof head);
    const std::size_t rest = text.size() - sizeof head;
    TORCH_CHECK(head.info_bytes <= rest &&
                    head.fd_count <= (rest - head.info_bytes) / sizeof(int) &&
                    head.info_bytes + head.fd_count * sizeof(int) == rest,
                "what describes the shared tensor is not whole");
    const char* info = text.data() + sizeof head;
    std::vector<int> numbers(head.fd_count);
    std::memcpy(numbers.data(), info + head.info_bytes, head.fd_count * sizeof(int));
    const Descriptors fds = take(head, numbers);
    auto made = std::make_unique<Import>();
    check(library_.import_(device, info, head.info_bytes, fds.all.data(), fds.all.size(),
                           &made->ptr));
    Import* const import = made.release();
    std::shared_ptr<void> there(import->ptr, [this, import](void*) { close(import); });
    // Another thread may have opened the same meanwhile: there is one address for everybody. What
    // is not needed then ends after the lock.
    std::lock_guard<std::mutex> held(lock_);
    for (auto old = imports_.begin(); old != imports_.end();) {
      old = old->second.expired() ? imports_.erase(old) : std::next(old);
    }
    std::weak_ptr<void>& known = imports_[{device, text}];
    if (std::shared_ptr<void> first = known.lock()) return first;
    known = there;
    return there;
  }

  /// Ends the imports whose end had to be put off; whether one of them has ended.
  bool close_late() noexcept {
    Import* late = nullptr;
    {
      std::lock_guard<std::mutex> held(lock_);
      late = std::exchange(late_, nullptr);
    }
    bool any = false;
    while (late != nullptr) any |= close(std::exchange(late, late->next));
    return any;
  }

 private:
  static constexpr char kMagic[8] = {'M', 'P', 'T', 'O', 'R', 'C', 'H', '1'};
  struct Head {
    char magic[8];
    std::uint64_t began, serial, info_bytes, fd_count;
    std::uint32_t process, zero;
  };

  /// What has been imported, and the next one whose end was put off.
  struct Import {
    void* ptr = nullptr;
    Import* next = nullptr;
  };

  void check(int status) const { TORCH_CHECK(status == 0, library_.last_error_()); }

  /// Copies of the other process's descriptors.
  static Descriptors take(const Head& head, const std::vector<int>& numbers) {
    Descriptors out, closes;
    out.all.reserve(numbers.size());  // from here on nothing fails with a descriptor in hand
    closes.all.reserve(1);
    const int process =
        static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(head.process), 0));
    const int failure = errno;
    TORCH_CHECK(process >= 0, "the process ", head.process,
                " that shares the tensor cannot be found (", std::strerror(failure),
                "): it has ended, it runs in another PID namespace, or Linux is older than 5.6");
    closes.all.push_back(process);
    TORCH_CHECK(head.began == 0 || began(head.process) == head.began, "the process ", head.process,
                " that shared the tensor has ended");
    for (int number : numbers) {
      const int fd = static_cast<int>(::syscall(SYS_pidfd_getfd, process, number, 0));
      const int why = errno;
      TORCH_CHECK(fd >= 0, "the tensor's memory cannot be had from process ", head.process, " (",
                  std::strerror(why), ")",
                  why == EPERM ? ": processes that share tensors must be allowed to trace each "
                                 "other (kernel.yama.ptrace_scope=0, CAP_SYS_PTRACE, or "
                                 "prctl(PR_SET_PTRACER) in the one that sends)"
                               : "");
      out.all.push_back(fd);
    }
    return out;
  }

  /// Whether it has ended: while a graph is captured an import cannot end, and is put off.
  /// Allocates nothing.
  bool close(Import* import) noexcept {
    if (library_.import_close_(import->ptr) == 0) {
      delete import;
      return true;
    }
    std::lock_guard<std::mutex> held(lock_);
    import->next = std::exchange(late_, import);
    return false;
  }

  inline static Sharing* forked_ = nullptr;

  const Library& library_;
  std::atomic<bool> any_{false};
  std::mutex lock_;  // guards what follows
  std::uint64_t serial_ = 0;
  std::unordered_map<void*, std::pair<std::string, Descriptors>> exports_;
  std::map<std::pair<c10::DeviceIndex, std::string>, std::weak_ptr<void>> imports_;
  Import* late_ = nullptr;
};

}  // namespace millpond_torch

#endif
