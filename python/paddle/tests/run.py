#!/usr/bin/env python3
"""Builds the package millpond-paddle from a CMake build, installs it into a fresh environment, and runs it with
PaddlePaddle's released wheels.

    python3 python/paddle/tests/run.py BUILD [--release 3.3.1]...

PaddlePaddle itself is that of the environments that tests/paddle/run.py makes; each fresh one sees it by a .pth file. The
last line is `millpond-paddle: N passed, N failed, N skipped`. Needs Python 3.11 with its venv module.
"""
import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
_spec = importlib.util.spec_from_file_location("paddle_run", ROOT / "tests/paddle/run.py")
released = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(released)

NOT_ASKED = """
import paddle
assert paddle.device.get_all_custom_device_type() == [], paddle.device.get_all_custom_device_type()
assert paddle.ones([2, 2]).place.is_cpu_place()
"""
ASKED = """
import os, tempfile, sys, subprocess
import millpond_paddle
assert not millpond_paddle.is_enabled()
millpond_paddle.enable()
millpond_paddle.enable()
assert millpond_paddle.is_enabled()
import paddle
assert paddle.device.get_all_custom_device_type() == ["millpond"]
assert paddle.get_device() == "cpu" and paddle.ones([2, 2]).place.is_cpu_place()
paddle.set_device("millpond:0")
x = paddle.ones([3, 4])
assert str(x.place) == "Place(millpond:0)", x.place
assert (x.numpy() == 1).all()
paddle.set_device("cpu")
assert paddle.ones([2, 2]).place.is_cpu_place()
assert not [f for f in os.listdir(tempfile.gettempdir()) if f.startswith("millpond-paddle-")]
assert "CUSTOM_DEVICE_ROOT" not in os.environ
# A child that asks for nothing has nothing.
subprocess.run([sys.executable, "-W", "ignore", "-c", %r], check=True)
""" % NOT_ASKED
LATE = """
import paddle, millpond_paddle
try:
    millpond_paddle.enable()
except RuntimeError as e:
    assert "before" in str(e), e
else:
    raise SystemExit("it was too late")
"""
NAMED = """
import os
os.environ["MILLPOND_PLUGIN_TYPE"] = "pond"
before = dict(os.environ)
import millpond_paddle
millpond_paddle.enable(serve="cpu")
told = {k: v for k, v in os.environ.items() if k.startswith(("MILLPOND_", "CUSTOM_DEVICE"))}
assert told == {k: v for k, v in before.items() if k.startswith(("MILLPOND_", "CUSTOM_DEVICE"))}, told
import paddle
assert paddle.device.get_all_custom_device_type() == ["pond"]
assert paddle.get_device() == "cpu"
paddle.set_device("pond:0")
assert (paddle.full([5], 3).numpy() == 3).all()
"""
# Another vendor's plugin: the example of this repository. Where PaddlePaddle begins with it, it still does.
OTHERS = """
import os
import millpond_paddle
folder = os.environ.get("CUSTOM_DEVICE_ROOT")
millpond_paddle.enable()
import paddle
assert sorted(paddle.device.get_all_custom_device_type()) == ["example", "millpond"]
assert paddle.get_device() == "example:0", paddle.get_device()
assert os.environ.get("CUSTOM_DEVICE_ROOT") == folder
for device in ("millpond:1", "example:0"):
    paddle.set_device(device)
    assert str(paddle.ones([2]).place) == f"Place({device})"
"""
BROKEN = """
import millpond_paddle
millpond_paddle.plugin_path = lambda: millpond_paddle.__file__  # no plugin, and so nothing that PaddlePaddle takes
try:
    millpond_paddle.enable()
except RuntimeError as e:
    assert millpond_paddle.__file__ in str(e), e
else:
    raise SystemExit("enabled without a plugin")
assert not millpond_paddle.is_enabled()
"""


def must(*words):
    done = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(str(w) for w in words)}\n{done.stdout}")


