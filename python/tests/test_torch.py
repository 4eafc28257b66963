"""The package millpond-torch beside this one: one pond, whichever came first. PyTorch itself is in torch/tests."""
import importlib.util
import os
import subprocess
import sys
import unittest

from support import extension

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

# The same beside CuPy itself and a C library, each linked or loaded on its own: all are in one account.
TOGETHER = """
import ctypes, sys
import cupy, millpond.cupy
device = millpond.Device("host", 0)
millpond.cupy.enable(device)
torch = ctypes.CDLL(millpond_torch.library_path())
torch.millpond_torch_alloc.restype = ctypes.c_void_p
torch.millpond_torch_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
torch.millpond_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
own = ctypes.CDLL(sys.argv[1])
own.extension_alloc.restype, own.extension_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

tensor = torch.millpond_torch_alloc(3 << 20, 0, None)
array = cupy.empty(5 << 20, "uint8")
block = own.extension_alloc(7 << 20)
live = {b.ptr: b.requested for b in device.blocks("live")}
assert live == {tensor: 3 << 20, array.data.ptr: 5 << 20, block: 7 << 20}, live
assert millpond_torch.memory_stats(0)["requested_bytes.all.current"] == 15 << 20
# What one frees serves the next, whoever that is: nothing more is taken from the device.
reserved = device.stats().reserved_bytes.current
torch.millpond_torch_free(tensor, 3 << 20, 0, None)
again = cupy.empty(3 << 20, "uint8")
assert device.stats().reserved_bytes.current == reserved, (device.stats(), hex(tensor), hex(again.data.ptr))
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

    def test_one_pool_under_several_libraries(self):
        if importlib.util.find_spec("millpond_torch") is None or importlib.util.find_spec("cupy") is None:
            self.skipTest("millpond-torch or CuPy is not installed")
        with extension() as made:
            env = dict(os.environ, MILLPOND_TORCH_DEVICE="host")
            program = FIRST["millpond-torch"] + TOGETHER
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, made], env=env, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.stdout, "done\n")


if __name__ == "__main__":
    unittest.main()
