"""What the wheel says of itself: its tag is what its files need, and no file of it names the machine that built it."""
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import unittest

import millpond

NEWEST = re.compile(r"\(?GLIBC_(\d+)\.(\d+)")


class Wheel(unittest.TestCase):
    def setUp(self):
        self.files = [millpond.prefix() / "lib/libmillpond.so.0", pathlib.Path(millpond.command_path())]
        self.about = importlib.metadata.distribution("millpond")

    def test_the_tag_is_what_the_files_need(self):
        if shutil.which("objdump") is None:
            self.skipTest("no objdump")
        needed = {(2, 17)}
        for file in self.files:
            said = subprocess.run(["objdump", "-T", file], stdout=subprocess.PIPE, text=True, check=True).stdout
            found = {(int(a), int(b)) for a, b in NEWEST.findall(said)}
            self.assertGreater(len(found), 3, file)
            needed |= found
        tag = re.search(r"^Tag: py3-none-(\w+)$", self.about.read_text("WHEEL"), re.M)[1]
        major, minor = max(needed)
        self.assertTrue(tag.startswith(f"manylinux_{major}_{minor}_"), f"{tag}, but GLIBC {max(needed)}")

    def test_it_depends_on_nothing_and_has_its_licences(self):
        self.assertIsNone(self.about.requires)
        texts = [str(f) for f in self.about.files if "/licenses/" in str(f)]
        self.assertEqual(len(texts), 3, texts)

    def test_no_path_of_the_builder(self):
        home = str(pathlib.Path(__file__).resolve().parent.parent.parent).encode() + b"/src"
        for file in self.files[:1]:
            self.assertNotIn(home, file.read_bytes())
            self.assertNotIn(b"/registry/src/", file.read_bytes().replace(b"/cargo/registry/src/", b""))


if __name__ == "__main__":
    unittest.main()
