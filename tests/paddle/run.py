#!/usr/bin/env python3
"""Runs Millpond's plugin under released PaddlePaddle wheels; scripts/test.sh calls it.

For each release: a virtual environment of its own, with the CPU wheel that pip gets; then each script in checks/ in a
process of its own, where one line of `script: check` counts as one test. A process that ends in a wrong way is a failed
test, and so is each check of its that did not report. A release whose wheel cannot be had is skipped, aloud.
Most processes are forked from one that has imported PaddlePaddle, but not started it (served.py): by itself, one that does
little takes 0.2 s, and not 2 s. Scripts that fork have one that was started for them (`ALONE`), so has one that does not,
and so has each way to leave once.
Wheels are kept in ${XDG_CACHE_HOME:-~/.cache}/millpond/wheels, so a second run needs no network; the environments, in
.../millpond/paddle, serve all clones.
The last line is `paddle: N passed, N failed, N skipped`; the exit status is 0 only without failures.

Needs Python 3.9 with its venv module, and nothing else.
"""
import argparse
import ast
import concurrent.futures
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CHECKS = HERE / "checks"
# The newest one first. What each needs beside what its wheel asks for: 2.6.2 was built for NumPy 1, and all import
# setuptools, which newer Pythons do not bring.
RELEASES = {
    "3.3.1": ["setuptools<81"],
    "2.6.2": ["setuptools<81", "numpy<2"],
    "3.0.0": ["setuptools<81"],
    "3.2.2": ["setuptools<81"],
}
# How often a process must leave cleanly: for the first release of a run, and for the others. The first of each release
# are processes that import PaddlePaddle by themselves, one for each way to leave (checks/leave.py).
EXITS_FIRST, EXITS_OTHER = 100, 10
CHECK_SECONDS = 240
PIP_SECONDS = 900
# Scripts that may hang through no fault of the plugin, and after how many seconds they are run once more. PaddlePaddle
# forks its workers while its other threads may hold the lock of its own memory statistics (paddle::memory::Stat); such a
# worker waits for that lock for ever.
HANGS = {"loader": 90}
# Scripts that import PaddlePaddle by themselves: those that fork, and one that shows all that a program uses of a device
# where the plugin is found in the midst of the import.
ALONE = ["loader", "forks", "streams"]
# Scripts that run small programs.
WITH_PROGRAMS = ["out_of_memory_report", "record"]

BEST_FIT = {"FLAGS_allocator_strategy": "naive_best_fit", "MILLPOND_HOST_CAPACITY": "256M"}
# (script, how its runs are told apart, settings)
RUNS = [
    ("place", "", {"MILLPOND_HOST_DEVICES": "3"}),
    ("place", "naive_best_fit", dict(BEST_FIT, MILLPOND_HOST_DEVICES="3")),
    ("streams", "", {}),
    ("memory", "", {"MILLPOND_HOST_CAPACITY": "1G"}),
    ("memory_best_fit", "", BEST_FIT),
    ("threads", "", {}),
    ("threads", "naive_best_fit", BEST_FIT),
    ("train", "", {}),
    ("train", "naive_best_fit", BEST_FIT),
    ("train", "type cpu", {"MILLPOND_PLUGIN_TYPE": "pond", "MILLPOND_PLUGIN_DEVICE": "cpu"}),
    ("train", "segments", {"MILLPOND_HOST_MAPPING": "0"}),
    ("out_of_memory", "", {"MILLPOND_HOST_CAPACITY": "64M"}),
    ("out_of_memory_status", "", {"MILLPOND_HOST_CAPACITY": "64M", "MILLPOND_PLUGIN_OOM": "status"}),
    ("out_of_memory_report", "", {"MILLPOND_HOST_CAPACITY": "64M"}),
    ("loader", "", {}),
    ("quiet", "", {}),
    ("record", "", {}),
    ("copies", "", {"MILLPOND_HOST_DEVICES": "3"}),
    ("copies", "naive_best_fit", dict(BEST_FIT, MILLPOND_HOST_DEVICES="3")),
    ("forks", "", {}),
    ("forks", "naive_best_fit", BEST_FIT),
]
# Scripts that do not pass yet, and why. They run only where they are named.
OWED = {}


