// Sharing through the C++ header, on every device type: what owns what, in one process. Two
// processes are in tests/api/share.rs and examples/cpp/share.cpp.
#include <fcntl.h>

#include <vector>

#include "millpond/millpond.hpp"
#include "support/devices.hpp"

namespace millpond_tests {
namespace {

class Share : public DeviceTest {
 protected:
  millpond::Device device() const { return millpond::Device(device_); }
};
MILLPOND_FOR_ALL_DEVICES(Share);

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST_P(Share, AnExportIsOpenedAtAnotherAddressOrRefusedWithAReason) {
  millpond::Buffer block = device().allocate(10000);
  EXPECT_OK(millpond_memset(device_, block.data(), 7, 10000));
  millpond::Export out;
  millpond::Import in;
  try {
    out = millpond::Export(block.data());
    in = millpond::Import(device(), out.info().data(), out.info().size(), out.fds().data(),
                          out.fds().size());
  } catch (const millpond::Error& error) {
    EXPECT_NE(std::string(error.what()), "");
    EXPECT_FALSE(in);
    if (!out) {
      EXPECT_EQ(error.code(), MILLPOND_E_UNSUPPORTED);
    }
    return;
  }
  ASSERT_TRUE(out && in);
  EXPECT_NE(in.data(), block.data());
  // Only what goes by fabric handles, and so with no descriptor but the ticket, opens without any.
  if (out.fds().size() > 1) {
    EXPECT_THROW(millpond::Import(device(), out.info().data(), out.info().size()), millpond::Error);
  }
  const std::vector<int> fds = out.fds();
  millpond::Export moved(std::move(out));
  EXPECT_FALSE(out);  // NOLINT: left empty, as promised
  moved.close();
  for (const int fd : fds) EXPECT_FALSE(is_open(fd));
  block.reset();
  EXPECT_EQ(millpond::poll_exports(device()).blocks, 1u);
  std::vector<unsigned char> bytes(10000);
  EXPECT_OK(millpond_copy(device_, MILLPOND_COPY_D2H, bytes.data(), in.data(), bytes.size()));
  EXPECT_EQ(bytes, std::vector<unsigned char>(10000, 7));
  EXPECT_OK(in.close());
  EXPECT_FALSE(in);
  EXPECT_EQ(millpond::poll_exports(device()).blocks, 0u);
  EXPECT_THROW(in.close(), millpond::Error);
}

TEST_P(Share, SegmentsAreToldOf) {
  std::size_t live = 0;
  const millpond::SegmentCallback::Function count = [&](bool added, void*, std::size_t bytes) {
    live = added ? live + bytes : live - bytes;
    throw 1;  // is lost
  };
  millpond::SegmentCallback first;
  try {
    first = millpond::SegmentCallback(device(), count);
  } catch (const millpond::Error& error) {
    ASSERT_EQ(error.code(), MILLPOND_E_UNSUPPORTED);
    GTEST_SKIP() << error.what();
  }
  const std::size_t before = live;
  millpond::SegmentCallback callback(std::move(first));
  EXPECT_FALSE(first);  // NOLINT: left empty, as promised
  {
    const millpond::Buffer block = device().allocate(9u << 20);
    EXPECT_GE(live, 9u << 20);
  }
  EXPECT_GE(live, before);
  callback.reset();
  live = 0;
  const millpond::Buffer block = device().allocate(40u << 20);
  EXPECT_EQ(live, 0u);
  EXPECT_THROW(millpond::SegmentCallback(device(), nullptr), millpond::Error);
}

TEST_P(Share, ADeviceReachesItself) {
  EXPECT_TRUE(millpond::can_access_peer(device(), device()));
  EXPECT_OK(millpond::enable_peer_access(device(), device()));
}

}  // namespace
}  // namespace millpond_tests
