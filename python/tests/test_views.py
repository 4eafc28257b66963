"""Views of memory that several threads make at once."""
import sys
import threading
import time
import unittest
import unittest.mock
import weakref

import millpond


class Views(unittest.TestCase):
    def test_those_of_two_threads_all_keep_the_memory(self):
        device, made = millpond.Device("host"), weakref.ref
        for memory in (device.alloc(64), device.alloc_host(64), device.alloc_unified(4096)):
            both, views = threading.Barrier(2, timeout=20), []

            def slow(*args):
                # By then each of the threads has seen what it decides by. One of them comes last.
                time.sleep(0.05 * both.wait())
                return made(*args)

            with unittest.mock.patch("millpond._memory.weakref.ref", slow):
                threads = [threading.Thread(target=lambda: views.append(memory.view())) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            self.assertEqual(len(views), 2)
            while views:
                self.assertRaises(BufferError, memory.free)
                views.pop().release()
            memory.free()
            self.assertTrue(memory.is_freed)

    def test_many_threads(self):
        device, failures = millpond.Device("host"), []
        before, interval = device.stats().blocks.current, sys.getswitchinterval()

        def look(block, start, views):
            start.wait()
            views.append(block.view())

        sys.setswitchinterval(1e-6)
        try:
            for turn in range(300):
                block, start, views = device.alloc(64), threading.Barrier(4, timeout=20), []
                threads = [threading.Thread(target=look, args=(block, start, views)) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                while views:
                    try:
                        block.free()
                        failures.append((turn, len(views)))
                        break
                    except BufferError:
                        views.pop(turn % len(views)).release()
                views.clear()
        finally:
            sys.setswitchinterval(interval)
        self.assertEqual(failures, [], "a block was freed under so many views")
        del block
        self.assertEqual(device.stats().blocks.current, before)


if __name__ == "__main__":
    unittest.main()
