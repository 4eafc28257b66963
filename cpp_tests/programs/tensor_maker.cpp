// The shared object that dlpack_unload.cpp opens and closes: a framework that gives a tensor away.
#include "millpond/millpond.hpp"

extern "C" __attribute__((visibility("default"))) DLManagedTensorVersioned* make_tensor() {
  millpond::Buffer block = millpond::Device("host").allocate(1 << 20);
  return millpond::export_dlpack(block).release();
}
