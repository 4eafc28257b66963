// See tiny.h. Nothing passes out of here but statuses: each call catches what was thrown inside.
#include "tiny.h"

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "network.hpp"

namespace {

/// A session's insides. Tensors that were given out share them.
struct Inside {
  Inside(const char* type, int ordinal) : context(type, ordinal), network(context) {}
  tiny::Context context;
  tiny::Network network;
};

/// What a tensor that was given out keeps: the weights' memory, and everything it came from.
struct Given {
  std::shared_ptr<Inside> inside;
  tiny::Tensor weights;
};

thread_local std::string last_error;

/// Runs `call`; gives `failed` when it throws.
template <typename Result, typename Call>
Result guarded(Result failed, Call call) noexcept {
  try {
    return call();
  } catch (const std::exception& error) {
    try {
      last_error = error.what();
    } catch (...) {  // no memory for the message either
      last_error.clear();
    }
    return failed;
  } catch (...) {
    return failed;
  }
}

template <typename T>
T* not_null(T* pointer) {
  if (pointer == nullptr) throw std::invalid_argument("an argument is NULL");
  return pointer;
}

}  // namespace

struct tiny_session {
  std::shared_ptr<Inside> inside;
};

const char* tiny_last_error(void) { return last_error.c_str(); }

int tiny_configure_host(uint32_t devices, uint64_t capacity_bytes) {
  return guarded(-1, [=] { return millpond::configure_host(devices, capacity_bytes), 0; });
}

int tiny_load_plugin(const char* path, char* out_type, size_t capacity) {
  return guarded(-1, [=] {
    const std::string type = millpond::DeviceTypes::load(not_null(path));
    if (type.size() >= capacity) throw std::length_error("no room for the name of the type");
    std::memcpy(not_null(out_type), type.c_str(), type.size() + 1);
    return 0;
  });
}

int tiny_device_count(const char* type) {
  return guarded(
      -1, [=] { return static_cast<int>(millpond::DeviceTypes::device_count(not_null(type))); });
}

int tiny_device_stats(const char* type, int ordinal, tiny_stats* out) {
  return guarded(-1, [=] {
    const millpond_stats stats = millpond::Device(not_null(type), ordinal).stats();
    *not_null(out) = {stats.allocated_bytes.current, stats.reserved_bytes.current,
                      stats.blocks.current};
    return 0;
  });
}

void* tiny_alloc(const char* type, int ordinal, size_t size_bytes) {
  return guarded(static_cast<void*>(nullptr), [=] {
    return millpond::Device(not_null(type), ordinal).allocate(size_bytes).release();
  });
}

int tiny_free(void* memory) {
  return guarded(-1, [=] { return millpond::check(millpond_free(memory)), 0; });
}

tiny_session* tiny_session_create(const char* type, int ordinal) {
  return guarded(static_cast<tiny_session*>(nullptr), [=] {
    return new tiny_session{std::make_shared<Inside>(not_null(type), ordinal)};
  });
}

int tiny_session_train(tiny_session* session, int steps, float* out_losses) {
  return guarded(-1, [=] {
    for (int step = 0; step < steps; ++step) {
      const tiny::Tensor loss = not_null(session)->inside->network.step();
      if (out_losses != nullptr) out_losses[step] = loss.get()[0];
    }
    return 0;
  });
}

void* tiny_session_weights(tiny_session* session, int legacy) {
  return guarded(static_cast<void*>(nullptr), [=]() -> void* {
    const std::shared_ptr<Inside>& inside = not_null(session)->inside;
    const tiny::Tensor& weights = inside->network.weights();
    // A consumer knows nothing of our streams: what it gets must be there.
    inside->context.compute.synchronize();
    const std::int64_t shape[] = {static_cast<std::int64_t>(weights.rows()),
                                  static_cast<std::int64_t>(weights.columns())};
    millpond_dlpack_options options = millpond::dlpack_options<float>(shape, 2);
    // The framework keeps the block itself, and counts who uses it.
    auto given = std::make_unique<Given>(Given{inside, weights});
    options.user_data = given.get();
    options.release = [](void* data) { delete static_cast<Given*>(data); };
    void* out = nullptr;
    if (legacy != 0) {
      DLManagedTensor* tensor = nullptr;
      millpond::check(millpond_dlpack_export_legacy(weights.data(), &options, &tensor));
      out = tensor;
    } else {
      DLManagedTensorVersioned* tensor = nullptr;
      millpond::check(millpond_dlpack_export(weights.data(), &options, &tensor));
      out = tensor;
    }
    (void)given.release();  // the tensor's deleter ends it now
    return out;
  });
}

void tiny_session_destroy(tiny_session* session) { delete session; }
