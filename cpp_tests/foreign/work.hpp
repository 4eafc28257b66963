// The streams and events of the foreign plugin: each stream is a thread that runs its work in
// order.
#ifndef MILLPOND_TESTS_FOREIGN_WORK_HPP
#define MILLPOND_TESTS_FOREIGN_WORK_HPP

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace foreign {

class Stream {
 public:
  explicit Stream(int device) : device_(device), thread_([this] { run(); }) {}
  /// What is queued still runs.
  ~Stream() {
    {
      std::lock_guard<std::mutex> held(lock_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void push(std::function<void()> work) {
    {
      std::lock_guard<std::mutex> held(lock_);
      work_.push_back(std::move(work));
      ++queued_;
    }
    changed_.notify_all();
  }
  /// For what is queued now; what comes later is not waited for.
  void wait() {
    std::unique_lock<std::mutex> held(lock_);
    const auto until = queued_;
    changed_.wait(held, [&] { return done_ >= until; });
  }
  bool idle() {
    std::lock_guard<std::mutex> held(lock_);
    return done_ == queued_;
  }
  int device() const { return device_; }

 private:
  void run() {
    std::unique_lock<std::mutex> held(lock_);
    for (;;) {
      changed_.wait(held, [&] { return ending_ || !work_.empty(); });
      if (work_.empty()) return;
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      held.unlock();
      work();
      work = nullptr;
      held.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  const int device_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::size_t queued_ = 0;
  std::size_t done_ = 0;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the rest
};

/// A point in a stream; recording makes a new one, so that those who wait keep theirs.
struct Mark {
  std::mutex lock;
  std::condition_variable changed;
  bool done = false;

  void set() {
    {
      std::lock_guard<std::mutex> held(lock);
      done = true;
    }
    changed.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> held(lock);
    changed.wait(held, [&] { return done; });
  }
};

class Event {
 public:
  void record(Stream* stream) {
    auto mark = std::make_shared<Mark>();
    {
      std::lock_guard<std::mutex> held(lock_);
      mark_ = mark;
    }
    if (stream == nullptr) {
      mark->set();
    } else {
      stream->push([mark] { mark->set(); });
    }
  }
  bool done() {
    const auto mark = now();
    if (mark == nullptr) return true;
    std::lock_guard<std::mutex> held(mark->lock);
    return mark->done;
  }
  void wait() {
    if (const auto mark = now()) mark->wait();
  }
  void hold(Stream* stream) {
    if (const auto mark = now()) stream->push([mark] { mark->wait(); });
  }

 private:
  std::shared_ptr<Mark> now() {
    std::lock_guard<std::mutex> held(lock_);
    return mark_;
  }
  std::mutex lock_;
  std::shared_ptr<Mark> mark_;
};

inline std::mutex& all_lock() {
  static std::mutex lock;
  return lock;
}
inline std::set<std::shared_ptr<Stream>>& all() {
  static std::set<std::shared_ptr<Stream>> streams;
  return streams;
}

inline Stream* create_stream(int device) {
  auto stream = std::make_shared<Stream>(device);
  std::lock_guard<std::mutex> held(all_lock());
  all().insert(stream);
  return stream.get();
}

inline void destroy_stream(Stream* stream) {
  std::shared_ptr<Stream> last;
  {
    std::lock_guard<std::mutex> held(all_lock());
    for (const auto& s : all()) {
      if (s.get() == stream) last = s;
    }
    all().erase(last);
  }
}  // its thread ends here, without the lock, unless somebody waits for it still

inline void wait_for_device(int device) {
  std::vector<std::shared_ptr<Stream>> mine;
  {
    std::lock_guard<std::mutex> held(all_lock());
    for (const auto& s : all()) {
      if (s->device() == device) mine.push_back(s);
    }
  }
  for (const auto& s : mine) s->wait();
}

inline void end_all() {
  std::set<std::shared_ptr<Stream>> last;
  std::lock_guard<std::mutex> held(all_lock());
  last.swap(all());
}

}  // namespace foreign

#endif
