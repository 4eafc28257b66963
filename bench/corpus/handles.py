"""The smallest card on which programs complete, by the size of the largest handles, and the modelled time of the driver's
calls: over the fake CUDA driver, so that it can be run again anywhere.

    handles.py TRACE...                    one row for each trace, and the median and the worst of all
    handles.py --sizes 2M,20M TRACE...     other sizes than 2, 8, 20, 32 and 64 MiB

Before it: cargo build && cargo build --release -p millpond-cli. MILLPOND_COMMAND and MILLPOND_CUDA_LIBRARY name other files.

A card's capacity is tried in granules of 2 MiB, between what the program holds at its peak and a quarter more, with the
headroom off. Modelled time is of one run on a card of twice the peak, where memory is plentiful.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
COMMAND = os.environ.get("MILLPOND_COMMAND", str(TARGET / "release" / "millpond"))
DRIVER = os.environ.get("MILLPOND_CUDA_LIBRARY", str(TARGET / "debug" / "libcuda.so"))
GRANULE = 2 << 20
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def replay(trace, capacity, handle):
    """What the command says of a run on a card of `capacity` bytes; None: it did not complete."""
    env = {**os.environ, "MILLPOND_CUDA_LIBRARY": DRIVER, "MILLPOND_CUDA_HANDLE": handle, "FAKECUDA_STRICT": "1",
           "FAKECUDA_NO_FD": "1", "FAKECUDA_CAPACITY": str(capacity), "MILLPOND_ALLOC_CONF": "headroom_mb:0"}
    done = subprocess.run([COMMAND, "replay", "--device", "cuda", "--touch", "none", str(trace)], env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout if done.returncode == 0 else None


def peak_of(trace):
    said = replay(trace, 256 << 30, "2M")
    number, unit = re.search(r"program's peak\s+([\d.]+) (\w+)", said.replace("\u202f", "")).groups()
    # Rounded by the command: the search begins a little below.
    return float(number) * UNITS[unit]


def modelled_ms(said):
    number, unit = re.search(r"modelled driver time\s+([\d.]+) (\w+)", said).groups()
    return float(number) * {"s": 1e3, "ms": 1, "µs": 1e-3}[unit]


def smallest(trace, peak, handle):
    """The smallest capacity beside the peak."""
    least, most = int(peak * 0.995) // GRANULE, int(peak * 1.25) // GRANULE + 8
    if replay(trace, most * GRANULE, handle) is None:
        return float("inf")
    while most - least > 1:
        middle = (least + most) // 2
        if replay(trace, middle * GRANULE, handle) is None:
            least = middle
        else:
            most = middle
    return most * GRANULE / peak


def main(words):
    sizes = "2M,8M,20M,32M,64M"
    if words[:1] == ["--sizes"]:
        sizes, words = words[1], words[2:]
    sizes = sizes.split(",")
    print("| program | " + " | ".join(sizes) + " | " + " | ".join(f"{s} [ms]" for s in sizes) + " |")
    print("| --- |" + " --- |" * (2 * len(sizes)), flush=True)
    rows = {size: [] for size in sizes}
    for trace in map(pathlib.Path, words):
        peak = peak_of(trace)
        here = {size: smallest(trace, peak, size) for size in sizes}
        times = [modelled_ms(replay(trace, int(2 * peak) // GRANULE * GRANULE, size)) for size in sizes]
        for size in sizes:
            rows[size].append(here[size])
        name = trace.name.split(".")[0]
        print(f"| {name} | " + " | ".join(f"{here[s]:.4f}" for s in sizes) + " | " + " | ".join(f"{t:.0f}" for t in times)
              + " |", flush=True)
    if words:
        for title, of in (("median", statistics.median), ("worst", max)):
            print(f"| {title} | " + " | ".join(f"{of(rows[s]):.4f}" for s in sizes) + " |" + " |" * len(sizes))


if __name__ == "__main__":
    main(sys.argv[1:])
