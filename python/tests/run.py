#!/usr/bin/env python3
"""Builds the package from a CMake build, installs it into a fresh environment, and runs its tests there.

    python3 python/tests/run.py BUILD [--command FILE]

With CuPy, numba-cuda, cuda.core, mypy and Prometheus' client where pip can get them; where it cannot, their tests are
skipped, aloud. Their wheels are kept in ${XDG_CACHE_HOME:-~/.cache}/millpond/wheels, so a second run needs no network. The last line
is `python: N passed, N failed, N skipped`.

Needs Python 3.11 with its venv module, and nothing else.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What was tried. CuPy brings NumPy; numba-cuda loads the small runtime of CUDA as it is imported.
HOSTS = ["cupy-cuda12x==14.2.0", "numba-cuda==0.30.4", "cuda-core==1.2.2", "cuda-bindings==13.5.0",
         "nvidia-cuda-runtime==13.5.37", "mypy==2.4.1"]
# What builds a project with CMake for pip.
BUILDER = "scikit-build-core==1.1.2"
# The parser of Prometheus' own client, which is small and pure Python.
PARSER = "prometheus-client==0.26.0"
PIP_SECONDS = 600


def command(*words, seconds=PIP_SECONDS, **more):
    """Runs it; whether it worked, and what it said."""
    try:
        done = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds, **more)
    except subprocess.TimeoutExpired:
        return False, f"{words[0]} took more than {seconds} s"
    return done.returncode == 0, done.stdout


def must(*words, **more):
    good, said = command(*words, **more)
    if not good:
        sys.exit(f"failed: {' '.join(str(w) for w in words)}\n{said}")
    return said


def hosts(python, cache, packages):
    """Installs packages, from the cache where they are there; why not, if not."""
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    version = must(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    wheels = cache / f"hosts-py{version}"
    install = pip + ["install", "--quiet", "--no-compile", "--no-index", "--find-links", wheels] + packages
    if wheels.is_dir() and command(*install)[0]:
        return None
    wheels.mkdir(parents=True, exist_ok=True)
    good, said = command(*pip, "download", "--quiet", "--dest", wheels, *packages)
    if good:
        good, said = command(*install)
    lines = [line for line in said.splitlines() if line.strip()]
    return None if good else (lines or ["pip said nothing"])[-1]


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("build", type=pathlib.Path, help="a CMake build of this repository")
    words.add_argument("--command", type=pathlib.Path, required=True, help="the `millpond` command to pack")
    words.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/python"))
    options = words.parse_args()
    if sys.version_info < (3, 11):
        print("SKIPPED: the Python packages: building them needs Python 3.11 or newer")
        print("python: 0 passed, 0 failed, 1 skipped")
        return 0
    work, began = options.work.resolve(), time.monotonic()
    shutil.rmtree(work, ignore_errors=True)

    prefix = work / "prefix"
    projects = [ROOT / "python"]
    if (options.build / "torch/libmillpond-torch.so").is_file():
        projects.append(ROOT / "torch")
    for part in ("dev", "shared", "torch"):
        must("cmake", "--install", options.build, "--prefix", prefix, "--component", part)
    (prefix / "bin").mkdir()
    shutil.copy(options.command, prefix / "bin/millpond")
    python = work / "venv/bin/python"
    must(sys.executable, "-m", "venv", work / "venv")
    # By pip, as a user would from a checkout.
    must(python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--config-settings", f"prefix={prefix}", "--wheel-dir", work, *projects)
    made = sorted(work.glob("*.whl"))
    must(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", *made)
    print(f"{', '.join(wheel.name for wheel in made)}, after {time.monotonic() - began:.0f} s", flush=True)

    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "millpond/wheels"
    for what, packages in [("CuPy, Numba and cuda.core", HOSTS), ("scikit-build-core", [BUILDER]), ("Prometheus' client", [PARSER])]:
        why = hosts(python, cache, packages)
        if why:
            print(f"SKIPPED: {what} cannot be had: {why}")
    print(f"the environment, after {time.monotonic() - began:.0f} s", flush=True)

    env = {k: v for k, v in os.environ.items() if not k.startswith(("MILLPOND_", "NUMBA_", "CUPY_", "PYTHON"))}
    driver = options.build.resolve() / "fakecuda/libcuda.so.1"
    if driver.is_file():
        env["MILLPOND_TEST_CUDA"] = str(driver)
    sys.stdout.flush()
    return subprocess.run([str(python), str(HERE)], env=env, cwd=work, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
