// DLPack in C++: what a consumer gets, whose the memory is, and what waits for what. Bad tensors
// are in tests/api/dlpack.rs.
#include <atomic>
#include <chrono>
#include <complex>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "millpond/millpond.hpp"
#include "support/check.hpp"
#include "support/devices.hpp"
#include "support/dlpack_layout.hpp"
#include "support/pattern.hpp"

namespace {

using millpond::Buffer;
using millpond::Device;
using millpond::DlpackTensor;
using millpond::ImportedTensor;
using millpond::Stream;

/// A tensor of a library that is not ours, over memory that is not ours.
class Foreign {
 public:
  explicit Foreign(std::vector<float> values) : values_(std::move(values)) {
    tensor_.version = {1, 0};
    tensor_.manager_ctx = this;
    tensor_.deleter = [](DLManagedTensorVersioned* self) {
      static_cast<Foreign*>(self->manager_ctx)->deleted_ = true;
    };
    tensor_.dl_tensor = {values_.data(), {1, 0}, 1, {2, 32, 1}, &size_, nullptr, 0};
    size_ = static_cast<std::int64_t>(values_.size());
  }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;
  DlpackTensor get() { return DlpackTensor(&tensor_); }
  DLManagedTensorVersioned* operator->() { return &tensor_; }
  bool deleted() const { return deleted_; }

 private:
  std::vector<float> values_;
  std::int64_t size_ = 0;
  DLManagedTensorVersioned tensor_{};
  bool deleted_ = false;
};

class Dlpack : public millpond_tests::DeviceTest {
 protected:
  Device device() const { return Device(device_); }
};

TEST_P(Dlpack, ABufferGoesOutAndTheConsumerFreesIt) {
  const millpond_device_info about = info(device_);
  const std::int64_t shape[] = {3, 4};
  Buffer buffer = device().allocate(sizeof(double) * 12);
  void* const address = buffer.data();
  DlpackTensor tensor = millpond::export_dlpack(buffer, millpond::dlpack_options<double>(shape, 2));
  EXPECT_FALSE(buffer) << "the tensor owns the block now";
  const bool processor = type_ == "host" || type_ == "cpu";
  EXPECT_EQ(processor ? 1 : type_ == "cuda" ? 2 : 12, tensor->dl_tensor.device.device_type);
  EXPECT_EQ(processor ? 0 : about.ordinal, tensor->dl_tensor.device.device_id);
  EXPECT_EQ(address, tensor->dl_tensor.data);
  EXPECT_EQ(2, tensor->dl_tensor.dtype.code);
  EXPECT_EQ(64, tensor->dl_tensor.dtype.bits);
  EXPECT_EQ(4, tensor->dl_tensor.shape[1]);
  EXPECT_EQ(4, tensor->dl_tensor.strides[0]);
  EXPECT_EQ(1u, stats().blocks.current);

  // The consumer is another thread of another library: it knows the deleter only.
  std::thread([raw = tensor.release()] { raw->deleter(raw); }).join();
  EXPECT_EQ(0u, stats().blocks.current);
}

TEST_P(Dlpack, ARefusedExportKeepsTheBuffer) {
  Buffer buffer = device().allocate(100);
  const std::int64_t shape[] = {26};
  EXPECT_THROW(millpond::export_dlpack(buffer, millpond::dlpack_options<float>(shape, 1)),
               millpond::Error);
  EXPECT_EQ(MILLPOND_E_OUT_OF_RANGE, millpond_last_error_code());
  EXPECT_TRUE(buffer);
  EXPECT_TRUE(millpond::export_dlpack_legacy(buffer, millpond::dlpack_options<float>()) != nullptr);
  EXPECT_FALSE(buffer);
}

TEST_P(Dlpack, ATensorOfOursComesBackAsABlock) {
  Buffer buffer = device().allocate(1024);
  void* const block = buffer.data();
  ImportedTensor in(device(), millpond::export_dlpack(buffer));
  EXPECT_EQ(block, in.view().block);
  EXPECT_EQ(device_, in.view().device);
  EXPECT_EQ(1024u, in.view().size_bytes);
  ImportedTensor moved(std::move(in));
  EXPECT_FALSE(in);
  EXPECT_TRUE(moved);
  moved.reset();
  EXPECT_EQ(nullptr, moved.view().block);
  EXPECT_EQ(0u, stats().blocks.current);
}

TEST_P(Dlpack, AConsumersStreamKeepsABlockOfOurs) {
  if (!can(MILLPOND_CAP_STREAMS | MILLPOND_CAP_CALLBACKS))
    GTEST_SKIP() << "no streams to hold back";
  const Stream producer(device()), consumer(device());
  Buffer buffer = device().default_pool().allocate(1 << 20, producer);
  void* const block = buffer.data();
  millpond_tests::Gate gate;
  {
    ImportedTensor in(device(), millpond::export_dlpack(buffer));
    ASSERT_OK(gate.close(device_, consumer.get()));
    consumer.memset(in.view().data, 7, 1 << 20);
    in.used_by(consumer);
  }  // given back while the fill is still queued
  Buffer next = device().default_pool().allocate(1 << 20, producer);
  EXPECT_NE(block, next.data()) << "the consumer's work would write into another's block";
  next.reset();
  gate.open();
  consumer.synchronize();
  producer.synchronize();
}

MILLPOND_FOR_ALL_DEVICES(Dlpack);

TEST(DlpackImport, TheMemoryOfOthersIsGivenBackWhenTheWorkIsDone) {
  const Device device("host");
  Foreign foreign(std::vector<float>(1 << 18, 1.5f));
  {
    const Stream stream(device);
    const Buffer target = device.allocate(sizeof(float) << 18);
    ImportedTensor in(device, foreign.get());
    EXPECT_EQ(nullptr, in.view().block);
    EXPECT_EQ(std::uint64_t{1} << 18, in.view().element_count);
    stream.add_callback([&foreign](C_Status) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      EXPECT_FALSE(foreign.deleted()) << "the deleter ran while work was queued";
    });
    stream.copy(millpond::CopyKind::kHostToDevice, target.data(), in.view().data,
                in.view().size_bytes);
    in.used_by(stream);
    in.used_by(stream);
    in.reset();
    EXPECT_TRUE(foreign.deleted());
    EXPECT_EQ(1.5f, target.as<float>()[(1 << 18) - 1]);
  }
}

