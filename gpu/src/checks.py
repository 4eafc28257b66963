"""Checks in Python as rows for the table of gpu/check: each is a function, and runs in a process of its own. What it says last
begins with SKIP where the machine lacks something, and with SEEN where there is a figure to tell."""
import importlib
import os
import subprocess
import sys


def row(name, value, goal, state):
    value = str(value).replace("\t", " ").replace("\n", " ")[:120]
    print(f"row\t{name}\t{value}\t{goal}\t{state}", flush=True)


def skip(why):
    print(f"SKIP {why}")
    sys.exit(0)


def needs(name):
    try:
        return importlib.import_module(name)
    except ImportError as e:
        skip(e)


def run(program, name, *words):
    """Runs the program with the words, and prints its row. Whether nothing failed."""
    try:
        done = subprocess.run([sys.executable, program, *words], timeout=120, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env={**os.environ, "CUPY_CACHE_IN_MEMORY": "1"})
    except subprocess.TimeoutExpired:
        row(name, "no end within 120 s", "right", "fail")
        return False
    print(done.stdout, file=sys.stderr, flush=True)  # the whole of it, for the log
    said = [line for line in done.stdout.strip().splitlines() if "Warning" not in line] or [""]
    if done.returncode == 0 and said[-1].startswith("SKIP "):
        row(name, said[-1][5:], "", "skip")
        return True
    good = done.returncode == 0
    right = f"right; {said[-1][5:]}" if said[-1].startswith("SEEN ") else "right"
    row(name, right if good else f"status {done.returncode}: {said[-1]}", "right", "pass" if good else "fail")
    return good
