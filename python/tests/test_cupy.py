"""CuPy itself, with memory of the device type `host` where there is no driver: what needs none is allocation."""
import unittest

import millpond
from support import Account, needs, on_fake_driver


class Cupy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cupy = needs("cupy")
        cls.adapter = needs("millpond.cupy")
        cls.device = millpond.Device("host", 0)

    def setUp(self):
        self.account = Account(self.device)
        self.addCleanup(self.adapter.disable)

    def test_arrays_lie_in_the_pool(self):
        self.adapter.enable(self.device)
        array = self.cupy.empty((100, 10), "float32")
        self.assertEqual(self.account.now(), (4000, 1))
        self.assertIn(array.data.ptr, [b.ptr for b in self.device.blocks("live")])
        # A view keeps the memory, and its end ends it.
        view, address = array[50:], array.data.ptr
        del array
        self.assertEqual(self.account.now(), (4000, 1))
        del view
        self.assertEqual(self.account.now(), (0, 0))
        self.assertEqual(self.cupy.empty((100, 10), "float32").data.ptr, address)

    def test_a_pool_of_its_own(self):
        pool = self.device.create_pool("cupy", limit_bytes=4 << 20)
        self.adapter.enable(pool=pool)
        array = self.cupy.empty(1000, "uint8")
        self.assertEqual(pool.stats().requested_bytes.current, 1000)
        self.assertRaises(MemoryError, self.cupy.empty, 8 << 20, "uint8")
        del array
        self.assertEqual(pool.stats().requested_bytes.current, 0)

    def test_an_empty_array(self):
        self.adapter.enable(self.device)
        self.assertEqual(self.cupy.empty(0).size, 0)
        pointer = self.adapter.Allocator(self.device)(0)
        self.assertEqual((pointer.ptr, pointer.mem.size), (0, 0))

    def test_for_one_thread_only(self):
        with self.cupy.cuda.using_allocator(self.adapter.Allocator(self.device)):
            array = self.cupy.empty(300, "uint8")
        self.assertEqual(self.account.now(), (300, 1))
        del array

    def test_pinned_memory_has_its_exact_size(self):
        before = self.device.host_memory_stats()["active_requests.current"]
        self.cupy.cuda.set_pinned_memory_allocator(self.adapter.PinnedAllocator(self.device))
        pointer = self.cupy.cuda.alloc_pinned_memory(40_000)
        self.assertEqual((pointer.size(), pointer.mem.size), (40_000, 40_000))
        self.assertEqual(self.device.host_memory_stats()["active_requests.current"], before + 1)
        memoryview(pointer).cast("B")[:4] = b"mill"
        address = pointer.ptr
        del pointer
        self.assertEqual(self.device.host_memory_stats()["active_requests.current"], before)
        self.assertEqual(self.cupy.cuda.alloc_pinned_memory(40_000).ptr, address)

    def test_after_disable_the_pool_is_left_alone(self):
        self.adapter.enable(self.device)
        kept = self.cupy.empty(700, "uint8")
        self.adapter.disable()
        self.assertIs(self.cupy.cuda.get_allocator().__self__, self.cupy.get_default_memory_pool())
        self.assertEqual(self.account.now(), (700, 1))
        del kept
        self.assertEqual(self.account.now(), (0, 0))

    def test_another_stream_is_recorded(self):
        self.adapter.enable(self.device)
        array = self.cupy.empty(9000, "uint8")
        stream = self.device.stream()
        self.adapter.record_stream(array, stream)
        self.assertRaises(millpond.MillpondError, self.adapter.record_stream, array, 12345)

    def test_a_block_belongs_to_the_current_stream_on_cuda(self):
        self.assertEqual(on_fake_driver(STREAMS), "done\n")


# CuPy itself, but for its question to CUDA's runtime which stream is the current one.
STREAMS = """
import gc, types
import cupy, millpond, millpond.cupy
from unittest import mock

device = millpond.Device("cuda", 0)
one, other = device.stream(), device.stream()
adapter = millpond.cupy.Allocator(device)

def empty(stream, size):
    current = types.SimpleNamespace(ptr=stream.handle if stream else 0)
    with mock.patch("cupy.cuda.get_current_stream", return_value=current):
        return adapter(size)

def owner(pointer):
    return next(b for b in device.blocks("live") if b.ptr == pointer.ptr).stream

first, second, third = empty(one, 1000), empty(other, 1000), empty(None, 1000)
assert [owner(p) for p in (first, second, third)] == [one.handle, other.handle, 0]
# It is freed in the order of that stream, whichever is the current one then: the next of the stream has it at once, and
# the other one does not.
address = first.ptr
del first
gc.collect()
assert empty(other, 1000).ptr != address
assert empty(one, 1000).ptr == address
# A stream that ends before its arrays leaves them valid.
one.close()
fourth = empty(other, 1000)
del fourth, second, third
gc.collect()
assert device.stats().blocks.current == 0, device.stats()
print("done")
"""


if __name__ == "__main__":
    unittest.main()
