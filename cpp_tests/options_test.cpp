// Options through the C++ face.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "millpond/millpond.hpp"

namespace {

TEST(Options, AreSetAndTold) {
  millpond::Device device("host", 0);
  const std::string before = device.options();
  EXPECT_EQ("unlimited", device.option("max_split_size_mb"));
  device.set_options("max_split_size_mb:64, roundup_power2_divisions:[4:2,>:4]");
  EXPECT_EQ("64", device.option("max_split_size_mb"));
  device.set_options(before);
  EXPECT_EQ(before, device.options());
}

TEST(Options, WrongTextsNameTheColumn) {
  millpond::Device device("host", 0);
  try {
    device.set_options("max_split_size_mb:64,backend:nativ");
    FAIL() << "no such backend";
  } catch (const millpond::Error& e) {
    EXPECT_EQ(std::uint32_t{MILLPOND_E_INVALID_ARGUMENT}, e.code());
    EXPECT_NE(std::string::npos, std::string(e.what()).find("column 30")) << e.what();
    EXPECT_NE(std::string::npos, std::string(e.what()).find("did you mean native?")) << e.what();
  }
  EXPECT_EQ("unlimited", device.option("max_split_size_mb"));
  EXPECT_THROW(device.option("no_such_key"), millpond::Error);
  EXPECT_THROW(millpond::set_default_options("x:1"), millpond::Error);
  EXPECT_THROW(millpond::set_default_options("backend:native", "host", -7), millpond::Error);
}

TEST(Options, ThatAnOpenDeviceKeepsAreBusy) {
  millpond::Device device("host", 0);
  // For a device that nobody opens here.
  EXPECT_EQ(C_SUCCESS, millpond::set_default_options("backend:none", "host", 63));
  EXPECT_EQ("native", device.option("backend"));
  try {
    device.set_options("backend:none");
    FAIL() << "an open device keeps its backend";
  } catch (const millpond::Error& e) {
    EXPECT_EQ(std::uint32_t{MILLPOND_E_BUSY}, e.code());
  }
}

}  // namespace
