// What the driver's mapping calls cost on this card, by the size of a handle and by what it is made
// for, and whether the driver answers as the fake driver of the tests believes. The library is not
// used. The costs are what `FAKECUDA_COSTS` should be; a belief that is wrong is to be mended in
// `fakecuda/`.
//
//   mapping [--small | --long]
//
// --long takes up to 100 s, in place of 15, to find how many mappings a context can have.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "raw.hpp"
#include "report.hpp"

namespace {

using gpu::Access;
using gpu::driver;
using gpu::Kind;
using gpu::Ptr;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kGranule = 2 * kMiB;

double micros(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

double median(std::vector<double>& all) {
  std::sort(all.begin(), all.end());
  return all.empty() ? 0 : all[all.size() / 2];
}

std::string micro(double value) { return gpu::number(value, "us"); }

/// Times of one handle's life.
struct Costs {
  std::vector<double> create, map, open, unmap, release;

  std::string text() {
    return "create " + micro(median(create)) + ", map " + micro(median(map)) + ", access " +
           micro(median(open)) + ", unmap " + micro(median(unmap)) + ", release " +
           micro(median(release));
  }
};

/// One life of a handle at `at`. False: the driver does not make such memory.
bool live(Ptr at, std::size_t bytes, const Kind& kind, Costs& costs) {
  std::uint64_t handle = 0;
  const Access access;
  auto begin = Clock::now();
  if (driver().cuMemCreate(&handle, bytes, &kind, 0) != 0) return false;
  costs.create.push_back(micros(begin));
  begin = Clock::now();
  MILLPOND_GPU(cuMemMap, at, bytes, 0, handle, 0);
  costs.map.push_back(micros(begin));
  begin = Clock::now();
  MILLPOND_GPU(cuMemSetAccess, at, bytes, &access, 1);
  costs.open.push_back(micros(begin));
  begin = Clock::now();
  MILLPOND_GPU(cuMemUnmap, at, bytes);
  costs.unmap.push_back(micros(begin));
  begin = Clock::now();
  MILLPOND_GPU(cuMemRelease, handle);
  costs.release.push_back(micros(begin));
  return true;
}

void costs_by_size(gpu::Report& report, Ptr at, bool small) {
  struct Made {
    const char* name;
    int fd;
    unsigned char rdma;
  };
  for (const std::size_t mib : {2, 8, 20, 32, 64}) {
    for (const Made& made :
         {Made{"plain", 0, 0}, Made{"descriptors", 1, 0}, Made{"descriptors, RDMA", 1, 1}}) {
      Kind kind;
      kind.handle_types = made.fd;
      kind.rdma = made.rdma;
      Costs costs;
      const std::string name = "a handle of " + std::to_string(mib) + " MiB, " + made.name;
      bool can = true;
      for (int i = 0; can && i < (small ? 3 : 50); ++i) can = live(at, mib * kMiB, kind, costs);
      if (can) {
        report.info(name, costs.text());
      } else {
        report.skip(name, "the driver makes none");
      }
    }
  }
}

/// Sixteen handles side by side: opened and unmapped one by one, and by one call for all.
void runs(gpu::Report& report, Ptr at) {
  const Kind kind;
  const Access access;
  std::vector<std::uint64_t> handles(16);
  for (auto& handle : handles) MILLPOND_GPU(cuMemCreate, &handle, kGranule, &kind, 0);
  const auto map = [&] {
    for (std::size_t i = 0; i < handles.size(); ++i) {
      MILLPOND_GPU(cuMemMap, at + i * kGranule, kGranule, 0, handles[i], 0);
    }
  };
  const auto all = handles.size() * kGranule;
  map();
  auto begin = Clock::now();
  for (std::size_t i = 0; i < handles.size(); ++i) {
    MILLPOND_GPU(cuMemSetAccess, at + i * kGranule, kGranule, &access, 1);
  }
  const double open_each = micros(begin);
  begin = Clock::now();
  for (std::size_t i = 0; i < handles.size(); ++i)
    MILLPOND_GPU(cuMemUnmap, at + i * kGranule, kGranule);
  const double unmap_each = micros(begin);
  map();
  begin = Clock::now();
  const int opened = driver().cuMemSetAccess(at, all, &access, 1);
  const double open_all = micros(begin);
  report.info("access to 16 handles: one call, or 16",
              opened == 0 ? micro(open_all) + ", " + micro(open_each) : driver().name(opened));
  begin = Clock::now();
  const int unmapped = driver().cuMemUnmap(at, all);
  const double unmap_all = micros(begin);
  report.info("unmapping 16 handles: one call, or 16",
              unmapped == 0 ? micro(unmap_all) + ", " + micro(unmap_each) : driver().name(unmapped),
              "fake: one call is taken");
  if (unmapped != 0) {
    for (std::size_t i = 0; i < handles.size(); ++i) {
      MILLPOND_GPU(cuMemUnmap, at + i * kGranule, kGranule);
    }
  }
  for (const auto handle : handles) MILLPOND_GPU(cuMemRelease, handle);
}

/// What the driver says of addresses in mapped memory.
void beliefs(gpu::Report& report, Ptr at, std::size_t reserved) {
  const Kind kind;
  const Access access;
  std::uint64_t small = 0, large = 0;
  MILLPOND_GPU(cuMemCreate, &small, kGranule, &kind, 0);
  MILLPOND_GPU(cuMemCreate, &large, 2 * kGranule, &kind, 0);
  MILLPOND_GPU(cuMemMap, at, kGranule, 0, small, 0);
  MILLPOND_GPU(cuMemMap, at + kGranule, 2 * kGranule, 0, large, 0);
  MILLPOND_GPU(cuMemMap, at + 4 * kGranule, kGranule, 0, small, 0);
  MILLPOND_GPU(cuMemSetAccess, at, 3 * kGranule, &access, 1);
  MILLPOND_GPU(cuMemSetAccess, at + 4 * kGranule, kGranule, &access, 1);
  const auto say = [&](const std::string& name, const std::string& value, const std::string& fake) {
    report.info(name, value + (value == fake ? "" : "; NOT AS THE FAKE DRIVER"), "fake: " + fake);
  };
  Ptr base = 0;
  std::size_t size = 0;
  MILLPOND_GPU(cuMemGetAddressRange_v2, &base, &size, at + kGranule + 5);
  say("cuMemGetAddressRange", gpu::bytes(size) + " from " + gpu::bytes(base - at),
      gpu::bytes(2 * kGranule) + " from " + gpu::bytes(kGranule));
  const auto ask = [&](int which, Ptr where) -> std::string {
    unsigned long long value = 0;
    const int code = driver().cuPointerGetAttribute(&value, which, where);
    return code == 0 ? std::to_string(value) : driver().name(code);
  };
  say("the attribute RANGE_SIZE", ask(12, at + kGranule + 5), std::to_string(reserved));
  const bool one_id = ask(7, at) == ask(7, at + 4 * kGranule);
  say("the buffer id of two addresses of one handle", one_id ? "one" : "two", "two");
  const bool differ = ask(7, at) != ask(7, at + kGranule);
  say("the buffer ids of two handles", differ ? "differ" : "one", "differ");
  say("the attribute MAPPED where nothing is", ask(13, at + 3 * kGranule),
      "CUDA_ERROR_INVALID_VALUE");
  MILLPOND_GPU(cuMemUnmap, at, kGranule);
  MILLPOND_GPU(cuMemUnmap, at + kGranule, 2 * kGranule);
  MILLPOND_GPU(cuMemUnmap, at + 4 * kGranule, kGranule);
  MILLPOND_GPU(cuMemRelease, small);
  MILLPOND_GPU(cuMemRelease, large);
}

/// One cuMemAlloc, to compare with.
void one_piece(gpu::Report& report, bool small) {
  for (const std::size_t mib : {2, 64, 1024}) {
    if (small && mib > 64) continue;
    std::vector<double> taken, given;
    for (int i = 0; i < (small ? 3 : 20); ++i) {
      Ptr at = 0;
      auto begin = Clock::now();
      if (driver().cuMemAlloc_v2(&at, mib * kMiB) != 0) break;
      taken.push_back(micros(begin));
      begin = Clock::now();
      MILLPOND_GPU(cuMemFree_v2, at);
      given.push_back(micros(begin));
    }
    report.info("cuMemAlloc and cuMemFree of " + std::to_string(mib) + " MiB",
                micro(median(taken)) + ", " + micro(median(given)));
  }
}

/// Handles until the card is full, or as many as a card of 141 GB holds.
void many(gpu::Report& report, bool small) {
  const Kind kind;
  std::vector<std::uint64_t> handles;
  const auto begin = Clock::now();
  double first = 0;
  int code = 0;
  const std::size_t most = small ? 100 : 72000;
  // Something stays for the driver's own needs.
  std::size_t free = 0, total = 0;
  MILLPOND_GPU(cuMemGetInfo_v2, &free, &total);
  const std::size_t room = free > 512 * kMiB ? (free - 512 * kMiB) / kGranule : 0;
  while (handles.size() < std::min(most, room) && micros(begin) < 30e6) {
    std::uint64_t handle = 0;
    code = driver().cuMemCreate(&handle, kGranule, &kind, 0);
    if (code != 0) break;
    handles.push_back(handle);
    if (handles.size() == 1000) first = micros(begin) / 1000;
  }
  const double each = handles.empty() ? 0 : micros(begin) / static_cast<double>(handles.size());
  std::string text = std::to_string(handles.size()) + " handles, " + micro(each) + " each";
  if (first > 0) text += "; the first 1000 " + micro(first) + " each";
  if (code != 0) text += "; then " + std::string(driver().name(code));
  const auto end = Clock::now();
  for (const auto handle : handles) MILLPOND_GPU(cuMemRelease, handle);
  if (!handles.empty()) {
    text += "; release " + micro(micros(end) / static_cast<double>(handles.size())) + " each";
  }
  report.info("handles of 2 MiB until the card is full", text);
}

/// One handle at more and more addresses of one context, opened as Millpond opens what it maps.
void mappings(gpu::Report& report, bool small, bool to_the_end) {
  const Kind kind;
  const Access access;
  // `src/device/cuda/granules.rs` asks for 500 000 at the most.
  const std::size_t most = small ? 200 : 1 << 21, step = small ? 100 : 1 << 12;
  const double limit_us = to_the_end ? 100e6 : 15e6;
  Ptr at = 0;
  std::size_t free = 0, left = 0, total = 0;
  MILLPOND_GPU(cuMemAddressReserve, &at, most * kGranule, kGranule, 0, 0);
  std::uint64_t handle = 0;
  MILLPOND_GPU(cuMemCreate, &handle, kGranule, &kind, 0);
  MILLPOND_GPU(cuMemGetInfo_v2, &free, &total);
  const auto begin = Clock::now();
  std::size_t mapped = 0, opened = 0;
  int code = 0;
  while (code == 0 && opened < most && micros(begin) < limit_us) {
    while (code == 0 && mapped < opened + step) {
      code = driver().cuMemMap(at + mapped * kGranule, kGranule, 0, handle, 0);
      if (code == 0) ++mapped;
    }
    if (code == 0) {
      code = driver().cuMemSetAccess(at + opened * kGranule, step * kGranule, &access, 1);
      if (code == 0) opened = mapped;
    }
  }
  const double each = micros(begin) / static_cast<double>(std::max<std::size_t>(opened, 1));
  MILLPOND_GPU(cuMemGetInfo_v2, &left, &total);
  std::string text = std::to_string(opened) + ", " + micro(each) + " each, " +
                     gpu::bytes(free > left ? free - left : 0) + " of the card for them";
  if (code != 0) text += "; then " + std::string(driver().name(code));
  report.info("mappings of one handle in a context", text, "believed: 500 000");
  for (std::size_t i = 0; i < mapped; i += step) {
    MILLPOND_GPU(cuMemUnmap, at + i * kGranule, std::min(step, mapped - i) * kGranule);
  }
  MILLPOND_GPU(cuMemRelease, handle);
  MILLPOND_GPU(cuMemAddressFree, at, most * kGranule);
}

}  // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  const bool to_the_end = argc > 1 && std::strcmp(argv[1], "--long") == 0;
  gpu::start();
  gpu::Report report("mapping");
  const std::size_t reserved = 128 * kMiB;
  Ptr at = 0;
  MILLPOND_GPU(cuMemAddressReserve, &at, reserved, kGranule, 0, 0);
  beliefs(report, at, reserved);
  costs_by_size(report, at, small);
  runs(report, at);
  one_piece(report, small);
  many(report, small);
  mappings(report, small, to_the_end);
  MILLPOND_GPU(cuMemAddressFree, at, reserved);
  report.row("the driver's mapping calls", "all answered", "all answered", true);
  return report.status();
}
