// Eight threads hammer two devices through four streams each, for MILLPOND_STRESS_SECONDS (3).
// A shadow map knows every live range; each block carries a pattern that is read back before it is
// freed; at the end the counters are exactly where they began.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/devices.hpp"
#include "support/pattern.hpp"

namespace millpond_tests {
namespace {

/// All live ranges of one device.
class Shadow {
 public:
  /// Whether the range was free; it is taken then.
  bool take(std::uintptr_t start, std::size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = ranges_.lower_bound(start);
    if (next != ranges_.end() && next->first < start + size) return false;
    if (next != ranges_.begin() && std::prev(next)->second > start) return false;
    ranges_.emplace(start, start + size);
    return true;
  }
  /// Must come before the free: from the free on, another thread may get the range.
  void give(std::uintptr_t start) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase(start);
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> ranges_;
};

constexpr int kThreads = 8;
constexpr std::size_t kStreams = 4;

struct Side {
  millpond_device* device = nullptr;
  millpond_pool* pool = nullptr;
  std::vector<C_Stream> streams;
  Shadow shadow;
  millpond_stats before{};
  std::atomic<std::uint64_t> requested{0};
  std::atomic<std::uint64_t> blocks{0};
};

struct Block {
  std::uint8_t* data = nullptr;
  std::size_t size = 0;
  std::uint64_t seed = 0;
  std::size_t side = 0;
  std::size_t stream = 0;
  bool ordered = false;
};

std::chrono::milliseconds duration() {
  const char* seconds = std::getenv("MILLPOND_STRESS_SECONDS");
  const double value = seconds != nullptr ? std::atof(seconds) : 3.0;
  return std::chrono::milliseconds(static_cast<long long>(value * 1000));
}

class Stress : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    std::size_t count = 0;
    ASSERT_OK(millpond_device_get_count(type_.c_str(), &count));
    sides_ = std::vector<Side>(count < 2 ? 1 : 2);
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      Side& side = sides_[i];
      ASSERT_OK(millpond_device_get(type_.c_str(), static_cast<std::int32_t>(i), &side.device));
      ASSERT_OK(millpond_device_get_default_pool(side.device, &side.pool));
      side.streams.assign(kStreams, nullptr);
      if (can(MILLPOND_CAP_STREAMS)) {
        for (C_Stream& stream : side.streams) {
          ASSERT_OK(millpond_stream_create(side.device, &stream));
        }
      }
      side.before = stats(side.device);
    }
  }

  void run(std::uint64_t seed, std::chrono::steady_clock::time_point end);
  void make(std::mt19937_64& random, std::vector<Block>* mine);
  void drop(std::mt19937_64& random, std::vector<Block>* mine, std::vector<std::uint8_t>* scratch);

  std::vector<Side> sides_;
  std::atomic<std::uint64_t> steps_{0};
};
MILLPOND_FOR_ALL_DEVICES(Stress);

void Stress::make(std::mt19937_64& random, std::vector<Block>* mine) {
  Block block;
  block.side = random() % sides_.size();
  block.stream = random() % kStreams;
  block.ordered = random() % 4 != 0;
  block.seed = random();
  // Mostly small, some across the granule.
  block.size =
      1 + random() % (random() % 16 == 0 ? (3u << 20) : (random() % 4 == 0 ? 200000 : 5000));
  Side& side = sides_[block.side];
  C_Stream stream = side.streams[block.stream];
  void* out = nullptr;
  if (block.ordered) {
    ASSERT_OK(millpond_pool_alloc(side.pool, block.size, stream, &out));
  } else {
    ASSERT_OK(millpond_alloc(side.device, block.size, &out));
  }
  block.data = static_cast<std::uint8_t*>(out);
  ASSERT_TRUE(side.shadow.take(reinterpret_cast<std::uintptr_t>(out), block.size))
      << "overlaps a live block";
  side.requested.fetch_add(block.size);
  side.blocks.fetch_add(1);
  const std::vector<std::uint8_t> bytes = pattern(block.seed, block.size);
  ASSERT_OK(
      millpond_copy_async(side.device, stream, MILLPOND_COPY_H2D, out, bytes.data(), block.size));
  mine->push_back(block);
}

