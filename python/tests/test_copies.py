"""Copies: what owns memory, or anything else that ends once, has none."""
import copy
import gc
import multiprocessing
import pickle
import tempfile
import unittest

import millpond


def _name(device):
    return device.name, bytes(device.default_pool.alloc(4, zeroed=True))


class Copies(unittest.TestCase):
    def setUp(self):
        self.device = millpond.Device("host")

    def test_what_ends_once_is_not_copied(self):
        device, stream = self.device, self.device.stream()
        pool = device.create_pool("copied")
        block, pinned, unified = pool.alloc(8, stream), device.alloc_host(8), device.alloc_unified(8)
        block.fill(7, stream)
        hook, handler = device.hook(lambda event: None), pool.oom_handler(lambda request: False)
        with tempfile.TemporaryDirectory() as folder, device.join_group(f"{folder}/group", "copied") as member:
            for thing in (stream, pool, block, pinned, unified, hook, handler, member):
                for duplicate in (copy.copy, copy.deepcopy, pickle.dumps, lambda thing: copy.deepcopy({"held": [thing]})):
                    with self.assertRaisesRegex(TypeError, f"cannot copy or pickle a {type(thing).__name__}: "):
                        duplicate(thing)
        gc.collect()
        self.assertEqual(bytes(block), b"\7" * 8)
        pool.alloc(8, stream).free()
        hook.close()
        handler.close()

    def test_a_device_is_itself_again(self):
        for duplicate in (copy.copy, copy.deepcopy, lambda device: pickle.loads(pickle.dumps(device))):
            again = duplicate(self.device)
            self.assertEqual(again, self.device)
            again.alloc(8).free()
        with multiprocessing.get_context("spawn").Pool(1) as workers:
            self.assertEqual(workers.apply(_name, (self.device,)), ("host:0", bytes(4)))

    def test_statistics_are_copied(self):
        self.device.alloc(100).free()
        for thing in (self.device.stats(), self.device.info(), self.device.blocks(), self.device.segments(),
                      self.device.latency("alloc")):
            again = pickle.loads(pickle.dumps(thing))
            self.assertEqual(again, thing)
        self.assertEqual(again.quantile(0.5), self.device.latency("alloc").quantile(0.5))