def fresh(paddle, work, builder, wheel):
    """An environment of its own with our wheel, which sees PaddlePaddle; its Python. The wheel is installed by the builder's
    pip: to put one into each environment takes longer than all the checks in it."""
    shutil.rmtree(work, ignore_errors=True)
    must(paddle, "-m", "venv", "--without-pip", work)
    python = work / "bin/python"
    must(builder, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet", "--no-index", wheel)
    [site] = work.glob("lib/python*/site-packages")
    [theirs] = paddle.parent.parent.glob("lib/python*/site-packages")
    (site / "paddlepaddle.pth").write_text(f"{theirs}\n")
    return python, site


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("build", type=pathlib.Path, help="a CMake build of this repository")
    words.add_argument("--release", action="append", choices=list(released.RELEASES))
    words.add_argument("--paddle", type=pathlib.Path, default=released.cache_dir("paddle"),
                       help="where tests/paddle/run.py makes its environments")
    words.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/python-paddle"))
    options = words.parse_args()
    work = options.work.resolve()
    tally = released.Tally()
    if sys.version_info < (3, 11):
        print("SKIPPED: millpond-paddle: building it needs Python 3.11 or newer")
        print("millpond-paddle: 0 passed, 0 failed, 1 skipped")
        return 0
    shutil.rmtree(work, ignore_errors=True)
    must("cmake", "--install", options.build, "--prefix", work / "prefix", "--component", "plugin")
    must(sys.executable, "-m", "venv", work / "builder")
    builder = work / "builder/bin/python"
    must(builder, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps",
         "--no-build-isolation", "--config-settings", f"prefix={work / 'prefix'}", "--wheel-dir", work,
         ROOT / "python/paddle")
    [wheel] = work.glob("millpond_paddle-*.whl")
    print(wheel.name, flush=True)
    example = options.build.resolve() / "cpp_tests/foreign_plugin/libmillpond_example_plugin.so"

    checks, later = [], []
    for release, paddle in released.environments(options.release or released.RELEASES, options.paddle.resolve(), 1):
        if isinstance(paddle, Exception):
            tally.skip(f"PaddlePaddle {release}", str(paddle))
            continue
        python, site = fresh(paddle, work / f"venv-{release}", builder, wheel)

        checks += [(release, python, *check) for check in [
            ("asked for, beside the CPU", ASKED, None),
            ("not asked for, not there, and then asked for too late", NOT_ASKED + LATE, None),
            ("by another name, on another type", NAMED, None),
            ("without its plugin", BROKEN, None),
        ]]
        if not example.is_file():
            tally.skip(f"{release}: beside a vendor's plugin", f"there is no {example}")
            continue
        vendors = work / f"vendors-{release}"
        vendors.mkdir()
        shutil.copy(example, vendors)
        # A second copy of ours, which must not count.
        shutil.copy(site / "millpond_paddle/plugin/libmillpond-plugin.so", vendors)
        checks.append((release, python, "beside a vendor's plugin in CUSTOM_DEVICE_ROOT", OTHERS, vendors))
        checks.append((release, python, "beside a vendor's plugin in a relative CUSTOM_DEVICE_ROOT", OTHERS, vendors, True))
        later.append((site, (release, python, "beside a vendor's plugin in the common folder", OTHERS, None)))

    def check(release, python, name, text, root, relative=False):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith(("MILLPOND_", "FLAGS_", "GLOG_", "CUSTOM_DEVICE", "PYTHON"))}
        with tempfile.TemporaryDirectory(dir=work) as folder:
            env.update(GLOG_minloglevel="2", MILLPOND_HOST_CAPACITY="256M", TMPDIR=folder)
            if root is not None:
                env["CUSTOM_DEVICE_ROOT"] = os.path.relpath(root, folder) if relative else str(root)
            status, said = released.program([python, "-W", "ignore", "-c", text], env, folder)
        if status == 0 and not said:
            tally.ok(f"{release}: {name}")
        else:
            tally.fail(f"{release}: {name}", f"status {status}\n{said}")

    with concurrent.futures.ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        list(pool.map(lambda c: check(*c), checks))
        # The common folder changes what all others see.
        for site, _ in later:
            (site / "paddle_custom_device").mkdir()
            shutil.copy(example, site / "paddle_custom_device")
        list(pool.map(lambda c: check(*c[1]), later))
    print(f"millpond-paddle: {tally.passed} passed, {len(tally.failures)} failed, {tally.skipped} skipped")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
