// Blocks of a Millpond device read and written by another process over UCX, by remote memory
// access: the segment callback registers with UCX exactly what has memory. Blocks of changing sizes
// come and go meanwhile on a device that is nearly full, so that blocks are scattered, and memory
// goes back and is mapped anew. Exits with 0 when every byte was right and no registration was
// stale.
//
//   millpond_example_ucx [ROUNDS]
//
// UCX takes its transport from UCX_TLS; without a network card it copies between the two processes.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>

#include "engine.hpp"
#include "registrations.hpp"

using namespace millpond;

namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kCapacity = 256 * kMiB;
constexpr std::uint64_t kMostLive = 224 * kMiB;

// The byte at `i` of a block whose number is `seed`.
unsigned char byte_at(std::uint64_t seed, std::uint64_t i) {
  return static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 8);
}

// The process with the device: fills blocks, tells the peer where they are, and looks at what the
// peer wrote.
class Owner {
 public:
  Owner(int socket) : socket_(socket) {}

  void run(unsigned rounds) {
    send_all(socket_, engine_.address());
    for (unsigned round = 0; round < rounds; ++round) {
      change(round);
      if (blocks_.empty()) continue;
      exchange(blocks_.back(), round);
      exchange(blocks_[random_() % blocks_.size()], rounds + round);
      registered_.check();
      const std::uint64_t reserved = device_.stats().reserved_bytes.current;
      if (registered_.counts().bytes > reserved) ++scattered_;
      if (round % 16 == 15) check(millpond_device_empty_cache(device_.get()));
    }
    send_number(socket_, 0);  // no more blocks
    blocks_.clear();
    check(millpond_device_empty_cache(device_.get()));
    registered_.check();
    const Registrations::Counts counts = registered_.counts();
    require(counts.bytes == 0, "registrations are left of memory that went back");
    require(scattered_ > 0 && counts.again > 0,
            "no block was scattered, or no memory came anew: too few rounds");
    std::printf(
        "%llu ranges registered, %llu of them where one had gone, %llu forgotten, %u rounds with "
        "scattered blocks\n",
        static_cast<unsigned long long>(counts.added),
        static_cast<unsigned long long>(counts.again),
        static_cast<unsigned long long>(counts.removed), scattered_);
  }

 private:
  struct Block {
    Buffer memory;
    std::uint64_t bytes;
  };

  // Frees some blocks and makes one, larger every other time.
  void change(unsigned round) {
    const std::uint64_t size =
        round % 2 == 0 ? 1 + random_() % (3 * kMiB) : 4 * kMiB + random_() % (36 * kMiB);
    while (!blocks_.empty() && (live_ + size > kMostLive || random_() % 3 == 0)) {
      const std::size_t at = random_() % blocks_.size();
      live_ -= blocks_[at].bytes;
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    blocks_.push_back({device_.allocate(size), size});
    live_ += size;
  }

  // The peer reads the block, and writes all of it with the bytes of the next number.
  void exchange(const Block& block, std::uint64_t seed) {
    std::vector<unsigned char> bytes(block.bytes);
    for (std::uint64_t i = 0; i < block.bytes; ++i) bytes[i] = byte_at(seed, i);
    device_.copy(CopyKind::kHostToDevice, block.memory.data(), bytes.data(), block.bytes);
    const std::vector<Piece> pieces = registered_.cover(block.memory.data(), block.bytes);
    send_number(socket_, pieces.size());
    send_number(socket_, seed);
    for (const Piece& piece : pieces) {
      send_number(socket_, piece.address);
      send_number(socket_, piece.bytes);
      send_all(socket_, piece.key);
    }
    engine_.progress_until_readable(socket_);
    require(receive_number(socket_) == seed, "the peer is somewhere else");
    device_.copy(CopyKind::kDeviceToHost, bytes.data(), block.memory.data(), block.bytes);
    for (std::uint64_t i = 0; i < block.bytes; ++i) {
      require(bytes[i] == byte_at(seed + 1, i), "what the peer wrote has not arrived");
    }
  }

  int socket_;
  std::mt19937 random_{2026};
  Engine engine_;
  Device device_{"host"};
  Registrations registered_{engine_.context(), device_};
  std::vector<Block> blocks_;
  std::uint64_t live_ = 0;
  unsigned scattered_ = 0;
};

// The other process, which has no device.
void peer(int socket) {
  Engine engine;
  Link link(engine, receive_all(socket));
  while (const std::uint64_t count = receive_number(socket)) {
    const std::uint64_t seed = receive_number(socket);
    std::uint64_t before = 0;
    for (std::uint64_t n = 0; n < count; ++n) {
      Piece piece;
      piece.address = receive_number(socket);
      piece.bytes = receive_number(socket);
      piece.key = receive_all(socket);
      std::vector<unsigned char> bytes(piece.bytes);
      link.get(bytes.data(), piece);
      for (std::uint64_t i = 0; i < piece.bytes; ++i) {
        require(bytes[i] == byte_at(seed, before + i), "what was read is wrong");
        bytes[i] = byte_at(seed + 1, before + i);
      }
      link.put(bytes.data(), piece);
      before += piece.bytes;
    }
    send_number(socket, seed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned rounds = argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 48;
  setenv("MILLPOND_HOST_CAPACITY", std::to_string(kCapacity).c_str(), 1);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  // Forked before either uses UCX or a device.
  const pid_t pid = fork();
  if (pid < 0) return 1;
  close(ends[pid == 0 ? 0 : 1]);
  try {
    if (pid == 0) {
      peer(ends[1]);
      return 0;
    }
    Owner(ends[0]).run(rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", pid == 0 ? "peer" : "owner", error.what());
    return 1;
  }
  int status = 1;
  return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 1;
}
