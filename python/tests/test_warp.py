"""The object that Warp calls, on `host`. Warp itself raises where no CUDA device is, so it is not in this test."""
import inspect
import unittest

import millpond
import millpond.warp
from support import Account


class Warp(unittest.TestCase):
    def test_blocks_belong_to_the_stream_of_the_moment(self):
        device = millpond.Device("host", 0)
        account, streams = Account(device), [device.stream(), device.stream()]
        current = streams[0]
        allocator = millpond.warp.Allocator(device, stream=lambda: current)
        first = allocator.allocate(3000)
        current = streams[1]
        second = allocator.allocate(size_in_bytes=4000)
        found = {b.ptr: b.stream for b in device.blocks("live")}
        self.assertEqual([found[first], found[second]], [s.handle for s in streams])
        allocator.deallocate(first, 3000)
        allocator.deallocate(ptr=second, size_in_bytes=4000)
        self.assertEqual(account.now(), (0, 0))
        self.assertEqual(allocator.allocate(0), 0)
        allocator.deallocate(0, 0)

    def test_it_looks_as_warp_wants(self):
        for name, words in [("allocate", ["size_in_bytes"]), ("deallocate", ["ptr", "size_in_bytes"])]:
            method = getattr(millpond.warp.Allocator(), name)
            self.assertEqual(list(inspect.signature(method).parameters), words)


if __name__ == "__main__":
    unittest.main()
