// Pools by thread, uses that end, captures: through the C++ header, on every device type.
#include <memory_resource>
#include <thread>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/devices.hpp"

namespace millpond_tests {
namespace {

class Pools : public DeviceTest {
 protected:
  millpond_pool* pool_of(const void* block) const {
    millpond_block_info out{};
    out.struct_size = sizeof out;
    EXPECT_OK(millpond_get_block(block, &out));
    return out.pool;
  }
  millpond::Device device() const { return millpond::Device(device_); }
};
MILLPOND_FOR_ALL_DEVICES(Pools);

TEST_P(Pools, AWalkTellsEveryBlock) {
  const millpond::Pool own(device(), 0, "own");
  std::vector<millpond::Buffer> buffers;
  for (std::size_t n = 1; n <= 100; ++n) buffers.push_back(own.allocate(n * 1000));
  const auto blocks = own.blocks();
  ASSERT_EQ(blocks.size(), buffers.size());
  std::size_t sum = 0;
  for (const auto& block : blocks) {
    EXPECT_EQ(block.pool, own.get());
    EXPECT_EQ(block.state, MILLPOND_BLOCK_LIVE);
    EXPECT_EQ(pool_of(block.ptr), own.get());
    sum += block.size_bytes;
  }
  EXPECT_EQ(sum, own.stats().allocated_bytes.current);
  EXPECT_GE(device().blocks().size(), blocks.size());
  EXPECT_GE(device().blocks(MILLPOND_BLOCK_ANY).size(), device().blocks().size());
  buffers.clear();
  EXPECT_TRUE(own.blocks().empty());
}

TEST_P(Pools, AScopeRoutesUnnamedRequestsOfItsThread) {
  millpond::Pool own(device(), 0, "own");
  const millpond::PoolView usual(pool_);
  (void)usual.allocate(1000);
  {
    const millpond::PoolScope scope(own);
    const millpond::Buffer a = device().allocate(1000);
    const millpond::Buffer b = usual.allocate(1000);
    const millpond::CustomPlace place(type_);
    void* const c = millpond::memory::Alloc(place, 1000);
    EXPECT_EQ(pool_of(a.data()), own.get());
    EXPECT_EQ(pool_of(b.data()), own.get());
    EXPECT_EQ(pool_of(c), own.get());
    millpond::memory::Free(place, c);
    if (can(MILLPOND_CAP_HOST_ACCESS)) {
      millpond::MemoryResource resource(device());
      const std::pmr::vector<int> numbers(1000, 7, &resource);
      EXPECT_EQ(pool_of(numbers.data()), own.get());
      // Small requests share blocks in a pool of their own.
      {
        const std::pmr::vector<int> few(100, 7, &resource);
        EXPECT_NE(pool_of(few.data()), own.get());
        EXPECT_NE(pool_of(few.data()), pool_);
      }
      resource.trim();
    }
    std::thread([&] {
      const millpond::Buffer other = usual.allocate(1000);
      EXPECT_EQ(pool_of(other.data()), pool_);
    }).join();
  }
  const millpond::Buffer after = usual.allocate(1000);
  EXPECT_EQ(pool_of(after.data()), pool_);
  EXPECT_OK(own.destroy());
}

TEST_P(Pools, AUseEndsBeforeTheFree) {
  if (!can(MILLPOND_CAP_STREAMS)) GTEST_SKIP() << type_ << " has no streams";
  const millpond::PoolView pool(pool_);
  const millpond::StreamView own(device(), stream());
  const millpond::StreamView side(device(), stream());
  millpond::Buffer block = pool.allocate(3 << 20, own);
  EXPECT_OK(block.record_stream(side));
  {
    millpond::Event event(device());
    EXPECT_OK(side.record(event));
    EXPECT_OK(block.record_end(side, event));
  }
  EXPECT_OK(block.record_end(side));
  block.reset();
  EXPECT_OK(millpond_device_synchronize(device_));
  EXPECT_EQ(pool.stats().active_bytes.current, pool.stats().allocated_bytes.current);
}

TEST_P(Pools, ACaptureKeepsItsMemory) {
  if (!can(MILLPOND_CAP_STREAMS)) GTEST_SKIP() << type_ << " has no streams";
  millpond::Pool graphs(device(), 0, "graphs");
  const millpond::PoolView usual(pool_);
  const millpond::StreamView queue(device(), stream());
  millpond::Capture capture(graphs, queue);
  millpond::Buffer block = usual.allocate(1 << 20, queue);
  EXPECT_EQ(pool_of(block.data()), graphs.get());
  EXPECT_OK(capture.end());
  block.reset();
  EXPECT_OK(millpond_device_empty_cache(device_));
  EXPECT_GE(graphs.stats().reserved_bytes.current, std::uint64_t{1} << 20);
  capture = millpond::Capture();  // the graph is gone
  EXPECT_EQ(graphs.stats().reserved_bytes.current, 0u);
  EXPECT_OK(graphs.destroy());
}

TEST_P(Pools, ALayoutComesBack) {
  millpond::Pool graphs(device(), 0, "graphs");
  millpond::Buffer old = graphs.allocate(1 << 16);
  void* const at = old.data();
  const millpond::Checkpoint checkpoint(graphs);
  old.reset();
  millpond::Buffer other = graphs.allocate(1000);
  std::vector<millpond::RestoredBlock> changed;
  EXPECT_OK(checkpoint.restore(&changed));
  ASSERT_EQ(changed.size(), 2u);
  EXPECT_EQ(changed[0].data, other.release());
  EXPECT_FALSE(changed[0].live);
  EXPECT_EQ(changed[1].data, at);
  EXPECT_TRUE(changed[1].live);
  old = millpond::Buffer::adopt(graphs.get(), at, 1 << 16, nullptr);
  EXPECT_EQ(graphs.stats().blocks.current, 1u);
}

TEST_P(Pools, APoolSleepsWhereTheDeviceMaps) {
  millpond::Pool pool(device(), 0, "asleep");
  const millpond::Buffer block = pool.allocate(1 << 20);
  if (!can(MILLPOND_CAP_MAPPING)) {
    EXPECT_NE(millpond_pool_sleep(pool.get(), 0), C_SUCCESS);
    EXPECT_EQ(millpond_last_error_code(), static_cast<unsigned>(MILLPOND_E_UNSUPPORTED));
    return;
  }
  EXPECT_OK(pool.sleep(true));
  EXPECT_EQ(pool.stats().reserved_bytes.current, 0u);
  EXPECT_GE(pool.stats().sleeping_bytes.current, std::uint64_t{1} << 20);
  EXPECT_OK(pool.wake());
  EXPECT_OK(device().sleep("asleep", true));
  EXPECT_GE(pool.stats().sleeping_bytes.current, std::uint64_t{1} << 20);
  EXPECT_OK(device().wake("asleep"));
  EXPECT_EQ(pool.stats().sleeping_bytes.current, 0u);
}

}  // namespace
}  // namespace millpond_tests
