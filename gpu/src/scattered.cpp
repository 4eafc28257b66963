// Blocks of scattered granules under kernels: that scattering really happened, what such memory
// costs beside cuMemAlloc (bandwidth, random reads far apart, a product of matrices), and what a
// dependent launch finds in a block whose memory the kernel before it has written at another
// address (docs/cuda.md, "Kernels that overlap others").
//
//   scattered [--small]    (--small: for the fake driver and for slow tools)
#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "report.hpp"

namespace {

using gpu::check;
using gpu::driver;
using gpu::Handle;
using gpu::Ptr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kGranule = 2 * kMiB;

const char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry gather(.param .u64 p_in, .param .u64 p_mask, .param .u32 p_reads, .param .u64 p_out)
{
  .reg .pred %more;
  .reg .u32 %a, %b, %c, %first, %left;
  .reg .u64 %in, %mask, %out, %x, %y, %at, %sum;
  ld.param.u64 %in, [p_in];
  ld.param.u64 %mask, [p_mask];
  ld.param.u32 %left, [p_reads];
  ld.param.u64 %out, [p_out];
  cvta.to.global.u64 %in, %in;
  cvta.to.global.u64 %out, %out;
  mov.u32 %a, %tid.x;
  mov.u32 %b, %ntid.x;
  mov.u32 %c, %ctaid.x;
  mad.lo.u32 %first, %c, %b, %a;
  cvt.u64.u32 %x, %first;
  add.u64 %x, %x, 1;
  mov.u64 %sum, 0;
again:
  mul.lo.u64 %x, %x, 0x9E3779B97F4A7C15;
  shr.u64 %y, %x, 29;
  xor.b64 %x, %x, %y;
  and.b64 %y, %x, %mask;
  shl.b64 %at, %y, 3;
  add.u64 %at, %at, %in;
  ld.global.u64 %y, [%at];
  add.u64 %sum, %sum, %y;
  sub.u32 %left, %left, 1;
  setp.ne.u32 %more, %left, 0;
  @%more bra again;
  red.global.add.u64 [%out], %sum;
  ret;
}

.visible .entry product(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u32 p_n)
{
  .reg .pred %more;
  .reg .u32 %t, %d, %row, %column, %n, %k, %i;
  .reg .u64 %a, %b, %c, %at, %step;
  .reg .f32 %x, %y, %sum;
  ld.param.u64 %a, [p_a];
  ld.param.u64 %b, [p_b];
  ld.param.u64 %c, [p_c];
  ld.param.u32 %n, [p_n];
  cvta.to.global.u64 %a, %a;
  cvta.to.global.u64 %b, %b;
  cvta.to.global.u64 %c, %c;
  mov.u32 %t, %tid.x;
  mov.u32 %d, %ctaid.x;
  mad.lo.u32 %column, %d, 256, %t;
  mov.u32 %row, %ctaid.y;
  mul.lo.u32 %i, %row, %n;
  mul.wide.u32 %at, %i, 4;
  add.u64 %a, %a, %at;
  mul.wide.u32 %at, %column, 4;
  add.u64 %b, %b, %at;
  mul.wide.u32 %step, %n, 4;
  mov.u32 %k, %n;
  mov.f32 %sum, 0f00000000;
again:
  ld.global.f32 %x, [%a];
  ld.global.f32 %y, [%b];
  fma.rn.f32 %sum, %x, %y, %sum;
  add.u64 %a, %a, 4;
  add.u64 %b, %b, %step;
  sub.u32 %k, %k, 1;
  setp.ne.u32 %more, %k, 0;
  @%more bra again;
  add.u32 %i, %i, %column;
  mul.wide.u32 %at, %i, 4;
  add.u64 %c, %c, %at;
  st.global.f32 [%c], %sum;
  ret;
}
)";

// A kernel that lets the next one begin at once and then writes a number, and one that waits for
// all before it and counts the words that are not the number.
const char kDependent[] = R"(
.version 7.8
.target sm_90
.address_size 64

