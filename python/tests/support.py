"""What the tests of the adapters share: a library that is not there skips a test, aloud; a fake CUDA driver, if named."""
import gc
import importlib
import os
import subprocess
import sys
import unittest


def needs(name):
    """The module, or the test is skipped with the reason."""
    try:
        return importlib.import_module(name)
    except Exception as why:
        text = str(why).strip().splitlines() or [type(why).__name__]
        raise unittest.SkipTest(f"{name} is not here: {text[0]}")


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
