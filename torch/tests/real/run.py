"""Runs the checks of this folder, each in a process of its own over the fake driver; scripts/torch.sh sets that up.

    run.py [WORD]...    those whose name contains one of the words

Loading PyTorch takes three seconds of processor time. Most processes are therefore forked from one that has loaded it and
done nothing else. A check has a fresh one where it sets variables of PyTorch's own, which are read while it is loaded; and of
the modules in which the order of loading may count, some checks have one each (`FRESH`).

The last line is `torch: N passed, N failed, N skipped`.
"""
import ctypes
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
# Under the pluggable allocator, and under the one of C++.
MODULES = {"pluggable": ["graphs", "pools", "devices", "switch", "programs", "processor", "vendor", "settings"],
           "native": ["graphs", "devices", "programs", "native", "mempools", "others", "history", "checkpoints", "processes", "upstream", "upstream_streams", "upstream_pools", "settings"]}
FRESH = ["switch.check_enable_before_anything", "switch.check_enable_after_a_tensor_that_is_gone",
         "switch.check_the_text_of_out_of_memory", "settings.check_sizes_are_rounded_from_now_on",
         "processor.check_what_was_there_before_stays_and_may_go", "processor.check_the_workers_of_a_data_loader"]
LIMIT = int(os.environ.get("MILLPOND_TORCH_CHECK_SECONDS", "240"))  # of a check, some of which run a compiler


def checks(module):
    return {name: f for name, f in vars(module).items() if name.startswith("check_") and callable(f)}


def needs_fresh(module, name, environment):
    return f"{module}.{name}" in FRESH or any(variable.startswith("PYTORCH_") for variable in environment)


def numbers(release):
    return [int(part) for part in release.split(".")[:2]]


def one(module, name):
    sys.path.insert(0, str(HERE))
    checks(importlib.import_module(module))[name]()


def serve(answers):
    """Reads requests, one a line, and runs each in a process that it forks; says how it ended. Returns in such a process."""
    # The second is what optimisers, profilers and histories load when they are first used: 900 modules, two seconds.
    for name in ("torch", "torch._dynamo"):
        importlib.import_module(name)
    # Each process would look through all that PyTorch has made, and so copy it, and at its end take it apart.
    held = gc.get_objects()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    gc.freeze()
    while request := sys.stdin.readline():
        request = json.loads(request)
        output, ours = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            answers.close()
            os.close(output)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for opened, standard in ((nothing, 0), (ours, 1), (ours, 2)):
                os.dup2(opened, standard)
            os.close(ours)
            os.environ.update(request["environment"])
            return one(request["module"], request["name"])
        os.close(ours)
        try:
            status, said = ending(child, output)
        finally:
            end_all_of(child)
            os.close(output)
        print(json.dumps([status, said.decode(errors="replace")]), file=answers, flush=True)
    os._exit(0)


def ending(child, output):
    """How a process has ended (its exit status, or minus the signal), and what it has said, once it and all that it has
    started have closed their output."""
    until, said, open_still = time.monotonic() + LIMIT, b"", True
    while (left := until - time.monotonic()) > 0:
        if not open_still:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status), said
            time.sleep(0.01)
            continue
        # Nothing comes in while a check runs, until the runner has ended.
        ready = select.select([output, 0], [], [], left)[0]
        if 0 in ready:
            break
        if output in ready:
            part = os.read(output, 1 << 16)
            said += part
            open_still = bool(part)
    return "no end", said


def end_all_of(child):
    """Ends what is left of a check, and what it has started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass


class Server:
    """The process that has loaded PyTorch."""

    def __init__(self, settings):
        self.process = None
        self.settings = settings

    def start(self):
        ours, theirs = os.pipe()
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", str(theirs)], env=self.settings, text=True,
                                        stdin=subprocess.PIPE, pass_fds=[theirs])
        os.close(theirs)
        self.answers = os.fdopen(ours)

    def run(self, module, name, environment):
        """The status and the output of a check."""
        if self.process is None:
            self.start()
        answer = ""
        try:
            print(json.dumps({"module": module, "name": name, "environment": environment}), file=self.process.stdin, flush=True)
            if select.select([self.answers], [], [], LIMIT + 60)[0]:
                answer = self.answers.readline()
        except BrokenPipeError:
            pass
        if answer:
            return json.loads(answer)
        self.process.kill()
        self.process.wait()
        self.process = None
        return "the process that has loaded PyTorch has ended, or did not answer", ""

    def stop(self):
        if self.process is not None:
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()


def fresh(module, name, settings):
    """The same in a process that loads PyTorch itself."""
    try:
        done = subprocess.run([sys.executable, __file__, "--one", module, name], env=settings, timeout=LIMIT,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as e:
        return "no end", (e.stdout or b"").decode(errors="replace")


def main(words):
    with tempfile.TemporaryDirectory() as folder:
        return run_all(words, folder)


def run_all(words, folder):
    sys.path.insert(0, str(HERE))
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    everywhere = {**os.environ, "LD_PRELOAD": os.environ["MILLPOND_TORCH_PRELOAD"], "MILLPOND_TORCH_CHECKS_BUILD": folder}
    subprocess.run([sys.executable, "-c", "import millpond_torch; millpond_torch.build_native()"], check=True, env=everywhere)
    server = Server(everywhere)
    for how, module in [(how, module) for how, modules in MODULES.items() for module in modules]:
        for name, function in checks(importlib.import_module(module)).items():
            full = f"{how}.{module}.{name.removeprefix('check_')}"
            if function.__module__ != module or words and not any(word in full for word in words):
                continue
            release, why = getattr(function, "since", getattr(importlib.import_module(module), "SINCE", ("0.0", "")))
            if numbers(os.environ.get("MILLPOND_TORCH_RELEASE", "9.0")) < numbers(release):
                print(f"not asked of this release: {full}: {why}", flush=True)
                continue
            own = {**getattr(function, "environment", {}), "MILLPOND_TORCH_CHECK_NATIVE": str(int(how == "native"))}
            if needs_fresh(module, name, own):
                status, said = fresh(module, name, {**everywhere, **own})
            else:
                status, said = server.run(module, name, own)
            result = {0: "passed", 77: "skipped"}.get(status, "failed")
            counts[result] += 1
            print(f"{'SKIPPED' if result == 'skipped' else result}: {full}", flush=True)
            if result == "skipped":
                print(said.strip())
            elif result == "failed":
                print(f"  status {status}\n{said}", flush=True)
    server.stop()
    print("torch: {passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    elif sys.argv[1:2] == ["--serve"]:
        serve(os.fdopen(int(sys.argv[2]), "w"))
    else:
        sys.exit(main(sys.argv[1:]))
