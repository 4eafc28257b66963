// See kernels.hpp. PTX ISA 7.0 is what the oldest driver reads that Millpond works with
// (CUDA 11.4).
#include "kernels.hpp"

#include <algorithm>

namespace gpu {
namespace {

const char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry fill(.param .u64 p_out, .param .u64 p_count, .param .u64 p_seed)
{
  .reg .pred %done;
  .reg .u32 %a, %b, %c, %first, %stride;
  .reg .u64 %out, %count, %seed, %i, %step, %x, %y, %at;
  ld.param.u64 %out, [p_out];
  ld.param.u64 %count, [p_count];
  ld.param.u64 %seed, [p_seed];
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
  add.u64 %x, %seed, %i;
  mul.lo.u64 %x, %x, 0x9E3779B97F4A7C15;
  shr.u64 %y, %x, 29;
  xor.b64 %x, %x, %y;
  shl.b64 %at, %i, 3;
  add.u64 %at, %at, %out;
  st.global.u64 [%at], %x;
  add.u64 %i, %i, %step;
  bra again;
finish:
  ret;
}

.visible .entry verify(.param .u64 p_in, .param .u64 p_count, .param .u64 p_seed, .param .u64 p_wrong)
{
  .reg .pred %done, %same;
  .reg .u32 %a, %b, %c, %first, %stride;
  .reg .u64 %in, %count, %seed, %wrong, %i, %step, %x, %y, %at;
  ld.param.u64 %in, [p_in];
  ld.param.u64 %count, [p_count];
  ld.param.u64 %seed, [p_seed];
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
  add.u64 %x, %seed, %i;
  mul.lo.u64 %x, %x, 0x9E3779B97F4A7C15;
  shr.u64 %y, %x, 29;
  xor.b64 %x, %x, %y;
  shl.b64 %at, %i, 3;
  add.u64 %at, %at, %in;
  ld.global.u64 %y, [%at];
  add.u64 %i, %i, %step;
  setp.eq.u64 %same, %x, %y;
  @%same bra again;
  red.global.add.u64 [%wrong], 1;
  bra again;
finish:
  ret;
}
)";

constexpr unsigned kThreads = 256;
constexpr unsigned kBlocksMax = 1024;

}  // namespace

Kernels::Kernels() {
  MILLPOND_GPU(cuMemAlloc_v2, &counter_, sizeof(std::uint64_t));
  MILLPOND_GPU(cuMemsetD8Async, counter_, 0, sizeof(std::uint64_t), nullptr);
  MILLPOND_GPU(cuCtxSynchronize);
  if (driver().fake) return;
  Handle module = nullptr;
  MILLPOND_GPU(cuModuleLoadData, &module, kPtx);
  MILLPOND_GPU(cuModuleGetFunction, &fill_, module, "fill");
  MILLPOND_GPU(cuModuleGetFunction, &verify_, module, "verify");
}

Kernels::~Kernels() { driver().cuMemFree_v2(counter_); }

void Kernels::launch(Handle function, void** arguments, std::size_t count, Handle stream) {
  const std::size_t blocks = std::min<std::size_t>((count + kThreads - 1) / kThreads, kBlocksMax);
  MILLPOND_GPU(cuLaunchKernel, function, static_cast<unsigned>(std::max<std::size_t>(blocks, 1)), 1,
               1, kThreads, 1, 1, 0, stream, arguments, nullptr);
}

void Kernels::fill(void* out, std::size_t count, std::uint64_t seed, Handle stream) {
  Ptr at = reinterpret_cast<Ptr>(out);
  if (!driver().fake) {
    unsigned long long words = count, start = seed;
    void* arguments[] = {&at, &words, &start};
    launch(fill_, arguments, count, stream);
    return;
  }
  auto words = std::make_unique<std::vector<std::uint64_t>>(count);
  for (std::size_t i = 0; i < count; ++i) (*words)[i] = word(seed, i);
  MILLPOND_GPU(cuMemcpyHtoDAsync_v2, at, words->data(), count * sizeof(std::uint64_t), stream);
  written_.push_back(std::move(words));
}

void Kernels::verify(const void* in, std::size_t count, std::uint64_t seed, Handle stream) {
  Ptr at = reinterpret_cast<Ptr>(in);
  if (!driver().fake) {
    unsigned long long words = count, start = seed;
    void* arguments[] = {&at, &words, &start, &counter_};
    launch(verify_, arguments, count, stream);
    return;
  }
  auto read = std::make_unique<Read>(Read{std::vector<std::uint64_t>(count), seed});
  MILLPOND_GPU(cuMemcpyDtoHAsync_v2, read->words.data(), at, count * sizeof(std::uint64_t), stream);
  read_.push_back(std::move(read));
}

std::uint64_t Kernels::wrong() {
  MILLPOND_GPU(cuCtxSynchronize);
  std::uint64_t found = 0;
  if (!driver().fake) {
    MILLPOND_GPU(cuMemcpyDtoHAsync_v2, &found, counter_, sizeof found, nullptr);
    MILLPOND_GPU(cuCtxSynchronize);
    return found;
  }
  for (const auto& read : read_) {
    for (std::size_t i = 0; i < read->words.size(); ++i) {
      if (read->words[i] != word(read->seed, i)) ++found;
    }
  }
  return found;
}

}  // namespace gpu