.visible .entry early(.param .u64 p_out, .param .u64 p_count, .param .u64 p_value)
{
  .reg .pred %done;
  .reg .u32 %a, %b, %c, %first, %stride;
  .reg .u64 %out, %count, %value, %i, %step, %at;
  griddepcontrol.launch_dependents;
  ld.param.u64 %out, [p_out];
  ld.param.u64 %count, [p_count];
  ld.param.u64 %value, [p_value];
  cvta.to.global.u64 %out, %out;
  mov.u32 %a, %tid.x;
  mov.u32 %b, %ntid.x;
  mov.u32 %c, %ctaid.x;
  mad.lo.u32 %first, %c, %b, %a;
  mov.u32 %c, %nctaid.x;
  mul.lo.u32 %stride, %c, %b;
  cvt.u64.u32 %i, %first;
  cvt.u64.u32 %step, %stride;
again:
  setp.ge.u64 %done, %i, %count;
  @%done bra finish;
  shl.b64 %at, %i, 3;
  add.u64 %at, %at, %out;
  st.global.u64 [%at], %value;
  add.u64 %i, %i, %step;
  bra again;
finish:
  ret;
}

.visible .entry late(.param .u64 p_in, .param .u64 p_count, .param .u64 p_value, .param .u64 p_wrong)
{
  .reg .pred %done, %same;
  .reg .u32 %a, %b, %c, %first, %stride;
  .reg .u64 %in, %count, %value, %wrong, %i, %step, %x, %at;
  griddepcontrol.wait;
  ld.param.u64 %in, [p_in];
  ld.param.u64 %count, [p_count];
  ld.param.u64 %value, [p_value];
  ld.param.u64 %wrong, [p_wrong];
  cvta.to.global.u64 %in, %in;
  cvta.to.global.u64 %wrong, %wrong;
  mov.u32 %a, %tid.x;
  mov.u32 %b, %ntid.x;
  mov.u32 %c, %ctaid.x;
  mad.lo.u32 %first, %c, %b, %a;
  mov.u32 %c, %nctaid.x;
  mul.lo.u32 %stride, %c, %b;
  cvt.u64.u32 %i, %first;
  cvt.u64.u32 %step, %stride;
again:
  setp.ge.u64 %done, %i, %count;
  @%done bra finish;
  shl.b64 %at, %i, 3;
  add.u64 %at, %at, %in;
  ld.global.u64 %x, [%at];
  add.u64 %i, %i, %step;
  setp.eq.u64 %same, %x, %value;
  @%same bra again;
  red.global.add.u64 [%wrong], 1;
  bra again;
finish:
  ret;
}
)";

struct Device {
  millpond_device* device = nullptr;
  millpond_pool* pool = nullptr;
  C_Stream stream = nullptr;

  void* alloc(std::size_t size) {
    void* at = nullptr;
    check(millpond_pool_alloc(pool, size, stream, &at));
    return at;
  }
  void free(void* at) { check(millpond_pool_free(pool, at, stream)); }
  millpond_stats stats() {
    millpond_stats s{};
    s.struct_size = sizeof s;
    check(millpond_device_get_stats(device, &s));
    return s;
  }
  Handle handle() const { return reinterpret_cast<Handle>(stream); }
};

Ptr address(void* at) { return reinterpret_cast<Ptr>(at); }

Handle function(const char* ptx, const char* name) {
  Handle module = nullptr, out = nullptr;
  MILLPOND_GPU(cuModuleLoadData, &module, ptx);
  MILLPOND_GPU(cuModuleGetFunction, &out, module, name);
  return out;
}

/// Which granules of those that were made one after the other a block is put together from.
enum class From { other, any, first };

const char* name_of(From from) {
  return from == From::other ? "every other granule"
         : from == From::any ? "granules at random"
                             : "granules in a row";
}

