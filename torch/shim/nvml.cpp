// libnvidia-ml.so.1 of the fake driver's machine: as many GPUs as FAKECUDA_DEVICES says, with the
// fake's UUIDs and bus ids. Every machine with a driver has this library; PyTorch and allocators
// count GPUs with it without starting CUDA.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
int devices() {
  const char* text = std::getenv("FAKECUDA_DEVICES");
  return text != nullptr ? std::atoi(text) : 1;
}
void* handle(int index) { return reinterpret_cast<void*>(static_cast<long>(index) + 1); }
int index_of(void* device) { return static_cast<int>(reinterpret_cast<long>(device)) - 1; }
enum { kSuccess = 0, kInvalid = 2, kNotSupported = 3, kNotFound = 6 };
}  // namespace

extern "C" {
int nvmlInit() { return kSuccess; }
int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int) { return "fake NVML"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(devices());
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** out) {
  if (static_cast<int>(index) >= devices()) return kInvalid;
  *out = handle(static_cast<int>(index));
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* text, void** out) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(text, "%x:%x:", &domain, &bus) != 2 || bus < 1 ||
      static_cast<int>(bus) > devices())
    return kNotFound;
  *out = handle(static_cast<int>(bus) - 1);
  return kSuccess;
}
int nvmlDeviceGetUUID(void* device, char* out, unsigned room) {
  unsigned char bytes[17] = "fakecuda-device";
  bytes[15] = static_cast<unsigned char>('A' + index_of(device));
  char text[64] = "GPU-";
  std::size_t at = 4;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text[at++] = '-';
    at += static_cast<std::size_t>(std::snprintf(text + at, sizeof text - at, "%02x", bytes[i]));
  }
  if (room <= at) return kInvalid;
  std::memcpy(out, text, at + 1);
  return kSuccess;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  const char* text = std::getenv("FAKECUDA_DRIVER");
  *version = text != nullptr ? std::atoi(text) : 12080;
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }
}