class Tally:
    """What passed, failed and was skipped; prints as it goes. Threads may share it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.passed = self.skipped = 0
        self.failures = []

    def ok(self, name):
        with self.lock:
            self.passed += 1
            print(f"ok      {name}", flush=True)

    def fail(self, name, why):
        with self.lock:
            self.failures.append(name)
            print(f"FAILED  {name}\n{indent(why)}", flush=True)

    def skip(self, name, why):
        with self.lock:
            self.skipped += 1
            print(f"SKIPPED {name}: {why}", flush=True)


def indent(text):
    return "\n".join("    " + line for line in text.strip().splitlines()[-60:])


def cache_dir(of):
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "millpond" / of


def interpreters():
    """Pythons that can make environments: the running one first. A wheel may be there for another one only."""
    seen = set()
    for name in [sys.executable, "python3.13", "python3.12", "python3.11", "python3.10"]:
        path = shutil.which(name)
        if path is None:
            continue
        probe = [path, "-c", "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            done = subprocess.run(probe, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue  # such as a shim that stands for no Python
        version = done.stdout.strip()
        if done.returncode == 0 and version not in seen:
            seen.add(version)
            yield path, version


def command(args, seconds):
    """Runs it; gives its status (None: it took too long) and its output."""
    try:
        done = subprocess.run([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as e:
        output = e.stdout or ""
        return None, output if isinstance(output, str) else output.decode(errors="replace")


def program(args, env, folder, seconds=CHECK_SECONDS):
    """Runs a program of ours for so many seconds at most; gives its status (None: it took too long) and its output. What
    it forked ends with it, so that a hanging child is a failure and not a leftover."""
    child = subprocess.Popen([str(a) for a in args], env=env, cwd=folder, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                             start_new_session=True)
    try:
        output, _ = child.communicate(timeout=seconds)
        return child.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[0] + f"\nstill there after {seconds} s"


class Server:
    """A process that has loaded PaddlePaddle's library and forks for one script at a time."""

    def __init__(self, python, env):
        self.python = python
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([str(python), str(HERE / "served.py"), str(theirs.fileno())], env=env,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            pass_fds=[theirs.fileno()], start_new_session=True)

    def program(self, args, env, folder, seconds, warnings, programs=False):
        """As `program` above, for a script. With `programs`, it may run some of its own (checks/support.py)."""
        until = time.monotonic() + seconds
        output, theirs = os.pipe()
        child, said = None, b""
        try:
            request = {"script": [str(a) for a in args], "environment": env, "folder": str(folder), "warnings": warnings,
                       "programs": programs}
            try:
                socket.send_fds(self.socket, [json.dumps(request).encode()], [theirs])
            finally:
                os.close(theirs)
            child = int(self.answer(until))
            while select.select([output], [], [], max(0, until - time.monotonic()))[0]:
                part = os.read(output, 1 << 16)
                if not part:
                    return int(self.answer(until)), said.decode(errors="replace")
                said += part
            raise TimeoutError
        except TimeoutError:
            why = f"still there after {seconds} s"
        except (OSError, ValueError):
            why = "the process that has loaded PaddlePaddle's library has ended"
        finally:
            os.close(output)
        if child is not None:
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.stop()
        return None, f"{said.decode(errors='replace')}\n{why}"

    def answer(self, until):
        self.socket.settimeout(max(0.001, until - time.monotonic()))
        return self.socket.recv(100)

    def stop(self):
        self.socket.close()
        self.process.kill()
        self.process.wait()


class Servers:
    """As many servers of each Python as there are threads that want one; those of a Python that nobody wants any more end."""

    def __init__(self):
        self.lock = threading.Lock()
        self.free = []

    def program(self, python, env, *script):
        with self.lock:
            ours = [s for s in self.free if s.python == python]
            if not ours:
                self.stop()
            server = ours[0] if ours else None
            if server is not None:
                self.free.remove(server)
        server = server or Server(python, env)
        done = server.program(*script)
        if server.process.poll() is None:
            with self.lock:
                self.free.append(server)
        return done

    def stop(self):
        while self.free:
            self.free.pop().stop()


class NoWheel(Exception):
    """The wheel cannot be had."""