TEST(DlpackImport, TheWorkOfAStreamThatHasEndedIsWaitedFor) {
  Foreign foreign({4});
  const Device device("host");
  std::atomic<bool> done{false};
  ImportedTensor in(device, foreign.get());
  {
    const Stream stream(device);
    stream.add_callback([&](C_Status) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_FALSE(foreign.deleted()) << "the deleter ran while work was queued";
      done = true;
    });
    in.used_by(stream);
  }
  in.reset();
  EXPECT_TRUE(done);
  EXPECT_TRUE(foreign.deleted());
}

TEST(DlpackImport, AStreamOfNoDeviceIsRefusedAndTheTensorGivenBack) {
  Foreign foreign({4});
  const Device device("host");
  ImportedTensor in(device, foreign.get());
  EXPECT_THROW(in.used_by(millpond::StreamView()), millpond::Error);
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, millpond_last_error_code());
  EXPECT_THROW(in.used_by(Stream()), millpond::Error);
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, millpond_last_error_code());
  in.used_by(device.default_stream());
  in.reset();
  EXPECT_TRUE(foreign.deleted());
}

TEST(DlpackImport, ARefusedTensorIsGivenBackOnce) {
  Foreign foreign({1, 2, 3});
  foreign->version.major = 2;
  EXPECT_THROW(ImportedTensor(Device("host"), foreign.get()), millpond::Error);
  EXPECT_EQ(MILLPOND_E_UNSUPPORTED, millpond_last_error_code());
  EXPECT_TRUE(foreign.deleted());

  Foreign elsewhere({1, 2, 3});
  elsewhere->dl_tensor.device = {2, 0};
  EXPECT_THROW(ImportedTensor(Device("host"), elsewhere.get()), millpond::Error);
  EXPECT_EQ(MILLPOND_E_INVALID_ARGUMENT, millpond_last_error_code());
  EXPECT_TRUE(elsewhere.deleted());
  EXPECT_THROW(ImportedTensor(Device("host"), DlpackTensor()), millpond::Error);
}

TEST(DlpackOptions, EveryElementTypeHasItsCode) {
  const auto code = [](const millpond_dlpack_options& o) {
    return std::pair<int, int>(o.dtype_code, o.dtype_bits);
  };
  EXPECT_EQ((std::pair<int, int>(0, 32)), code(millpond::dlpack_options<std::int32_t>()));
  EXPECT_EQ((std::pair<int, int>(1, 64)), code(millpond::dlpack_options<std::uint64_t>()));
  EXPECT_EQ((std::pair<int, int>(2, 64)), code(millpond::dlpack_options<double>()));
  EXPECT_EQ((std::pair<int, int>(5, 128)), code(millpond::dlpack_options<std::complex<double>>()));
  EXPECT_EQ((std::pair<int, int>(6, 8)), code(millpond::dlpack_options<bool>()));
}

}  // namespace
