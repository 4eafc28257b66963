// Asks the driver what Millpond and the fake driver believe of it.
//
//   beliefs FILE     compares with the fake driver's answers in FILE
//   beliefs          prints the answers, one a line: what FILE has, if the driver is the fake one
//   beliefs --life NAME    one question of a process's life, in a process of its own
#include "beliefs.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "report.hpp"

namespace {

using gpu::Handle;
using gpu::raw;
using gpu::said;

int context_status() {
  Handle context = nullptr;
  return raw("cuCtxGetCurrent", &context);
}

void at_the_end() {
  // As a library's handler does that was registered before CUDA began.
  std::printf("cuCtxGetCurrent %s, ", said(context_status()).c_str());
  gpu::Ptr at = 0;
  std::printf("cuMemAlloc %s, ", said(gpu::driver().cuMemAlloc_v2(&at, 4096)).c_str());
  std::printf("cuStreamQuery %s\n", said(raw("cuStreamQuery", Handle{nullptr})).c_str());
  std::fflush(stdout);
}

Handle ended_stream() {
  Handle stream = nullptr;
  MILLPOND_GPU(cuStreamCreate, &stream, 1u);
  MILLPOND_GPU(cuStreamDestroy_v2, stream);
  return stream;
}

void from_callback(void* out) {
  gpu::Ptr at = 0;
  *static_cast<int*>(out) = gpu::driver().cuMemAlloc_v2(&at, 4096);
}

struct Life {
  const char* name;
  void (*live)();
};

const Life kLives[] = {
    {"a handler at exit that was registered before cuInit",
     [] {
       gpu::driver();
       std::atexit(at_the_end);
       gpu::start();
     }},
    {"a child of fork",
     [] {
       gpu::start();
       std::fflush(stdout);
       const pid_t child = fork();
       if (child == 0) {
         at_the_end();
         _exit(0);
       }
       waitpid(child, nullptr, 0);
     }},
    {"cuStreamQuery of a stream that has ended",
     [] {
       gpu::start();
       std::printf("%s\n", said(raw("cuStreamQuery", ended_stream())).c_str());
     }},
    {"cuStreamGetId of a stream that has ended",
     [] {
       gpu::start();
       unsigned long long id = 0;
       std::printf("%s\n", said(raw("cuStreamGetId", ended_stream(), &id)).c_str());
     }},
    {"cuStreamIsCapturing of a stream that has ended",
     [] {
       gpu::start();
       int status = 0;
       std::printf("%s\n", said(raw("cuStreamIsCapturing", ended_stream(), &status)).c_str());
     }},
    {"cuEventRecord in a stream that has ended",
     [] {
       gpu::start();
       Handle event = nullptr;
       MILLPOND_GPU(cuEventCreate, &event, 2u);
       std::printf("%s\n", said(gpu::driver().cuEventRecord(event, ended_stream())).c_str());
     }},
    {"cuEventQuery of an event that has ended",
     [] {
       gpu::start();
       Handle event = nullptr;
       MILLPOND_GPU(cuEventCreate, &event, 2u);
       raw("cuEventDestroy_v2", event);
       std::printf("%s\n", said(raw("cuEventQuery", event)).c_str());
     }},
    {"cuMemAlloc in a callback of cuLaunchHostFunc",
     [] {
       gpu::start();
       Handle stream = nullptr;
       MILLPOND_GPU(cuStreamCreate, &stream, 1u);
       int status = -2;
       raw("cuLaunchHostFunc", stream, &from_callback, static_cast<void*>(&status));
       MILLPOND_GPU(cuStreamSynchronize, stream);
       std::printf("%s\n", said(status).c_str());
     }},
    {"a thread without a context",
     [] {
       gpu::start();
       std::thread([] {
         const gpu::Kind kind;
         std::uint64_t handle = 0;
         gpu::Ptr at = 0;
         const int create = gpu::driver().cuMemCreate(&handle, 2 << 20, &kind, 0);
         const int reserve = gpu::driver().cuMemAddressReserve(&at, 2 << 20, 0, 0, 0);
         const int map = gpu::driver().cuMemMap(at, 2 << 20, 0, handle, 0);
         const gpu::Access access;
         const int open = gpu::driver().cuMemSetAccess(at, 2 << 20, &access, 1);
         const int unmap = gpu::driver().cuMemUnmap(at, 2 << 20);
         std::size_t free = 0, total = 0;
         const int info = gpu::driver().cuMemGetInfo_v2(&free, &total);
         Handle stream = nullptr;
         std::printf("create %s, reserve %s, map %s, access %s, unmap %s, info %s, stream %s\n",
                     said(create).c_str(), said(reserve).c_str(), said(map).c_str(),
                     said(open).c_str(), said(unmap).c_str(), said(info).c_str(),
                     said(gpu::driver().cuStreamCreate(&stream, 1)).c_str());
       }).join();
     }},
};

struct Part {
  const char* name;
  void (*ask)(const gpu::Tell&);
};

const Part kParts[] = {{"mapped memory", gpu::mapped},
                       {"streams and events", gpu::streams},
                       {"waits", gpu::waits},
                       {"captures", gpu::capture_table}};

/// Runs this program with an option, and takes its lines. Gives how it ended: empty if well.
std::string apart(const std::string& self, const char* option, const char* name,
                  const char* seconds, const std::function<void(const std::string&)>& line) {
  const std::string command =
      std::string("timeout -k 1 ") + seconds + " '" + self + "' " + option + " '" + name + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "cannot be started";
  char text[4096];
  while (std::fgets(text, sizeof text, pipe) != nullptr) {
    std::string out = text;
    while (!out.empty() && out.back() == '\n') out.pop_back();
    line(out);
  }
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) == 124 || WEXITSTATUS(status) == 137)
    return "no end";
  if (WEXITSTATUS(status) > 128)
    return "killed by signal " + std::to_string(WEXITSTATUS(status) - 128);
  return WEXITSTATUS(status) == 0 ? "" : "status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "--life") == 0) {
    for (const Life& life : kLives) {
      if (std::strcmp(life.name, argv[2]) == 0) life.live();
    }
    return 0;
  }
  if (argc > 2 && std::strcmp(argv[1], "--part") == 0) {
    gpu::start();
    for (const Part& part : kParts) {
      if (std::strcmp(part.name, argv[2]) != 0) continue;
      part.ask([](const std::string& question, const std::string& answer) {
        std::printf("%s\t%s\n", question.c_str(), answer.c_str());
        std::fflush(stdout);
      });
    }
    return 0;
  }
  std::map<std::string, std::string> fake;
  if (argc > 1) {
    std::ifstream file(argv[1]);
    for (std::string line; std::getline(file, line);) {
      const std::size_t tab = line.find('\t');
      if (tab != std::string::npos) fake[line.substr(0, tab)] = line.substr(tab + 1);
    }
  }
  gpu::Report report("beliefs");
  int asked = 0, other = 0;
  const auto tell = [&](const std::string& question, const std::string& answer) {
    if (argc <= 1) {
      std::printf("%s\t%s\n", question.c_str(), answer.c_str());
      std::fflush(stdout);
      return;
    }
    ++asked;
    const auto found = fake.find(question);
    if (found != fake.end() && found->second == answer) return;
    // What a kernel shows is only asked of a card.
    if (found == fake.end()) return report.info(question, answer);
    ++other;
    report.info(question, answer + "; NOT AS THE FAKE DRIVER", "fake: " + found->second);
  };
  for (const Life& life : kLives) {
    std::string answer;
    const std::string end = apart(argv[0], "--life", life.name, "20", [&](const std::string& line) {
      answer += (answer.empty() ? "" : " ") + line;
    });
    tell(life.name, end.empty() ? answer : end);
  }
  for (const Part& part : kParts) {
    const std::string end = apart(argv[0], "--part", part.name, "60", [&](const std::string& line) {
      const std::size_t tab = line.find('\t');
      if (tab != std::string::npos && line.rfind("row\t", 0) != 0) {
        tell(line.substr(0, tab), line.substr(tab + 1));
      } else {
        std::printf("%s\n", line.c_str());
      }
    });
    tell(std::string("the questions about ") + part.name, end.empty() ? "all asked" : end);
  }
  if (argc <= 1) return 0;
  // On the fake driver the file must be right; a card may differ, and its rows say where.
  const std::string value = std::to_string(asked - other) + " of " + std::to_string(asked);
  if (gpu::driver().fake) {
    report.row("answers as in beliefs.txt", value, "all", asked > 0 && other == 0);
  } else {
    report.row("answers as the fake driver's", value, "some", asked > other);
  }
  return report.status();
}
