"""What callers give: numbers, texts and words that the library has no room for are errors, and nothing is cut."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import millpond

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Arguments(unittest.TestCase):
    def setUp(self):
        self.device = millpond.Device("host")

    def test_signed_numbers_are_not_cut(self):
        for number in (1 << 31, 1 << 32, (1 << 32) + 1, -(1 << 31) - 1, 1 << 64):
            for call in (
                lambda n: millpond.Device("host", n), self.device.stream, lambda n: millpond.Stream(self.device, n),
                lambda n: millpond.set_default_options("host", n),
            ):
                with self.assertRaisesRegex(ValueError, r"which is not from -2\*\*31 to 2\*\*31 - 1"):
                    call(number)
        self.assertRaises(TypeError, millpond.Device, "host", 1.5)
        self.assertRaises(millpond.MillpondError, millpond.Device, "host", -1)
        self.assertEqual(millpond.Device("host", True).ordinal, 1)
        self.device.stream(-5).close()

    def test_one_byte_is_no_plural(self):
        one, two = self.device.alloc(1), self.device.alloc(2)
        self.assertIn("of 1 byte ", repr(one))
        self.assertIn("of 2 bytes ", repr(two))
        self.assertRaisesRegex(ValueError, "^1 byte at 1", lambda: one.copy_to(bytearray(1), offset=1))

    def test_handles_of_foreign_streams_are_not_cut(self):
        class Torch:
            cuda_stream = (1 << 64) + 8

        class Protocol:
            def __cuda_stream__(self):
                return (0, -1)

        self.assertRaises(ValueError, millpond.handle_of, Torch())
        self.assertRaises(ValueError, millpond.handle_of, Protocol())

    def test_no_text_ends_at_a_nul(self):
        device = self.device
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/file\0.json"
            for call in (
                lambda: millpond.Device("host\0junk"), lambda: millpond.set_default_options("host\0junk"),
                lambda: device.create_pool("a\0b"), lambda: device.set_options(backend="native\0junk"),
                lambda: millpond.set_default_options(backend="native\0junk"), lambda: millpond.annotate("a\0b"),
                lambda: millpond.tag("a\0b").__enter__(), lambda: device.write_snapshot(path),
                lambda: device.history(path).__enter__(), lambda: device.record(path).__enter__(),
                lambda: millpond.load_plugin(path), lambda: device.record(os.fsencode(path)).__enter__(),
                lambda: device.record(pathlib.Path(path)).__enter__(),
            ):
                with self.assertRaisesRegex(ValueError, "has a NUL in it"):
                    call()
            self.assertEqual(os.listdir(folder), [])

    def test_what_is_no_text_is_named(self):
        for call, what in (
            (lambda: millpond.tag(5).__enter__(), "the tag must be a str, not int"),
            (lambda: self.device.create_pool(b"x"), "the name must be a str, not bytes"),
            (lambda: millpond.Device(None), "the device type must be a str, not NoneType"),
        ):
            with self.assertRaisesRegex(TypeError, f"^{what}$"):
                call()
        with tempfile.TemporaryDirectory() as folder:
            self.assertRaises(ValueError, self.device.join_group, f"{folder}/group", "a\0b")

    def test_sizes_are_numbers_and_pools_have_names(self):
        pool = self.device.create_pool("named")
        self.assertEqual((pool.name, repr(pool)), ("named", "<millpond.Pool 'named' of host:0>"))
        block = pool.alloc(True)
        self.assertIs(type(block.size), int)
        self.assertTrue(block.try_expand(True))
        self.assertIs(type(block.size), int)
        self.assertNotIn("0, 0, 0", repr(self.device.latency("alloc")))

    def test_a_word_that_is_none_is_told_which_there_are(self):
        device, memory = self.device, self.device.alloc_unified(4096)
        for call in (
            device.blocks, device.default_pool.blocks, device.reason, device.latency, memory.advise,
            lambda word: device.write_snapshot("/tmp/none", word), lambda word: memory.prefetch(0, to=word),
            lambda word: memory.advise("preferred", by=word),
        ):
            with self.assertRaisesRegex(ValueError, "^'foo' is not one of [a-z_]+, "):
                call("foo")

    def test_true_and_false_are_what_each_switch_calls_them(self):
        table = (ROOT / "docs/options.md").read_text()
        switches = re.findall(r"^\| \[?`(\w+)`[^|]*\| (?:switch|`on`, `off`) \|.*\| (yes|no) \|$", table, re.M)
        self.assertLessEqual({("scatter", "yes"), ("peer_access", "no"), ("latency_histograms", "yes")}, set(switches))
        for key, while_open in switches:
            before = self.device.options[key]
            for value in (False, True):
                if while_open == "yes":
                    self.device.set_options(**{key: value})
                    self.assertIn(self.device.options[key], ("on", "True") if value else ("off", "False"), key)
                millpond.set_default_options("host", 60, **{key: value})
            if while_open == "yes":
                self.device.set_options(**{key: before})
                self.assertEqual(self.device.options[key], before)
        with self.assertRaises(millpond.MillpondError):
            self.device.set_options(scatter="perhaps")

    def test_the_library_may_be_named_from_here(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(millpond.library_path(), f"{folder}/another.so")
            env = dict(os.environ, MILLPOND_LIBRARY="another.so")
            env.pop("LD_LIBRARY_PATH", None)
            program = "import millpond; print(millpond.version())"
            done = subprocess.run([sys.executable, "-c", program], env=env, cwd=folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.stdout.strip(), millpond.version())


if __name__ == "__main__":
    unittest.main()
