"""cuda.core itself: a resource on `host`, and streams over the fake CUDA driver."""
import unittest

import millpond
from support import Account, needs, on_fake_driver

STREAMS = """
import millpond, millpond.cuda_core
from cuda.core import Device
core = Device(0)
core.set_current()
resource = millpond.cuda_core.PondMemoryResource()
device = millpond.Device("cuda", 0)
assert (resource.device_id, resource.is_device_accessible, resource.is_host_accessible) == (0, True, False)
own, other = core.create_stream(), core.create_stream()
buffer = resource.allocate(5000, stream=own)
listed = [b for b in device.blocks("live") if b.ptr == int(buffer.handle)]
assert [b.stream for b in listed] == [int(own.handle)], listed
address = int(buffer.handle)
buffer.close(own)
assert device.stats().requested_bytes.current == 0
again = resource.allocate(5000, stream=own)
assert int(again.handle) == address
again.fill(7, stream=own)
again.close(other)
assert device.stats().requested_bytes.current == 0
collected = resource.allocate(100, stream=own)
del collected
assert device.stats().requested_bytes.current == 0
core.memory_resource = resource
made = core.allocate(300, stream=own)
assert device.stats().requested_bytes.current == 300
del made
try:
    resource.allocate(4 << 30, stream=own)
    raise SystemExit("more than there is")
except MemoryError as e:
    assert e.report
print("done")
"""


class CudaCore(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        needs("cuda.core")
        cls.adapter = needs("millpond.cuda_core")

    def test_on_the_host(self):
        device = millpond.Device("host", 0)
        account = Account(device)
        resource = self.adapter.PondMemoryResource(device)
        self.assertEqual((resource.is_device_accessible, resource.is_host_accessible), (False, True))
        buffer = resource.allocate(1000)
        self.assertEqual((buffer.size, account.now()), (1000, (1000, 1)))
        buffer.close()
        self.assertEqual(account.now(), (0, 0))

    def test_streams_over_the_fake_driver(self):
        self.assertEqual(on_fake_driver(STREAMS), "done\n")


if __name__ == "__main__":
    unittest.main()
