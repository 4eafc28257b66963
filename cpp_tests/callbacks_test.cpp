// Functions of the program that the library calls, blocks that get another size where they are,
// and advice on unified memory.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"

namespace millpond_tests {
namespace {

using millpond::BlockHook;
using millpond::Buffer;
using millpond::Device;
using millpond::Stream;

static_assert(std::is_nothrow_move_constructible<BlockHook>::value &&
                  std::is_nothrow_move_assignable<BlockHook>::value &&
                  !std::is_copy_constructible<BlockHook>::value,
              "owners move and do not copy");

class CppCallbacks : public ::testing::Test {
 protected:
  void TearDown() override {
    device_.synchronize();
    EXPECT_EQ(before_, device_.stats().blocks.current);
  }
  Device device_{"host", 0};
  std::uint64_t before_ = device_.stats().blocks.current;
};

/// Counts how many of it there are.
struct Counted {
  explicit Counted(std::atomic<int>* of) : count(of) { ++*count; }
  Counted(const Counted& other) : count(other.count) { ++*count; }
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --*count; }
  std::atomic<int>* count;
};

TEST_F(CppCallbacks, AHookIsToldWhileItLives) {
  std::vector<std::uint32_t> seen;
  std::atomic<int> live{0};
  {
    BlockHook hook(device_, [&seen, held = Counted(&live)](const millpond_block_event& event) {
      seen.push_back(event.kind);
      throw std::runtime_error("lost");
    });
    EXPECT_TRUE(hook);
    EXPECT_EQ(1, live);
    (void)device_.allocate(5000);
    BlockHook moved = std::move(hook);
    EXPECT_FALSE(hook);  // NOLINT: what was moved from is empty
    (void)device_.allocate(5000);
    EXPECT_TRUE(moved);
  }
  EXPECT_EQ(0, live) << "the function ends with it";
  (void)device_.allocate(5000);
  EXPECT_EQ((std::vector<std::uint32_t>{MILLPOND_HOOK_ALLOC, MILLPOND_HOOK_FREE,
                                        MILLPOND_HOOK_ALLOC, MILLPOND_HOOK_FREE}),
            seen);
  EXPECT_THROW(BlockHook(device_, nullptr), millpond::Error);
  EXPECT_THROW(BlockHook(Device(), [held = Counted(&live)](const millpond_block_event&) {}),
               millpond::Error);
  EXPECT_EQ(0, live);
}

TEST_F(CppCallbacks, AHookMayEndItselfAndWhatItHolds) {
  std::atomic<int> live{0}, calls{0};
  BlockHook hook;
  auto kept = std::make_shared<Buffer>(device_.allocate(3000));
  hook = BlockHook(device_, [&hook, &calls, held = Counted(&live), kept](const auto&) {
    ++calls;
    hook.reset();
    EXPECT_EQ(1, *held.count) << "it is still in use";
  });
  kept.reset();
  (void)device_.allocate(5000);
  EXPECT_FALSE(hook);
  EXPECT_EQ(1, calls);
  EXPECT_EQ(0, live);
}

TEST_F(CppCallbacks, AStreamCallbackMayEndBoth) {
  std::atomic<int> live{0}, hooked{0}, asked{0};
  auto hook = std::make_unique<BlockHook>(
      device_, [&hooked, held = Counted(&live)](const auto&) { ++hooked; });
  auto oom = std::make_unique<millpond::OomCallback>(device_, [&asked](std::uint64_t) {
    ++asked;
    return false;
  });
  Stream stream(device_);
  stream.add_callback([&](C_Status) {
    hook.reset();
    oom.reset();
  });
  stream.synchronize();
  (void)device_.allocate(5000);
  EXPECT_EQ(0, hooked);
  EXPECT_EQ(0, live);
  device_.empty_cache();
  device_.set_limit(8u << 20);
  Buffer most = device_.allocate(6u << 20);
  EXPECT_THROW((void)device_.allocate(6u << 20), millpond::Error);
  EXPECT_EQ(0, asked);
  device_.set_limit(0);
}

TEST_F(CppCallbacks, AnOutOfMemoryCallbackMayEndItself) {
  std::atomic<int> live{0}, calls{0};
  std::unique_ptr<millpond::OomCallback> oom;
  std::unique_ptr<millpond::OomHandler> handler;
  oom = std::make_unique<millpond::OomCallback>(
      device_, [&oom, &calls, &live, held = Counted(&live)](std::uint64_t) {
        ++calls;
        oom.reset();
        EXPECT_EQ(2, live) << "it is still in use";
        return false;
      });
  // Within an out-of-memory callback hooks are called, too, and may end it.
  BlockHook hook(device_, [&handler](const millpond_block_event&) { handler.reset(); });
  handler = std::make_unique<millpond::OomHandler>(
      device_, [this, &calls, &live, held = Counted(&live)](const millpond_oom_report&) {
        ++calls;
        (void)device_.allocate(100);
        EXPECT_EQ(1, live) << "it is still in use";
        return false;
      });
  ASSERT_EQ(2, live);
  device_.empty_cache();
  device_.set_limit(8u << 20);
  EXPECT_THROW((void)device_.allocate(16u << 20), millpond::Error);
  EXPECT_EQ(2, calls);
  EXPECT_EQ(0, live) << "each was destroyed when it returned";
  device_.set_limit(0);
}

TEST_F(CppCallbacks, AHandlerOfAPoolIsAskedForItsRequestsOnly) {
  millpond::Pool mine(device_), other(device_);
  device_.empty_cache();
  device_.set_limit(8u << 20);
  int calls = 0;
  Buffer cache = mine.allocate(6u << 20);
  millpond::OomHandler handler(mine, [&](const millpond_oom_report& report) {
    ++calls;
    EXPECT_EQ(mine.get(), report.pool);
    const bool had = static_cast<bool>(cache);
    cache.reset();
    return had;
  });
  EXPECT_THROW((void)other.allocate(6u << 20), millpond::Error);
  EXPECT_EQ(0, calls);
  EXPECT_EQ(6u << 20, mine.allocate(6u << 20).size());
  EXPECT_EQ(1, calls);
  // It ends with its pool.
  mine = millpond::Pool();
  handler.reset();
  EXPECT_THROW((void)millpond::OomHandler(millpond::PoolView(), [](const auto&) { return true; }),
               millpond::Error);
  device_.set_limit(0);
}

TEST_F(CppCallbacks, ABlockGrowsWhereItIs) {
  millpond::Pool pool(device_);
  { const Buffer room = pool.allocate(24u << 20); }
  Buffer block = pool.allocate(4u << 20);
  void* const at = block.data();
  EXPECT_TRUE(block.try_expand(9u << 20));
  EXPECT_EQ(9u << 20, block.size());
  EXPECT_TRUE(block.try_expand(1u << 20));
  EXPECT_EQ(1u << 20, block.size());
  EXPECT_FALSE(block.try_expand(static_cast<std::size_t>(1) << 40));
  EXPECT_EQ(1u << 20, block.size());
  EXPECT_EQ(at, block.data());
  EXPECT_EQ(1u << 20, pool.stats().requested_bytes.current);
  EXPECT_THROW((void)block.try_expand(0), millpond::Error);
  EXPECT_THROW((void)Buffer().try_expand(1), millpond::Error);
}

TEST_F(CppCallbacks, UnifiedMemoryGoesWhereItIsUsed) {
  using millpond::UnifiedAdvice;
  using millpond::UnifiedPlace;
  millpond::UnifiedBuffer memory(device_, 10000);
  memory.as<char>()[9999] = 1;
  Stream stream(device_);
  memory.advise(UnifiedAdvice::kReadMostly);
  memory.advise(UnifiedAdvice::kPreferred, UnifiedPlace::kHost);
  memory.prefetch(stream);
  memory.prefetch(device_.default_stream(), UnifiedPlace::kHost);
  memory.prefetch(millpond::StreamView());
  stream.synchronize();
  EXPECT_EQ(1, memory.as<char>()[9999]);
  millpond::UnifiedBuffer moved = std::move(memory);
  EXPECT_EQ(10000u, moved.size());
  (void)memory.prefetch(stream);  // NOLINT: empty, so nothing moves
}

}  // namespace
}  // namespace millpond_tests
