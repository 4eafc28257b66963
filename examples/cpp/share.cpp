// One block, two processes: a child makes a block, sends it over a socket and frees it; the parent
// reads it all the same. The device type is the first argument: "host",
// or "cuda" where there is a GPU. Exits with 0 when the bytes are right.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <millpond/millpond.hpp>
#include <stdexcept>
#include <string>
#include <vector>

using namespace millpond;

namespace {

constexpr std::size_t kBytes = 3u << 20;
constexpr std::size_t kMostFds = 64;  // the system sends at most 253 in one message

void must(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

void send(int socket, const Export& block) {
  msghdr message{};
  iovec bytes{const_cast<unsigned char*>(block.info().data()), block.info().size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  const std::size_t length = block.fds().size() * sizeof(int);
  must(block.fds().size() <= kMostFds, "a block of more granules than this example sends");
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(length);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(length);
  std::memcpy(CMSG_DATA(head), block.fds().data(), length);
  must(sendmsg(socket, &message, 0) == static_cast<ssize_t>(block.info().size()), "sendmsg");
}

Import receive(int socket, const Device& device) {
  std::vector<unsigned char> info(1u << 16);
  iovec bytes{info.data(), info.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  must(got > 0 && head != nullptr && head->cmsg_type == SCM_RIGHTS, "no block came");
  std::vector<int> fds((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  std::memcpy(fds.data(), CMSG_DATA(head), fds.size() * sizeof(int));
  Import block(device, info.data(), static_cast<std::size_t>(got), fds.data(), fds.size());
  for (const int fd : fds) close(fd);  // the import has what it needs
  return block;
}

void child(int socket, const std::string& type) {
  const Device device(type.c_str(), 0);
  Buffer block = device.allocate(kBytes);
  check(millpond_memset(device.get(), block.data(), 42, kBytes));  // has arrived on return

  {
    Export out(block.data());
    send(socket, out);
  }  // the descriptors are closed here: only the message holds them now
  block.reset();
  std::printf("freed, and still used: %zu block\n", poll_exports(device).blocks);
  char done = 0;
  must(read(socket, &done, 1) == 1, "the other process has died");
  must(poll_exports(device).blocks == 0, "the memory has not come back");
  std::printf("the memory has come back\n");
  std::fflush(stdout);
}

void parent(int socket, const std::string& type) {
  const Device device(type.c_str(), 0);
  {
    const Import block = receive(socket, device);
    std::vector<unsigned char> bytes(kBytes);
    check(millpond_copy(device.get(), MILLPOND_COPY_D2H, bytes.data(), block.data(), kBytes));
    const bool good =
        std::all_of(bytes.begin(), bytes.end(), [](unsigned char b) { return b == 42; });
    must(good, "the bytes are wrong");
    std::printf("%zu bytes of another process are right\n", kBytes);
  }
  must(write(socket, "x", 1) == 1, "write");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string type = argc > 1 ? argv[1] : "host";
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 1;
  // Forked before either uses a device: a process with open devices must not be continued in a
  // child.
  const pid_t pid = fork();
  if (pid < 0) return 1;
  close(ends[pid == 0 ? 0 : 1]);
  try {
    if (pid == 0) {
      child(ends[1], type);
      return 0;
    }
    parent(ends[0], type);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", pid == 0 ? "child" : "parent", error.what());
    return 1;
  }
  int status = 1;
  return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 1;
}
