"""Forked children, which have their parent's objects and none of its devices."""
import subprocess
import sys
import tempfile
import unittest

import millpond


class Forks(unittest.TestCase):
    """What the parent has begun is left alone at its end in a child, and the parent's goes on."""

    def child(self, begin, inside="", after=""):
        program = f"""
import os, millpond
device, seen = millpond.Device("host"), []
pool = device.create_pool()
with {begin} as it:
    {inside or "pass"}
    child = os.fork()
if child == 0:
    {after or "pass"}
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 7, status
device.alloc(1000).free()
"""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, ""), begin)

    def test_a_with_ends_without_an_error(self):
        for begin in (
            "device.hook(seen.append)", "device.history()", "device.history('a.history')",
            "device.record('a.trace')", "pool.scope()", "millpond.tag('a tag')", "device.stream()",
        ):
            self.child(begin)

    def test_ends_by_hand(self):
        self.child(
            "device.stream(priority=0)",
            "blocks = [device.alloc(100, it), device.alloc_host(100), device.alloc_unified(100)]",
            "it.close(); pool.release(); [b.free() for b in blocks]; assert all(b.is_freed for b in blocks)",
        )

    def test_what_is_not_permitted_elsewhere_is_still_told(self):
        from millpond._library import library

        device = millpond.Device("host")
        with self.assertRaises(millpond.MillpondError) as caught:
            with device.history():
                library().millpond_device_history_stop(device.handle, None)
        self.assertEqual(caught.exception.name, "NOT_PERMITTED")

    def test_a_child_of_a_program_that_has_only_looked_starts_anew(self):
        program = """
import os, millpond
millpond.device_types()
child = os.fork()
device = millpond.Device("host")
try:
    with device.history():
        from millpond._library import library
        library().millpond_device_history_stop(device.handle, None)
except millpond.MillpondError:
    if child == 0:
        os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
