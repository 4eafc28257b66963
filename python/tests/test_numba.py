"""Numba itself (numba-cuda): its manager on `host`, and whole arrays over the fake CUDA driver."""
import unittest

import millpond
from support import Account, needs, on_fake_driver

ARRAYS = """
import numpy, millpond
from numba import cuda
{enable}
device = None
first = cuda.device_array(1000, numpy.float32)
device = millpond.Device("cuda", 0)
assert device.stats().requested_bytes.current == 4000, device.stats()
assert first.__cuda_array_interface__["data"][0] in [b.ptr for b in device.blocks("live")]
second = cuda.to_device(numpy.arange(1000))
assert (second.copy_to_host() == numpy.arange(1000)).all()
assert device.stats().requested_bytes.current == 12000
part = second[100:200]
del second
assert device.stats().requested_bytes.current == 12000
assert (part.copy_to_host() == numpy.arange(100, 200)).all()
del first, part
assert device.stats().requested_bytes.current == 0, device.stats()
free, total = cuda.current_context().get_memory_info()
assert 0 < free <= total == 1 << 30, (free, total)
try:
    cuda.current_context().get_ipc_handle(cuda.device_array(10).gpu_data)
    raise SystemExit("an IPC handle of a pool's block")
except NotImplementedError:
    pass
try:
    cuda.device_array(2 << 30, numpy.uint8)
    raise SystemExit("more than there is")
except MemoryError:
    pass
cuda.select_device(1)
third = cuda.device_array(500, numpy.uint8)
assert millpond.Device("cuda", 1).stats().requested_bytes.current == 500
print("done")
"""


class Numba(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        needs("numba.cuda.cudadrv.driver")
        cls.adapter = needs("millpond.numba")

    def test_the_manager_on_the_host(self):
        from numba.cuda.cudadrv import driver

        device = millpond.Device("host", 0)
        account = Account(device)
        self.adapter.enable(device)
        manager = driver._memory_manager(context=None)
        manager.initialize()
        memory = manager.memalloc(1000)
        self.assertEqual((memory.size, account.now()), (1000, (1000, 1)))
        self.assertIn(int(memory.device_pointer), [b.ptr for b in device.blocks("live")])
        other = manager.memalloc(2000)
        memory.free()
        self.assertEqual(account.now(), (2000, 1))
        del other
        self.assertEqual(account.now(), (0, 0))
        del memory
        empty = manager.memalloc(0)
        self.assertEqual(empty.size, 0)
        info = manager.get_memory_info()
        self.assertTrue(0 < info.free <= info.total)

    def test_arrays_over_the_fake_driver(self):
        self.assertEqual(on_fake_driver(ARRAYS.format(enable="import millpond.numba; millpond.numba.enable()")), "done\n")

    def test_by_the_environment(self):
        program = "import os\nos.environ['NUMBA_CUDA_MEMORY_MANAGER'] = 'millpond.numba'\n" + ARRAYS.format(enable="")
        self.assertEqual(on_fake_driver(program), "done\n")


if __name__ == "__main__":
    unittest.main()
