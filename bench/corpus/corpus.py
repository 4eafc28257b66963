#!/usr/bin/env python3
"""The corpus: programs that were not chosen for what an allocator does with them (README.md).

    corpus.py list                     the programs by half
    corpus.py make [WORD]...           writes their traces to target/corpus; needs torch and torchvision, no GPU
    corpus.py measure HALF [WORD]...   `tuned`, `other` or `all`: the smallest devices, by `millpond bisect`

WORD: those whose name contains one of the words.
"""
import concurrent.futures
import hashlib
import inspect
import os
import pathlib
import random
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
TRACES = TARGET / "corpus"


KINDS = (["rng", "rec"], ["rng", "trace"])


def modules():
    import arrays
    import serve
    import small
    import train
    return train, small, serve, arrays


def programs():
    """All of them, by name. A program is a function of these modules that takes `rng` and `rec`, or, where it
    writes the trace itself, `rng` and `trace`."""
    found = {}
    for module in modules():
        for name, function in vars(module).items():
            if inspect.isfunction(function) and list(inspect.signature(function).parameters) in KINDS:
                found[name] = function
    return found


def halves(names):
    """The rule, fixed before anything was measured: by the SHA-256 of the name, every second one is looked at."""
    order = sorted(names, key=lambda n: hashlib.sha256(n.encode()).hexdigest())
    return {"tuned": order[::2], "other": order[1::2]}


def chosen(names, words):
    return [n for n in names if not words or any(w in n for w in words)]


def seed(name):
    return random.Random(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))


def make(name):
    from record import Trace, record
    function = programs()[name]
    if "rec" in inspect.signature(function).parameters:
        trace = record(function, seed(name))
    else:
        trace = Trace()
        function(seed(name), trace)
    TRACES.mkdir(parents=True, exist_ok=True)
    trace.write(TRACES / f"{name}.trace", name, " ".join(function.__doc__.split()))
    streams = len({e[2] for e in trace.events if len(e) == 3})
    return f"{name}: {len(trace.events)} events, {trace.peak / 2**20:.0f} MiB at the peak, {streams} streams"


def measured(name, options):
    environment = {**os.environ, "MILLPOND_ALLOC_CONF": options}
    done = subprocess.run([str(TARGET / "release" / "millpond"), "bisect", "--quiet", str(TRACES / f"{name}.trace")],
                          env=environment, capture_output=True, text=True)
    if done.returncode:
        return float("inf"), done.stderr.strip()
    said = done.stdout.split(" of its peak")[0].split()[-1]
    return float(said), done.stdout


def measure(names):
    ways = {"mapping": "", "segments": "expandable_segments:False"}
    ways = {w: o for w, o in ways.items() if w in os.environ.get("CORPUS_WAYS", "mapping,segments")}
    results = {}
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("CORPUS_JOBS", "1"))) as pool:
        jobs = {(n, w): pool.submit(measured, n, o) for n in names for w, o in ways.items()}
        for (n, w), job in jobs.items():
            results[n, w], said = job.result()
            if results[n, w] == float("inf"):
                print(n, w, said, file=sys.stderr)
    print(f"{'program':36}" + "".join(f"{w:>10}" for w in ways))
    for n in names:
        print(f"{n:36}" + "".join(f"{results[n, w]:10.4f}" for w in ways))
    for title, of in (("median", statistics.median), ("mean", statistics.fmean), ("worst", max)):
        print(f"{title:36}" + "".join(f"{of([results[n, w] for n in names]):10.4f}" for w in ways))


def main(command="list", *words):
    if command == "make":
        for name in chosen(sorted(programs()), words):
            print(make(name), flush=True)
    elif command == "measure":
        names = [p.stem for p in TRACES.glob("*.trace")]
        half = halves(names)
        of = half["tuned"] + half["other"] if words[0] == "all" else half[words[0]]
        measure(chosen(sorted(of), words[1:]))
    elif command == "list":
        for half, names in halves(programs()).items():
            print(half, *sorted(names), sep="\n    ")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