/// A block that is put together from granules: memory of twice its size is full of blocks of a
/// granule, half of them go, and the limit lets no more come.
class Holes {
 public:
  Holes(Device& device, std::size_t bytes, From from = From::other) : device_(device) {
    check(millpond_device_set_limit(device.device, 2 * bytes));
    for (std::size_t done = 0; done < 2 * bytes; done += kGranule)
      all_.push_back(device.alloc(kGranule));
    // Those that go stand at the even places.
    const std::size_t half = all_.size() / 2;
    if (from == From::any) std::shuffle(all_.begin(), all_.end(), std::mt19937_64(7));
    if (from == From::first) {
      std::vector<void*> mixed;
      for (std::size_t i = 0; i < half; ++i) mixed.insert(mixed.end(), {all_[i], all_[half + i]});
      all_ = mixed;
    }
  }
  /// Frees every other block, after `use` has queued what it wants with them.
  void open(const std::function<void(void*)>& use = [](void*) {}) {
    for (std::size_t i = 0; i < all_.size(); i += 2) use(all_[i]);
    for (std::size_t i = 0; i < all_.size(); i += 2) device_.free(all_[i]);
  }
  void close() {
    for (std::size_t i = 1; i < all_.size(); i += 2) device_.free(all_[i]);
    check(millpond_device_synchronize(device_.device));
    check(millpond_device_set_limit(device_.device, 0));
    check(millpond_device_empty_cache(device_.device));
  }

 private:
  Device& device_;
  std::vector<void*> all_;
};

/// The shortest of some runs, in milliseconds.
double best_ms(Handle stream, const std::function<void()>& queue) {
  Handle begin = nullptr, end = nullptr;
  MILLPOND_GPU(cuEventCreate, &begin, 0);
  MILLPOND_GPU(cuEventCreate, &end, 0);
  float best = 1e30f;
  for (int run = 0; run < 7; ++run) {
    MILLPOND_GPU(cuEventRecord, begin, stream);
    queue();
    MILLPOND_GPU(cuEventRecord, end, stream);
    MILLPOND_GPU(cuEventSynchronize, end);
    float ms = 0;
    MILLPOND_GPU(cuEventElapsedTime, &ms, begin, end);
    if (run > 1) best = std::min(best, ms);
  }
  return static_cast<double>(best);
}

/// What some operations on a range of memory take.
struct Costs {
  double fill_ms, copy_ms, gather_ms, product_ms;
};

Costs costs(Ptr at, std::size_t bytes, Handle gather, Handle product, Handle stream) {
  Costs out{};
  const std::size_t half = bytes / 2;
  out.fill_ms = best_ms(stream, [&] { MILLPOND_GPU(cuMemsetD8Async, at, 1, bytes, stream); });
  out.copy_ms =
      best_ms(stream, [&] { MILLPOND_GPU(cuMemcpyDtoDAsync_v2, at + half, at, half, stream); });
  unsigned long long mask = 1;
  while ((mask << 1) * sizeof(std::uint64_t) <= bytes) mask <<= 1;
  mask -= 1;
  unsigned reads = 256;
  Ptr sum = 0;
  MILLPOND_GPU(cuMemAlloc_v2, &sum, sizeof(std::uint64_t));
  void* of_gather[] = {&at, &mask, &reads, &sum};
  out.gather_ms = best_ms(stream, [&] {
    MILLPOND_GPU(cuLaunchKernel, gather, 4096, 1, 1, 256, 1, 1, 0, stream, of_gather, nullptr);
  });
  // Three matrices as far apart as the memory lets them be.
  unsigned n = 4096;
  while (std::size_t{3} * n * n * 4 > bytes) n /= 2;
  const std::size_t apart = (bytes / 3) & ~std::size_t{255};
  Ptr a = at, b = at + apart, c = at + 2 * apart;
  void* of_product[] = {&a, &b, &c, &n};
  out.product_ms = best_ms(stream, [&] {
    MILLPOND_GPU(cuLaunchKernel, product, std::max(n / 256, 1u), n, 1, 256, 1, 1, 0, stream,
                 of_product, nullptr);
  });
  MILLPOND_GPU(cuMemFree_v2, sum);
  return out;
}

