#!/usr/bin/env python3
"""Tests of a framework that links Millpond statically: examples/framework, built from an installed Millpond.

    run.py LIBRARY exits [--times 100]             ctypes only: clean exits in a row, in each of the ways of alone.py
    run.py LIBRARY clients --plugin-dir DIR        with numpy, and with PaddlePaddle and Millpond's plugin in one process

`clients` needs a Python that has PaddlePaddle and numpy: --python names it; else it is the environment that
tests/paddle/run.py makes. Where there is neither, that is said and counted as skipped.
The last line is `framework: N passed, N failed, N skipped`; the exit status is 0 only without failures.
"""
import argparse
import ast
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RELEASE = "3.3.1"
SECONDS = 240
EXITS_TOGETHER = 5  # how often each order must also leave cleanly

counts = {"ok": 0, "failed": 0, "skipped": 0}


def tell(outcome, name, why=""):
    counts[outcome] += 1
    print(f"{'FAILED' if outcome == 'failed' else outcome.upper() if outcome == 'skipped' else 'ok':8}{name}"
          + (f": {why.strip()}" if why else ""), flush=True)


def run(python, script, arguments, env=None):
    """Runs a script of this folder; gives its status, its output and what it wrote on stderr."""
    command = [str(python), "-B", "-W", "ignore", str(HERE / script)] + [str(a) for a in arguments]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"none after {SECONDS} s", "", ""
    return done.returncode, done.stdout, done.stderr


def functions(script, start):
    """The names of a script's functions that start so."""
    tree = ast.parse((HERE / script).read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith(start)]


def exits(library, times):
    ways = functions("alone.py", "leave_")
    bad = []
    for i in range(times):
        way = ways[i % len(ways)]
        status, output, errors = run(sys.executable, "alone.py", [library, way])
        if (status, output, errors) != (0, "left\n", ""):
            bad.append(f"run {i + 1}, {way}: status {status}, {output!r}\n{errors}")
    name = f"{times} exits in a row, in {len(ways)} ways"
    tell("failed" if bad else "ok", name, "\n".join(bad[:3]))


def checks(python, script, arguments, title, env=None):
    """One line for each check of the script, and one for the way it left."""
    status, output, errors = run(python, script, arguments, env)
    for check in functions(script, "check_"):
        done = f"ok {check}\n" in output
        tell("ok" if done else "failed", f"{title}: {check[len('check_'):].replace('_', ' ')}",
             "" if done else output + errors)
    tell("ok" if status == 0 else "failed", f"{title}: leaves with status 0",
         "" if status == 0 else f"status {status}\n{errors}")
    return status == 0


def paddle_tests():
    """tests/paddle/run.py as a module; None where it is not there."""
    path = HERE.parent / "paddle" / "run.py"
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location("paddle_run", path)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


def client_python(options):
    """(a Python with numpy and PaddlePaddle, or None, and why there is none)"""
    if options.python:
        return options.python, ""
    module = paddle_tests()
    if module is None:
        return None, "tests/paddle/run.py is not here; --python names a Python that has PaddlePaddle and numpy"
    try:
        return module.environment(RELEASE, (options.work or module.cache_dir("paddle")).resolve()), ""
    except module.NoWheel as why:
        return None, f"the wheel of PaddlePaddle {RELEASE} cannot be had ({why})"


def clients(options):
    python, why = client_python(options)
    if python is None:
        tell("skipped", "numpy", why)
        tell("skipped", "one process with PaddlePaddle", why)
        return
    checks(python, "numpy_exchange.py", [options.library], "numpy")
    if not options.plugin_dir or not list(options.plugin_dir.glob("*.so")):
        sys.exit("--plugin-dir must name the folder of the plugin")
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("MILLPOND_", "FLAGS_", "GLOG_", "CUSTOM_DEVICE"))}
    env.update(CUSTOM_DEVICE_ROOT=str(options.plugin_dir.resolve()), MILLPOND_HOST_DEVICES="2",
               MILLPOND_HOST_CAPACITY="256M", OMP_NUM_THREADS="1", FLAGS_use_stride_kernel="0", GLOG_minloglevel="2")
    for order in ["framework", "paddle"]:
        title = f"with PaddlePaddle, {order} first"
        if checks(python, "together.py", [options.library, order], title, env):
            bad = [s for s in (run(python, "together.py", [options.library, order], env)[0]
                               for _ in range(EXITS_TOGETHER)) if s != 0]
            tell("failed" if bad else "ok", f"{title}: {EXITS_TOGETHER} more clean exits",
                 f"statuses {bad}" if bad else "")


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("library", type=pathlib.Path, help="libtiny.so, built from an installed Millpond")
    words.add_argument("part", choices=["exits", "clients"])
    words.add_argument("--times", type=int, default=100)
    words.add_argument("--plugin-dir", type=pathlib.Path, help="the folder that holds the plugin, and nothing else")
    words.add_argument("--python", help="a Python that has PaddlePaddle and numpy")
    words.add_argument("--work", type=pathlib.Path, help="where tests/paddle/run.py makes its environments")
    options = words.parse_args()
    if not options.library.exists():
        sys.exit(f"{options.library} is not there; the test package.example builds it")
    options.library = options.library.resolve()
    if options.part == "exits":
        exits(options.library, options.times)
    else:
        clients(options)
    print(f"framework: {counts['ok']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
