"""Runs the checks of this folder, each in a process of its own over the fake driver; scripts/torch.sh sets that up.

    run.py [WORD]...    those whose name contains one of the words

The last line is `torch: N passed, N failed, N skipped`.
"""
import importlib
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
# Under the pluggable allocator, and under the one of C++.
MODULES = {"pluggable": ["graphs", "pools", "devices", "switch", "programs", "processor", "vendor", "settings"],
           "native": ["graphs", "devices", "programs", "native", "mempools", "others", "history", "checkpoints", "processes", "upstream", "upstream_streams", "upstream_pools", "settings"]}
LIMIT = int(os.environ.get("MILLPOND_TORCH_CHECK_SECONDS", "240"))  # of a check, some of which run a compiler


def checks(module):
    return {name: f for name, f in vars(module).items() if name.startswith("check_") and callable(f)}


def numbers(release):
    return [int(part) for part in release.split(".")[:2]]


def one(module, name):
    sys.path.insert(0, str(HERE))
    checks(importlib.import_module(module))[name]()


def main(words):
    sys.path.insert(0, str(HERE))
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    subprocess.run([sys.executable, "-c", "import millpond_torch; millpond_torch.build_native()"], check=True,
                   env={**os.environ, "LD_PRELOAD": os.environ["MILLPOND_TORCH_PRELOAD"]})
    for how, module in [(how, module) for how, modules in MODULES.items() for module in modules]:
        for name, function in checks(importlib.import_module(module)).items():
            full = f"{how}.{module}.{name.removeprefix('check_')}"
            if function.__module__ != module or words and not any(word in full for word in words):
                continue
            release, why = getattr(function, "since", getattr(importlib.import_module(module), "SINCE", ("0.0", "")))
            if numbers(os.environ.get("MILLPOND_TORCH_RELEASE", "9.0")) < numbers(release):
                print(f"not asked of this release: {full}: {why}", flush=True)
                continue
            settings = {**os.environ, **getattr(function, "environment", {}),
                        "MILLPOND_TORCH_CHECK_NATIVE": str(int(how == "native")), "LD_PRELOAD": os.environ["MILLPOND_TORCH_PRELOAD"]}
            try:
                done = subprocess.run([sys.executable, __file__, "--one", module, name], env=settings, timeout=LIMIT,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                status, said = done.returncode, done.stdout
            except subprocess.TimeoutExpired as e:
                status, said = "no end", (e.stdout or b"").decode(errors="replace")
            result = {0: "passed", 77: "skipped"}.get(status, "failed")
            counts[result] += 1
            print(f"{'SKIPPED' if result == 'skipped' else result}: {full}", flush=True)
            if result == "skipped":
                print(said.strip())
            elif result == "failed":
                print(f"  status {status}\n{said}", flush=True)
    print("torch: {passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