/// Scattered memory under kernels, and beside the driver's own.
void scattered(gpu::Report& report, Device& cuda, std::size_t bytes) {
  Costs theirs{};
  Handle gather = nullptr, product = nullptr;
  if (!driver().fake) {
    gather = function(kPtx, "gather");
    product = function(kPtx, "product");
    Ptr plain = 0;
    MILLPOND_GPU(cuMemAlloc_v2, &plain, bytes);
    theirs = costs(plain, bytes, gather, product, cuda.handle());
    MILLPOND_GPU(cuMemFree_v2, plain);
  }
  for (const From from : {From::other, From::any, From::first}) {
    gpu::Kernels kernels;
    Holes holes(cuda, bytes, from);
    holes.open();
    const std::uint64_t before = cuda.stats().reserved_bytes.current;
    void* block = cuda.alloc(bytes);
    const std::uint64_t after = cuda.stats().reserved_bytes.current;
    const std::string what = gpu::bytes(bytes) + " of " + name_of(from);
    report.row("a block, " + what, gpu::bytes(after - before) + " more reserved", "0 more",
               after == before);
    const std::size_t words = bytes / sizeof(std::uint64_t);
    kernels.fill(block, words, 5, cuda.handle());
    kernels.verify(block, words, 5, cuda.handle());
    const std::uint64_t wrong = kernels.wrong();
    report.row("its contents, " + what, std::to_string(wrong) + " wrong words", "0", wrong == 0);
    if (!driver().fake) {
      const Costs ours = costs(address(block), bytes, gather, product, cuda.handle());
      const auto beside = [&](const char* name, double mine, double other) {
        report.info(std::string(name) + " on " + what, gpu::number(mine, "ms"),
                    "cuMemAlloc: " + gpu::number(other, "ms"));
      };
      beside("a fill", ours.fill_ms, theirs.fill_ms);
      beside("a copy of one half to the other", ours.copy_ms, theirs.copy_ms);
      beside("268 million random reads", ours.gather_ms, theirs.gather_ms);
      beside("a product of matrices", ours.product_ms, theirs.product_ms);
    }
    cuda.free(block);
    holes.close();
  }
  if (driver().fake) {
    report.skip("bandwidth, random reads and a product of matrices",
                "no kernels on the fake driver");
  }
}

/// CUlaunchConfig and CUlaunchAttribute, as the driver's documentation has them.
struct Attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int allowed;
  } value;
};
struct Launch {
  unsigned grid[3], block[3], shared;
  Handle stream;
  Attribute* attributes;
  unsigned count;
};

