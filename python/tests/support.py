"""What the tests of the adapters share: a library that is not there skips a test, aloud; a fake CUDA driver, if named."""
import contextlib
import gc
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock


def needs(name):
    """The module, or the test is skipped with the reason."""
    try:
        return importlib.import_module(name)
    except Exception as why:
        text = str(why).strip().splitlines() or [type(why).__name__]
        raise unittest.SkipTest(f"{name} is not here: {text[0]}")


EXTENSION = """
#include <millpond/millpond.h>
void *extension_alloc(size_t size_bytes) {
  millpond_device *device;
  void *block;
  if (millpond_device_get("host", 0, &device) || millpond_alloc(device, size_bytes, &block)) return NULL;
  return block;
}
"""


@contextlib.contextmanager
def extension():
    """The file of a C library that is linked to the package's; skips where there is no compiler."""
    import millpond

    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise unittest.SkipTest("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, made = pathlib.Path(folder) / "extension.c", pathlib.Path(folder) / "extension.so"
        source.write_text(EXTENSION)
        subprocess.run([compiler, "-shared", "-fPIC", source, "-o", made, f"-I{millpond.prefix()}/include",
                        f"-L{millpond.prefix()}/lib", "-l:libmillpond.so.0"], check=True)
        yield str(made)


def on_fake_driver(program):
    """Runs a program over the fake CUDA driver that MILLPOND_TEST_CUDA names; its output. Skips where there is none."""
    driver = os.environ.get("MILLPOND_TEST_CUDA")
    if not driver:
        raise unittest.SkipTest("no fake CUDA driver: MILLPOND_TEST_CUDA names none")
    env = dict(
        os.environ, LD_LIBRARY_PATH=os.path.dirname(driver), MILLPOND_CUDA_LIBRARY=driver, FAKECUDA_DEVICES="2",
        FAKECUDA_CAPACITY="1G",
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"status {done.returncode}\n{done.stderr}")
    return done.stdout


def slow_or_failing(name, **more):
    """Inside, the module _memory calls the library by way of this: see Calls."""
    calls = Calls(name, **more)
    return unittest.mock.patch("millpond._memory.library", return_value=calls)


class Calls:
    """The library, with one function that takes its time, and that fails at first."""

    def __init__(self, name, failures=0, seconds=0.0):
        self.name, self.failures, self.seconds, self.count = name, failures, seconds, 0

    def __getattr__(self, name):
        from millpond._library import library

        function = getattr(library(), name)
        if name != self.name:
            return function

        def call(device, *rest):
            self.count += 1
            time.sleep(self.seconds)
            if self.count <= self.failures:
                return library().millpond_device_get_info(None, None)  # INVALID_ARGUMENT
            return function(device, *rest)

        return call


class Account:
    """How many bytes and blocks a device has more than when this was made."""

    def __init__(self, device):
        self.device = device
        gc.collect()
        self.bytes, self.blocks = 0, 0
        self.bytes, self.blocks = self.now()

    def now(self):
        gc.collect()
        stats = self.device.stats()
        return stats.requested_bytes.current - self.bytes, stats.blocks.current - self.blocks