def environment(release, work):
    """The Python of an environment that has this release; makes it where it is not there yet."""
    why = "no Python here can make virtual environments (Debian: python3-venv)"
    for python, version in interpreters():
        wanted = [f"paddlepaddle=={release}"] + RELEASES[release]
        stamp = hashlib.sha256(repr((wanted, version)).encode()).hexdigest()
        # What a clone wants that wants something else does not replace this one, with which a test may be running.
        home = work / f"venv-{release}-{stamp[:12]}"
        work.mkdir(parents=True, exist_ok=True)
        # One at a time: who comes while another makes it waits, and finds it.
        with open(f"{home}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made, why = make_environment(home, python, version, release, wanted)
        if made:
            return home / "bin" / "python"
    raise NoWheel(why)


def make_environment(home, python, version, release, wanted):
    """Whether the environment is there, with what is wanted, and if not, why. A half made one is made anew, and one
    whose Python has gone."""
    done = home / "millpond-done"
    if done.is_file() and shutil.which(home / "bin" / "python"):
        return True, ""
    shutil.rmtree(home, ignore_errors=True)
    status, output = command([python, "-m", "venv", home], 300)
    if status != 0:
        return False, f"{python} made no environment: {last_line(output)}"
    # One folder for each Python, as the wheels of what it depends on differ.
    wheels = cache_dir("wheels") / f"paddle-{release}-py{version}"
    pip = [home / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    # Not compiled: of the many thousand files, programs compile what they import.
    install = pip + ["install", "--quiet", "--no-compile", "--no-index", "--find-links", wheels] + wanted
    if not wheels.is_dir() or command(install, PIP_SECONDS)[0] != 0:
        wheels.mkdir(parents=True, exist_ok=True)
        status, output = command(pip + ["download", "--quiet", "--dest", wheels] + wanted, PIP_SECONDS)
        if status != 0:
            return False, f"pip, for Python {version}: {last_line(output) if status is not None else 'took too long'}"
        status, output = command(install, PIP_SECONDS)
        if status != 0:
            raise RuntimeError(f"pip has the wheels but could not install them:\n{output}")
    done.touch()
    return True, ""


def environments(releases, work, jobs):
    """Of each release, the Python of its environment, or why there is none. They are made beside each other."""
    def made(release):
        try:
            return environment(release, work)
        except (NoWheel, RuntimeError, OSError) as why:
            return why

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(zip(releases, pool.map(made, releases)))


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1]


def checks_of(script):
    """The names of the checks that a script must report."""
    tree = ast.parse((CHECKS / f"{script}.py").read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("check_")]


def settings(plugin_dir, more):
    """The environment of a process of PaddlePaddle: nothing of ours or its from outside gets in."""
    out = {k: v for k, v in os.environ.items() if not k.startswith(("MILLPOND_", "FLAGS_", "GLOG_", "CUSTOM_DEVICE"))}
    # One thread for each operator: sums have one order then. Strided views want kernels that a device without any
    # does not have.
    out.update(CUSTOM_DEVICE_ROOT=str(plugin_dir), OMP_NUM_THREADS="1", FLAGS_use_stride_kernel="0",
               GLOG_minloglevel="2", PYTHONDONTWRITEBYTECODE="")
    out.update(more)
    return out


def run_script(tally, servers, release, python, plugin_dir, run):
    script, label, more = run
    title = f"{release} {script}" + (f" ({label})" if label else "")
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report"
        env = settings(plugin_dir, dict(more, MILLPOND_CHECK_REPORT=str(report)))
        seconds = HANGS.get(script, CHECK_SECONDS)
        if script in ALONE:
            status, output = program([python, CHECKS / f"{script}.py"], env, folder, seconds)
        else:
            status, output = servers.program(python, settings(plugin_dir, {}), [CHECKS / f"{script}.py"], env, folder,
                                             seconds, [], script in WITH_PROGRAMS)
        if status is None and script in HANGS:
            print(f"again   {title}: it hung, as forked workers of PaddlePaddle may", flush=True)
            report.unlink(missing_ok=True)
            status, output = program([python, CHECKS / f"{script}.py"], env, folder, HANGS[script])
        lines = report.read_text().split("\0") if report.exists() else []
    told = dict(line.split(" ", 1) for line in lines if line)
    for check in checks_of(script):
        name = f"{title}: {check[len('check_'):].replace('_', ' ')}"
        what = told.get(check, "it did not report\n" + output)
        if what == "ok":
            tally.ok(name)
        elif what.startswith("not here: "):
            tally.skip(name, what[len("not here: "):])
        else:
            tally.fail(name, what)
    # A crash on the way out is what users of custom devices see most.
    if status == 0:
        tally.ok(f"{title}: leaves with status 0")
    else:
        tally.fail(f"{title}: leaves with status 0", f"status {status}\n{output}")


class Exits:
    """The same few programs again and again, each of which must leave with status 0 and say nothing."""

    def __init__(self, servers, release, python, plugin_dir, times):
        tree = ast.parse((CHECKS / "leave.py").read_text())
        self.ways = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("leave_")]
        self.servers, self.release, self.python, self.plugin_dir = servers, release, python, plugin_dir
        self.times = times
        self.failures = []

    def once(self, i):
        env = settings(self.plugin_dir, {"FLAGS_allocator_strategy": "naive_best_fit" if i % 5 == 4 else "auto_growth",
                                         "MILLPOND_HOST_CAPACITY": "256M"})
        way = self.ways[i % len(self.ways)]
        if i < len(self.ways):
            status, output = program([self.python, "-W", "ignore", CHECKS / "leave.py", way], env, None)
        else:
            status, output = self.servers.program(self.python, settings(self.plugin_dir, {}), [CHECKS / "leave.py", way],
                                                  env, os.getcwd(), CHECK_SECONDS, ["ignore"])
        if status != 0 or output != "left\n":
            self.failures.append(f"run {i + 1}, {way}: status {status}\n{output}")

    def tell(self, tally):
        name = f"{self.release}: a clean exit, {self.times} times in a row"
        if self.failures:
            tally.fail(name, f"{len(self.failures)} of {self.times} failed\n" + "\n".join(self.failures[:3]))
        else:
            tally.ok(name)