void Stress::drop(std::mt19937_64& random, std::vector<Block>* mine,
                  std::vector<std::uint8_t>* scratch) {
  const std::size_t index = random() % mine->size();
  const Block block = (*mine)[index];
  (*mine)[index] = mine->back();
  mine->pop_back();
  Side& side = sides_[block.side];
  C_Stream stream = side.streams[block.stream];
  scratch->assign(block.size, 0);
  ASSERT_OK(millpond_copy_async(side.device, stream, MILLPOND_COPY_D2H, scratch->data(), block.data,
                                block.size));
  ASSERT_OK(millpond_stream_synchronize(side.device, stream));
  const std::size_t same = first_unlike(*scratch, block.seed);
  ASSERT_EQ(block.size, same) << "byte " << same << " of " << block.size << " was overwritten";
  side.shadow.give(reinterpret_cast<std::uintptr_t>(block.data));
  switch (random() % 4) {
    case 0:
      ASSERT_OK(millpond_free(block.data));
      break;
    case 1:
      ASSERT_OK(millpond_free_sized(block.data, block.size));
      break;
    case 2: {  // on another stream than its own
      C_Stream other = side.streams[random() % kStreams];
      if (!block.ordered) other = nullptr;
      ASSERT_OK(millpond_record_stream(block.data, other));
      ASSERT_OK(millpond_pool_free(side.pool, block.data, other));
      break;
    }
    default:
      ASSERT_OK(millpond_pool_free(side.pool, block.data, block.ordered ? stream : nullptr));
  }
}

void Stress::run(std::uint64_t seed, std::chrono::steady_clock::time_point end) {
  std::mt19937_64 random(seed);
  std::vector<Block> mine;
  std::vector<std::uint8_t> scratch;
  while (!HasFailure() && std::chrono::steady_clock::now() < end) {
    if (mine.size() < 8 || (mine.size() < 48 && random() % 2 == 0)) {
      make(random, &mine);
    } else {
      drop(random, &mine, &scratch);
    }
    if (random() % 4096 == 0) {
      EXPECT_OK(millpond_device_empty_cache(sides_[random() % sides_.size()].device));
    }
    steps_.fetch_add(1);
  }
  while (!mine.empty() && !HasFailure()) drop(random, &mine, &scratch);
}

TEST_P(Stress, NoOverlapNoLeakExactCounters) {
  const auto end = std::chrono::steady_clock::now() + duration();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, end] { run(static_cast<std::uint64_t>(t) + 1, end); });
  }
  for (std::thread& thread : threads) thread.join();
  RecordProperty("steps", std::to_string(steps_.load()));
  for (Side& side : sides_) {
    EXPECT_OK(millpond_device_synchronize(side.device));
    const millpond_stats after = stats(side.device);
    EXPECT_EQ(side.before.blocks.current, after.blocks.current);
    EXPECT_EQ(side.before.allocated_bytes.current, after.allocated_bytes.current);
    EXPECT_EQ(side.before.requested_bytes.current, after.requested_bytes.current);
    EXPECT_EQ(side.before.blocks.total + side.blocks.load(), after.blocks.total);
    EXPECT_EQ(side.before.requested_bytes.total + side.requested.load(),
              after.requested_bytes.total);
    EXPECT_GE(after.reserved_bytes.current, after.allocated_bytes.current);
    EXPECT_EQ(0u, after.out_of_memory_count - side.before.out_of_memory_count);
    for (C_Stream stream : side.streams) {
      if (stream != nullptr) {
        EXPECT_OK(millpond_stream_destroy(side.device, stream));
      }
    }
    EXPECT_OK(millpond_device_empty_cache(side.device));
    EXPECT_EQ(0u, stats(side.device).reserved_bytes.current) << "memory was not given back";
  }
  EXPECT_GT(steps_.load(), 100u) << "the test did next to nothing";
}

}  // namespace
}  // namespace millpond_tests
