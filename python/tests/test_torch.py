"""The package millpond-torch beside this one: one pond, whichever came first. PyTorch itself is in torch/tests."""
import importlib.util
import os
import subprocess
import sys
import unittest

FIRST = {
    "millpond": "import millpond\nmillpond.version()\nimport millpond_torch",
    "millpond-torch": "import millpond_torch\nmillpond_torch.version()\nimport millpond",
}
# Through the functions that PyTorch calls.
SHARED = """
import ctypes
device = millpond.Device("host", 0)
lib = ctypes.CDLL(millpond_torch.library_path())
lib.millpond_torch_alloc.restype = ctypes.c_void_p
lib.millpond_torch_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
lib.millpond_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
block = device.alloc(5000)
tensor = lib.millpond_torch_alloc(70000, 0, None)
assert device.stats().requested_bytes.current == 75000, device.stats()
assert millpond_torch.memory_stats(0)["requested_bytes.all.current"] == 75000
assert tensor in [b.ptr for b in device.blocks("live")]
lib.millpond_torch_free(tensor, 70000, 0, None)
assert device.stats().requested_bytes.current == 5000
assert "site-packages/millpond/lib/" in millpond.library_path(), millpond.library_path()
assert "site-packages/millpond_torch/" in millpond_torch.library_path()
print("done")
"""


class Torch(unittest.TestCase):
    def test_one_pond(self):
        if importlib.util.find_spec("millpond_torch") is None:
            self.skipTest("millpond-torch is not installed")
        for name, first in FIRST.items():
            with self.subTest(first=name):
                env = dict(os.environ, MILLPOND_TORCH_DEVICE="host")
                done = subprocess.run([sys.executable, "-c", first + SHARED], env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.stdout, "done\n")


if __name__ == "__main__":
    unittest.main()
