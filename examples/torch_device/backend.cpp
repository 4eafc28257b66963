// A new device for PyTorch, "pond": its memory is a Millpond pool on the embedded device type
// `host`, its streams are Millpond's, and its kernels are the processor's own. A vendor's back end
// looks the same with the vendor's device type, streams and kernels in their places.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <millpond/torch/device_allocator.hpp>

namespace {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kMost = 64;

void check(C_Status status) { TORCH_CHECK(status == C_SUCCESS, millpond_last_error_message()); }

millpond_device* device_of(c10::DeviceIndex index) {
  millpond_device* device = nullptr;
  check(millpond_device_get("host", index, &device));
  return device;
}

// ---- What Millpond's allocator asks of a back end. ----

// A stream's number is its handle; 0 is the default stream.
thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, kMost> streams{};

struct Pond {
  static constexpr const char* kType = "host";
  static c10::DeviceIndex current_device() { return current; }
  static c10::Stream current_stream(c10::DeviceIndex device) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device),
                       streams.at(static_cast<std::size_t>(device)));
  }
  static C_Stream native(c10::Stream stream) { return reinterpret_cast<C_Stream>(stream.id()); }
};

millpond::torch::DeviceAllocator<Pond>& allocator() {
  static auto* const one =
      new millpond::torch::DeviceAllocator<Pond>;  // PyTorch keeps it to the end
  return *one;
}

// ---- Devices, streams and events, for PyTorch's guards. ----

// An event, and the device that it belongs to.
struct Event {
  C_Event event;
  millpond_device* device;
};
const Event& event_of(void* event) { return *static_cast<Event*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device getDevice() const override { return {kDeviceType, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < deviceCount(), "there is no ", device);
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override {
    std::size_t count = 0;
    return millpond_device_get_count("host", &count) == C_SUCCESS
               ? static_cast<c10::DeviceIndex>(count)
               : 0;
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    check(millpond_device_synchronize(device_of(device)));
  }

  c10::Stream getStream(c10::Device device) const override {
    return Pond::current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const c10::Device on(kDeviceType, device.has_index() ? device.index() : current);
    C_Stream stream = nullptr;
    check(millpond_stream_create(device_of(on.index()), &stream));
    return c10::Stream(c10::Stream::UNSAFE, on, reinterpret_cast<c10::StreamId>(stream));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    streams.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    bool done = false;
    check(millpond_stream_query(device_of(stream.device_index()), Pond::native(stream), &done));
    return done;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    check(millpond_stream_synchronize(device_of(stream.device_index()), Pond::native(stream)));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex index,
              c10::EventFlag) const override {
    millpond_device* const device = device_of(index);
    if (*event == nullptr) {
      C_Event made = nullptr;
      check(millpond_event_create(device, &made));
      *event = new Event{made, device};
    }
    check(millpond_event_record(device, Pond::native(stream), event_of(*event).event));
  }
  void block(void* event, const c10::Stream& stream) const override {
    check(millpond_stream_wait_event(device_of(stream.device_index()), Pond::native(stream),
                                     event_of(event).event));
  }
  bool queryEvent(void* event) const override {
    bool done = true;
    if (event != nullptr) {
      check(millpond_event_query(event_of(event).device, event_of(event).event, &done));
    }
    return done;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      check(millpond_event_synchronize(event_of(event).device, event_of(event).event));
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event == nullptr) return;
    (void)millpond_event_destroy(event_of(event).device, event_of(event).event);
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& stream) const override {
    allocator().recordStream(ptr, stream);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return Guard().deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return Guard().deviceCount(); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    Guard().setDevice({kDeviceType, device});
  }
};

// ---- Tensors. ----

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

struct Where {
  explicit Where(std::optional<c10::Device> device)
      : guard(c10::Device(kDeviceType, device && device->has_index() ? device->index() : current)) {
  }
  c10::DeviceGuard guard;
};

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  const Where where(device);
  return at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const Where where(device);
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

// The tensor's memory as a tensor of the processor, which can use it once the stream is done.
at::Tensor in_place(const at::Tensor& t) {
  if (t.is_cpu()) return t;
  Guard().synchronizeStream(Pond::current_stream(t.device().index()));
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(c10::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool plain = from.dtype() == to.dtype() && from.sizes() == to.sizes() &&
                     from.is_contiguous() && to.is_contiguous();
  if (!plain || from.device().type() == to.device().type()) {
    in_place(to).copy_(in_place(from));
    return to;
  }
  const bool up = from.is_cpu();
  const c10::DeviceIndex index = (up ? to : from).device().index();
  const c10::Stream stream = Pond::current_stream(index);
  check(millpond_copy_async(device_of(index), Pond::native(stream),
                            up ? MILLPOND_COPY_H2D : MILLPOND_COPY_D2H, to.data_ptr(),
                            from.const_data_ptr(), to.nbytes()));
  if (!non_blocking) Guard().synchronizeStream(stream);
  return to;
}

const at::Tensor& resize(const at::Tensor& t, c10::IntArrayRef size,
                         std::optional<c10::MemoryFormat>) {
  const Where where(t.device());
  const std::size_t bytes =
      at::detail::computeStorageNbytesContiguous(size, t.dtype().itemsize(), t.storage_offset());
  c10::Storage storage = t.storage();
  if (storage.nbytes() < bytes) {
    c10::DataPtr larger = allocator().allocate(bytes);
    allocator().copy_data(larger.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(larger));
    storage.set_nbytes(bytes);
  }
  t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return t;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) resize(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& t) { return in_place(t).item(); }

void record_stream(at::Tensor& t, c10::Stream stream) {
  allocator().recordStream(t.storage().data_ptr(), stream);
}

// Whatever has no kernel runs on the processor: its arguments are copied there, and its results
// back.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

at::Tensor as_strided(const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<std::int64_t> offset) {
  return at::cpu::as_strided(t, size, stride, offset);
}
at::Tensor view(const at::Tensor& t, c10::IntArrayRef size) { return at::cpu::view(t, size); }
at::Tensor& set_storage(at::Tensor& t, at::Storage storage, std::int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::cpu::set_(t, std::move(storage), offset, size, stride);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("record_stream", record_stream);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("set_.source_Storage_storage_offset", set_storage);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

const bool registered = [] {
  c10::SetAllocator(kDeviceType, &allocator(), 0);
  static auto* const hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
  return true;
}();

}  // namespace