def includes(releases, work, jobs):
    """The folders from which plugins are compiled against each release's own header, the first release's first."""
    found = []
    for release, python in environments(releases, work, jobs):
        if isinstance(python, Exception):
            print(f"PaddlePaddle {release}: no header ({last_line(str(python))})", flush=True)
            continue
        # Without importing it, which takes seconds.
        folders = list(python.parent.parent.glob("lib/python*/site-packages/paddle/include"))
        found += [str(f) for f in folders if (f / "paddle/phi/backends/device_ext.h").is_file()]
    print(f"includes: {';'.join(found)}")
    return 0


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("plugin_dir", type=pathlib.Path, nargs="?",
                       help="the folder that holds the plugin, and nothing else")
    words.add_argument("--includes", action="store_true",
                       help="only make the environments, and name their folders of C++ headers in a line `includes: ...`")
    words.add_argument("--work", type=pathlib.Path, default=cache_dir("paddle"),
                       help="where the environments are made (about 1 GB for each release)")
    words.add_argument("--release", action="append", choices=list(RELEASES), help="only this one; may be repeated")
    words.add_argument("--script", action="append", help="only this script of checks/ (or `leave`); may be repeated")
    words.add_argument("--exits", type=int, default=EXITS_FIRST, help="clean exits of the first release")
    words.add_argument("--jobs", type=int, default=max(1, min(4, os.cpu_count() or 1)))
    options = words.parse_args()

    work = options.work.resolve()
    if options.includes:
        return includes(options.release or RELEASES, work, options.jobs)
    if options.plugin_dir is None or not list(options.plugin_dir.resolve().glob("*.so")):
        sys.exit(f"{options.plugin_dir} holds no plugin; build it first (cmake --build build)")
    plugin_dir = options.plugin_dir.resolve()

    tally = Tally()
    began = time.monotonic()
    ready = []
    for release, python in environments(options.release or RELEASES, work, options.jobs):
        if isinstance(python, NoWheel):
            tally.skip(f"PaddlePaddle {release}", f"the wheel cannot be had ({python}); "
                       f"with network, run this again, or put the wheels into {cache_dir('wheels')}/paddle-{release}-py*")
        elif isinstance(python, Exception):
            tally.fail(f"PaddlePaddle {release}: install the wheel", str(python))
        else:
            ready.append((release, python))
    print(f"PaddlePaddle: {len(ready)} releases ready after {time.monotonic() - began:.0f} s", flush=True)
    runs = [r for r in RUNS if (r[0] in options.script if options.script else r[0] not in OWED)]
    first = (options.release or list(RELEASES))[0]
    servers, queue, exits = Servers(), [], []
    for release, python in ready:
        queue += [functools.partial(run_script, tally, servers, release, python, plugin_dir, run) for run in runs]
        if not options.script or "leave" in options.script:
            times = options.exits if release == first else min(options.exits, EXITS_OTHER)
            exits.append(Exits(servers, release, python, plugin_dir, times))
            queue += [functools.partial(exits[-1].once, i) for i in range(times)]
    # All in one queue, so that no processor waits for the last one of each release.
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda work: work(), queue))
    servers.stop()
    for each in exits:
        each.tell(tally)
    print(f"PaddlePaddle: {time.monotonic() - began:.0f} s", flush=True)

    print(f"paddle: {tally.passed} passed, {len(tally.failures)} failed, {tally.skipped} skipped")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
