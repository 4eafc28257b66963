"""CuPy itself, with memory of the device type `host` where there is no driver: what needs none is allocation."""
import unittest

import millpond
from support import Account, needs


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


if __name__ == "__main__":
    unittest.main()