/// Pairs of dependent launches: the first kernel writes blocks that are then freed, the second
/// reads a block that has their memory, scattered, at another address. `scatter`: or, where that is
/// off, at the same.
void dependent(gpu::Report& report, Device& cuda, bool scatter) {
  const std::string name = std::string("a dependent launch on freed memory, ") +
                           (scatter ? "scattered" : "scatter:off, at its own address");
  int major = 0;
  MILLPOND_GPU(cuDeviceGetAttribute, &major, 75,
               0);  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  if (!driver().fake && (major < 9 || driver().cuLaunchKernelEx == nullptr)) {
    report.skip(name, "the card has no dependent launches (9.0)");
    return;
  }
  check(millpond_device_set_options(cuda.device, scatter ? "scatter:on" : "scatter:off"));
  constexpr std::size_t kBytes = 16 * kGranule;
  const std::size_t one = scatter ? kGranule : kBytes;
  Handle early = nullptr, late = nullptr;
  Ptr counter = 0;
  if (!driver().fake) {
    early = function(kDependent, "early");
    late = function(kDependent, "late");
    MILLPOND_GPU(cuMemAlloc_v2, &counter, sizeof(std::uint64_t));
    MILLPOND_GPU(cuMemsetD8Async, counter, 0, sizeof(std::uint64_t), cuda.handle());
  }
  const std::uint64_t reported = driver().fake ? driver().fake_aliases() : 0;
  unsigned long long fake_id = 0;
  if (driver().fake) MILLPOND_GPU(cuStreamGetId, cuda.handle(), &fake_id);
  const auto launch = [&](Handle kernel, void** arguments, Ptr at, std::size_t size, bool reads,
                          bool overlaps) {
    if (driver().fake) {
      const std::uint64_t span[1][2] = {{at, size}};
      gpu::need(driver().fake_kernel(fake_id, reads ? span : nullptr, reads, reads ? nullptr : span,
                                     !reads, overlaps ? 1 : 0, nullptr, nullptr, nullptr),
                "fakecuda_kernel");
      return;
    }
    Attribute attribute{};
    attribute.id = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.allowed = 1;
    Launch how{{64, 1, 1}, {256, 1, 1}, 0, cuda.handle(), &attribute, overlaps ? 1u : 0u};
    MILLPOND_GPU(cuLaunchKernelEx, &how, kernel, arguments, nullptr);
  };
  const int rounds = driver().fake ? 1 : 200;
  for (int round = 0; round < rounds; ++round) {
    Holes holes(cuda, kBytes);
    unsigned long long value = static_cast<unsigned long long>(round) + 1;
    bool first = true;
    const auto write = [&](void* at, std::size_t size) {
      Ptr to = address(at);
      unsigned long long words = size / sizeof(std::uint64_t);
      void* arguments[] = {&to, &words, &value};
      launch(early, arguments, to, size, false, !first);
      first = false;
    };
    void* whole = nullptr;
    if (scatter) {
      holes.open([&](void* at) { write(at, one); });
    } else {
      check(millpond_device_set_limit(cuda.device, 0));
      whole = cuda.alloc(kBytes);
      write(whole, kBytes);
      cuda.free(whole);
    }
    void* block = cuda.alloc(kBytes);
    Ptr from = address(block);
    unsigned long long words = kBytes / sizeof(std::uint64_t);
    void* arguments[] = {&from, &words, &value, &counter};
    launch(late, arguments, from, kBytes, true, true);
    cuda.free(block);
    if (!scatter) holes.open();
    holes.close();
  }
  std::uint64_t wrong = 0;
  if (driver().fake) {
    wrong = driver().fake_aliases() - reported;
    report.row(name + ", reports", std::to_string(wrong), scatter ? "some" : "0",
               (wrong != 0) == scatter);
  } else {
    MILLPOND_GPU(cuCtxSynchronize);
    MILLPOND_GPU(cuMemcpyDtoHAsync_v2, &wrong, counter, sizeof wrong, nullptr);
    MILLPOND_GPU(cuCtxSynchronize);
    MILLPOND_GPU(cuMemFree_v2, counter);
    const std::string value =
        std::to_string(wrong) + " stale words in " + std::to_string(rounds) + " rounds";
    if (scatter) {
      report.info(name, value, "the guide promises nothing");
    } else {
      report.row(name, value, "0", wrong == 0);
    }
  }
  check(millpond_device_set_options(cuda.device, "scatter:on"));
}

}  // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  gpu::start();
  gpu::Report report("scattered");
  Device cuda;
  check(millpond_device_get("cuda", 0, &cuda.device));
  check(millpond_device_get_default_pool(cuda.device, &cuda.pool));
  check(millpond_stream_create(cuda.device, &cuda.stream));
  std::size_t free = 0, total = 0;
  MILLPOND_GPU(cuMemGetInfo_v2, &free, &total);
  // Twice that is held at once; as much as 32 GiB, far beyond what the card's tables of addresses
  // reach.
  std::size_t bytes = small ? 32 * kMiB : 32 * kGiB;
  while (bytes > 32 * kMiB && 2 * bytes + kGiB > free) bytes /= 2;
  dependent(report, cuda, true);
  dependent(report, cuda, false);
  scattered(report, cuda, bytes);
  check(millpond_stream_destroy(cuda.device, cuda.stream));
  check(millpond_finalize());
  return report.status();
}
