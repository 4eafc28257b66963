"""Functions that are called where there is no memory, and requests that are more than one block."""
import gc
import unittest

import millpond

MIB = 1 << 20


class Handlers(unittest.TestCase):
    def setUp(self):
        self.device = millpond.Device("host", 0)
        gc.collect()
        self.device.empty_cache()
        self.device.set_limit(self.device.stats().reserved_bytes.current + 64 * MIB)

    def tearDown(self):
        self.device.set_limit(0)

    def test_it_frees_what_the_program_can_do_without(self):
        cache, asked = [self.device.alloc(48 * MIB, 0)], []

        def drop(request):
            asked.append(request)
            if not cache:
                return False
            cache.pop().free()
            return True

        with self.device.oom_handler(drop) as handler:
            block = self.device.alloc(40 * MIB, 0)
            self.assertEqual([r.size for r in asked], [40 * MIB])
            self.assertIn("40", asked[0].report)
            block.free()
        self.assertIn("closed", repr(handler))
        handler.close()  # a second time it does nothing
        with self.assertRaises(millpond.OutOfMemoryError):
            self.device.alloc(80 * MIB, 0)
        self.assertEqual(len(asked), 1)

    def test_one_of_a_pool_is_called_for_its_requests_only(self):
        pool, other, asked = self.device.create_pool("weights"), self.device.create_pool("other"), []
        handler = pool.oom_handler(lambda request: asked.append(request.pool))
        held = other.alloc(60 * MIB, 0)
        with self.assertRaises(millpond.OutOfMemoryError):
            other.alloc(40 * MIB, 0)
        self.assertEqual(asked, [])
        with self.assertRaises(millpond.OutOfMemoryError):
            pool.alloc(40 * MIB, 0)
        self.assertEqual(len(asked), 1)
        self.assertIn("weights", asked[0])
        held.free()
        pool.release()  # which ends it
        handler.close()

    def test_what_it_lets_out_counts_as_false_and_is_raised_at_the_end(self):
        def fails(request):
            raise KeyError(request.size)

        held = self.device.alloc(60 * MIB, 0)
        handler = self.device.oom_handler(fails)
        with self.assertRaises(millpond.OutOfMemoryError):
            self.device.alloc(40 * MIB, 0)
        with self.assertRaises(KeyError) as raised:
            handler.close()
        self.assertEqual(raised.exception.args, (40 * MIB,))
        held.free()
        with self.assertRaises(TypeError):
            self.device.oom_handler(None)


class Batches(unittest.TestCase):
    def setUp(self):
        self.device = millpond.Device("host", 0)
        gc.collect()
        self.before = self.device.stats().blocks.current

    def tearDown(self):
        self.assertEqual(self.device.stats().blocks.current, self.before)

    def test_many_blocks_in_one_call(self):
        pool, stream = self.device.default_pool, self.device.stream()
        blocks = pool.alloc_batch([100, 0, 5000, 3 * MIB], stream)
        self.assertEqual([(b.size, b.stream) for b in blocks], [(n, stream.handle) for n in (100, 0, 5000, 3 * MIB)])
        self.assertEqual(self.device.stats().blocks.current, self.before + 3)
        blocks[2].free()  # each may end by itself
        pool.free_batch(blocks)
        self.assertTrue(all(b.is_freed for b in blocks))
        pool.free_batch(blocks)
        pool.free_batch([])
        self.assertEqual(pool.alloc_batch([]), [])
        with self.assertRaises(millpond.OutOfMemoryError):
            pool.alloc_batch([100, 1 << 60], stream)

    def test_a_view_keeps_all_of_them(self):
        pool = self.device.default_pool
        blocks = pool.alloc_batch([100, 200, 300])
        view = blocks[1].view()
        with self.assertRaises(BufferError):
            pool.free_batch(blocks)
        self.assertFalse(any(b.is_freed for b in blocks))
        view.release()
        del view
        gc.collect()
        pool.free_batch(blocks)

    def test_blocks_without_a_stream_in_common_want_one_named(self):
        pool, stream = self.device.default_pool, self.device.stream()
        blocks = [pool.alloc(100, 0), pool.alloc(100, stream), self.device.alloc(100)]
        with self.assertRaises(ValueError):
            pool.free_batch(blocks)
        with self.assertRaises(ValueError):
            pool.free_batch(blocks[2:])
        pool.free_batch(blocks, stream)

    def test_aligned_and_usable(self):
        stream = self.device.stream()
        for align in (512, 4096, 1 << 16, 2 * MIB):
            for where in (None, stream):
                block = self.device.alloc(1000, where, True, align=align)
                self.assertEqual(block.ptr % align, 0)
                stream.synchronize()
                self.assertEqual(bytes(block), bytes(1000))
                usable = block.usable_size
                self.assertGreaterEqual(usable, 1000)
                self.assertTrue(block.try_expand(usable))
                self.assertEqual((block.size, block.usable_size), (usable, usable))
        with self.assertRaises(millpond.MillpondError):
            self.device.alloc(1000, align=3)
        self.assertEqual(self.device.alloc(0).usable_size, 0)
        del block
        gc.collect()


if __name__ == "__main__":
    unittest.main()
