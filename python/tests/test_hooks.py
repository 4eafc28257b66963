"""Hooks on each allocation and free, blocks that get another size where they are, and unified memory."""
import gc
import subprocess
import sys
import threading
import traceback
import unittest
import weakref

import millpond


class Hooks(unittest.TestCase):
    def setUp(self):
        self.device = millpond.Device("host", 0)
        gc.collect()

    def test_it_is_told_inside_a_with(self):
        seen, stream = [], self.device.stream()
        with self.device.hook(seen.append) as hook:
            block = self.device.alloc(700, stream)
            at = block.ptr
            block.free()
            self.device.alloc(5000)
        self.assertIn("closed", repr(hook))
        self.device.alloc(5000)
        told = [(e.kind, e.requested, e.stream) for e in seen]
        self.assertEqual(told, [("alloc", 700, stream.handle), ("free", 700, stream.handle), ("alloc", 5000, None),
                                ("free", 5000, None)])
        self.assertEqual((seen[0].ptr, seen[1].ptr, seen[0].size), (at, at, 1024))
        hook.close()  # a second time it does nothing

    def test_the_first_exception_is_raised_at_the_end(self):
        count = []

        def fails(event):
            count.append(event)
            raise KeyError(len(count))

        with self.assertRaises(KeyError) as raised:
            with self.device.hook(fails):
                self.device.alloc(100)
        self.assertEqual((raised.exception.args, len(count)), ((1,), 2), "or the exception keeps the block")
        self.assertIn("in fails", "".join(getattr(raised.exception, "__notes__", ["in fails"])))
        # The body's own comes first, and a call that is told is not disturbed.
        with self.assertRaises(ZeroDivisionError):
            with self.device.hook(fails):
                self.device.alloc(100)
                1 / 0
        with self.assertRaises(TypeError):
            self.device.hook(None)

    def test_the_programs_own_exceptions_keep_their_tracebacks(self):
        def fails(event):
            if event.kind == "free":
                error = KeyError("in the hook")
                raise error from error

        block = self.device.alloc(100)
        own = None
        with self.assertRaises(KeyError):
            with self.device.hook(fails):
                try:
                    raise OSError("the program's")
                except OSError as caught:
                    own = caught
                    block.free()
        self.assertIsNotNone(own.__traceback__)

    def raised_by(self, function):
        """What close() raises where the hook has called this function."""
        hook = self.device.hook(lambda event: function())
        self.device.alloc(100)
        try:
            hook.close()
        except BaseException as why:
            return why
        self.fail("nothing was raised")

    def test_the_programs_own_exception_is_left_as_it_is(self):
        class Theirs(Exception):
            def __init__(self, where, *, code):  # takes no args of its own making
                super().__init__(f"failed at {where}")
                self.code = code

        try:
            try:
                raise OSError(2, "the cause", "a file")
            except OSError as cause:
                own = Theirs("layer 3", code=7)
                own.notes = ["mine"]
                raise own from cause
        except Theirs:
            pass
        before = own.__cause__, own.__context__, own.__traceback__, dict(own.__dict__)

        def fails():
            raise own

        raised = self.raised_by(fails)
        self.assertEqual((own.__cause__, own.__context__, own.__dict__), (*before[:2], before[3]))
        lines = [frame.name for frame in traceback.extract_tb(own.__traceback__)]
        self.assertIn("test_the_programs_own_exception_is_left_as_it_is", lines)
        self.assertIs(type(raised), Theirs)
        self.assertEqual((raised.args, str(raised), raised.code), (own.args, "failed at layer 3", 7))
        self.assertIsInstance(raised.__cause__, FileNotFoundError)
        self.assertEqual((raised.__cause__.errno, raised.__cause__.filename), (2, "a file"))
        self.assertIsNone(raised.__cause__.__traceback__)

    def test_the_copy_keeps_no_frames(self):
        class Kept:
            pass

        seen = []

        def inner(kept):
            raise KeyError("inner")

        def fails():
            kept = Kept()
            seen.append(weakref.ref(kept))
            try:
                inner(kept)
            except KeyError as cause:
                raise OSError(5, "outer") from cause

        raised = self.raised_by(fails)
        gc.collect()
        self.assertEqual([ref() for ref in seen], [None] * len(seen))
        self.assertEqual((raised.errno, type(raised.__cause__)), (5, KeyError))
        if hasattr(raised, "add_note"):
            self.assertIn("in fails", raised.__notes__[-1])
            self.assertIn("in inner", raised.__cause__.__notes__[-1])

    def test_exceptions_of_all_kinds_are_copied(self):
        class Strange(Exception):
            __slots__ = ("part",)

            def __new__(cls, *, part):
                made = super().__new__(cls, "strange")
                made.part = part
                return made

            def __init__(self, *, part):
                pass

        itself = ValueError("its own cause")
        itself.__cause__ = itself
        each = [
            Strange(part=3), itself, SystemExit(3), KeyboardInterrupt(), StopIteration(5), ImportError("no", name="n"),
            UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), FileNotFoundError(2, "none", "here"), KeyError("k"),
            SyntaxError("bad", ("f.py", 1, 2, "text")), millpond.MillpondError("failed", 5, "NAME"), Exception(),
        ]
        for own in each:
            def fails(own=own):
                raise own

            raised = self.raised_by(fails)
            self.assertIs(type(raised), type(own))
            self.assertEqual((str(raised), raised.args), (str(own), own.args))
            for name in ("part", "code", "value", "name", "reason", "filename", "lineno"):
                self.assertEqual(getattr(raised, name, None), getattr(own, name, None), name)
            self.assertIsNot(raised, own)
            self.assertFalse(hasattr(own, "__notes__"))

    def test_an_exception_that_cannot_be_copied_is_told_of(self):
        class Broken(Exception):
            @property
            def args(self):
                raise KeyError("args")

        def raises(_):
            raise Broken

        hook = self.device.hook(raises)
        self.device.alloc(100)
        with self.assertRaisesRegex(millpond.MillpondError, "Broken, which cannot be copied"):
            hook.close()

    def test_groups_of_exceptions(self):
        if sys.version_info < (3, 11):
            self.skipTest("Python 3.11 brings them")

        def fails():
            try:
                raise KeyError("part")
            except KeyError as part:
                raise ExceptionGroup("all", [part, ExceptionGroup("inner", [OSError(5, "five")])])

        raised = self.raised_by(fails)
        self.assertIs(type(raised), ExceptionGroup)
        self.assertEqual((raised.message, type(raised.exceptions[0])), ("all", KeyError))
        self.assertIsNone(raised.exceptions[0].__traceback__)
        self.assertEqual(raised.exceptions[1].exceptions[0].errno, 5)

    def test_it_may_allocate_and_close_itself(self):
        told = []

        def once(event):
            told.append(event.kind)
            hook.close()
            self.device.alloc(3000)

        hook = self.device.hook(once)
        self.device.alloc(100)
        self.assertEqual(told, ["alloc"])

    def test_threads_are_told_of_and_none_is_in_it_after_the_end(self):
        inside, most, lock = [0], [0], threading.Lock()

        def told(event):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with lock:
                inside[0] -= 1

        def work():
            for _ in range(200):
                self.device.alloc(600, 0)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for _ in range(20):
            with self.device.hook(told):
                if not threads[0].ident:
                    for thread in threads:
                        thread.start()
                self.device.alloc(100)
            self.assertEqual(inside[0], 0)
        for thread in threads:
            thread.join()
        self.assertGreater(most[0], 0)

    def test_the_end_of_the_program_is_no_matter(self):
        program = """
import threading, millpond
device = millpond.Device("host")
device.hook(lambda event: None)
block = device.alloc(1000)
def work():
    while True:
        device.alloc(1000)
threading.Thread(target=work, daemon=True).start()
"""
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_a_block_grows_where_it_is(self):
        pool = self.device.create_pool()
        pool.alloc(24 << 20).free()
        block = pool.alloc(4 << 20)
        at = block.ptr
        block.copy_from(b"kept")
        seen = []
        with self.device.hook(lambda e: seen.append((e.kind, e.requested))):
            self.assertTrue(block.try_expand(9 << 20))
            self.assertTrue(block.try_expand(1 << 20))
        self.assertEqual(seen, [("free", 4 << 20), ("alloc", 9 << 20), ("free", 9 << 20), ("alloc", 1 << 20)])
        self.assertFalse(block.try_expand(1 << 50))
        self.assertEqual((len(block), block.ptr, bytes(block)[:4]), (1 << 20, at, b"kept"))
        with block.view():
            with self.assertRaises(BufferError):
                block.try_expand(1000)
        with self.assertRaises(millpond.MillpondError):
            block.try_expand(0)
        block.free()
        with self.assertRaises(ValueError):
            block.try_expand(1000)


class Unified(unittest.TestCase):
    def test_it_goes_where_it_is_used(self):
        device = millpond.Device("host", 0)
        with device.stream() as stream:
            memory = device.alloc_unified(10_000)
            memory.view()[9999] = 7
            memory.advise("read_mostly")
            memory.advise("preferred", by="host")
            memory.prefetch(stream)
            memory.prefetch(0, to="host")
            self.assertEqual(memory.view()[9999], 7)
            with self.assertRaises(ValueError):
                memory.prefetch(stream, to="there")
            with self.assertRaises(ValueError):
                memory.advise("often")
            memory.free()
            with self.assertRaises(ValueError):
                memory.prefetch(stream)
        self.assertEqual(len(device.alloc_unified(0)), 0)


if __name__ == "__main__":
    unittest.main()
