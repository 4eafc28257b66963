// What a C++ program sees of its memory: blocks and segments one by one, and tags. What the numbers
// mean is tested in tests/contract.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/devices.hpp"

namespace millpond_tests {
namespace {

class Seeing : public DeviceTest {
 protected:
  millpond::Device device() const { return millpond::Device(device_); }
  static const millpond_tag_stats* find(const std::vector<millpond_tag_stats>& all,
                                        const std::string& name) {
    for (const millpond_tag_stats& tag : all) {
      if (tag.name == name) return &tag;
    }
    return nullptr;
  }
};
MILLPOND_FOR_ALL_DEVICES(Seeing);

TEST_P(Seeing, BlocksComeOneByOneUntilNoMoreAreWanted) {
  const millpond::Pool own(device(), 0, "own");
  const millpond::Buffer a = own.allocate(1000), b = own.allocate(2000), c = own.allocate(3000);
  std::size_t bytes = 0, count = 0;
  EXPECT_OK(own.each_block(MILLPOND_BLOCK_LIVE, [&](const millpond_block_record& block) {
    bytes += block.requested_bytes;
    // It may call Millpond.
    const millpond::Buffer more = device().allocate(64);
    return more.data() != nullptr;
  }));
  EXPECT_EQ(6000u, bytes);
  EXPECT_OK(device().each_block(MILLPOND_BLOCK_ANY,
                                [&](const millpond_block_record&) { return ++count < 2; }));
  EXPECT_EQ(2u, count);
}

TEST_P(Seeing, WhatAFunctionThrowsComesOutOfTheWalk) {
  const millpond::Pool own(device(), 0, "own");
  const millpond::Buffer block = own.allocate(1000);
  std::size_t count = 0;
  const auto throws = [&](const auto&) -> bool {
    ++count;
    throw std::runtime_error("enough");
  };
  EXPECT_THROW(own.each_block(MILLPOND_BLOCK_LIVE, throws), std::runtime_error);
  EXPECT_EQ(1u, count);
  EXPECT_THROW(device().each_segment(throws), std::runtime_error);
  EXPECT_EQ(2u, count);
}

TEST_P(Seeing, SegmentsAreWhatIsReserved) {
  if (!can(MILLPOND_CAP_STREAMS)) GTEST_SKIP() << type_ << " has no streams";
  const millpond::Pool own(device(), 0, "own");
  const millpond::Stream stream(device());
  const millpond::Buffer a = own.allocate(std::size_t{5} << 20, stream),
                         b = own.allocate(700, stream);
  std::uint64_t all = 0;
  for (const millpond_segment_record& segment : device().segments()) all += segment.size_bytes;
  EXPECT_EQ(device().stats().reserved_bytes.current, all);
  std::uint64_t mine = 0;
  bool found = false;
  EXPECT_OK(device().each_segment([&](const millpond_segment_record& segment) {
    if (segment.pool != own.get()) return true;
    mine += segment.size_bytes;
    const auto* at = static_cast<const char*>(segment.ptr);
    const auto* data = static_cast<const char*>(a.data());
    found = found || (at <= data && data < at + segment.size_bytes);
    return true;
  }));
  EXPECT_EQ(own.stats().reserved_bytes.current, mine);
  EXPECT_TRUE(found);
  std::uint64_t again = 0;
  for (const millpond_segment_record& segment : own.segments()) again += segment.size_bytes;
  EXPECT_EQ(mine, again);
}

TEST_P(Seeing, TagsNestAndEndWithTheirScopes) {
  // A name of a tag has 31 bytes at most.
  const std::string outer = ("outer of " + std::string(device().info().type)).substr(0, 31),
                    inner = "inner";
  std::vector<millpond::Buffer> kept;
  {
    const millpond::TagScope layers(outer.c_str());
    kept.push_back(device().allocate(1000));
    {
      const millpond::TagScope weights(inner.c_str());
      kept.push_back(device().allocate(2000));
      kept.push_back(device().allocate(3000));
    }
    kept.push_back(device().allocate(4000));
  }
  kept.push_back(device().allocate(5000));
  std::vector<millpond_tag_stats> all = device().tags();
  ASSERT_NE(nullptr, find(all, outer));
  ASSERT_NE(nullptr, find(all, inner));
  EXPECT_EQ(5000u, find(all, outer)->requested_bytes.current);
  EXPECT_EQ(2u, find(all, outer)->blocks.current);
  EXPECT_EQ(5000u, find(all, inner)->requested_bytes.current);
  const std::uint32_t tag = find(all, inner)->tag;
  for (const millpond_block_record& block : device().blocks()) {
    if (block.ptr == kept[1].data()) {
      EXPECT_EQ(tag, block.tag);
    }
    if (block.ptr == kept[4].data()) {
      EXPECT_EQ(0u, block.tag);
    }
  }
  kept.clear();
  all = device().tags();
  EXPECT_EQ(0u, find(all, inner)->blocks.current);
  EXPECT_EQ(2u, find(all, inner)->blocks.peak);
}

TEST_P(Seeing, ATagWithoutANameIsRefused) {
  EXPECT_THROW(millpond::TagScope(""), millpond::Error);
  EXPECT_THROW(millpond::TagScope("a name of more than thirty-one b"), millpond::Error);
}

}  // namespace
}  // namespace millpond_tests
