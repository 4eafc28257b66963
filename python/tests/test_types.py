"""The annotations of all three packages, by mypy's strict rules; the packages tell type checkers that they have some."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

from support import needs

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Types(unittest.TestCase):
    def strictly(self, package):
        needs("mypy")
        self.assertTrue((package / "py.typed").is_file())
        with tempfile.TemporaryDirectory() as folder:
            # Not from the repository's root, whose folder `torch` would be taken for PyTorch. PyTorch, PaddlePaddle and
            # others may be missing here; then their types are not checked.
            done = subprocess.run(
                [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--cache-dir", folder, package],
                cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_millpond(self):
        self.strictly(ROOT / "python/millpond")

    def test_millpond_torch(self):
        self.strictly(ROOT / "torch/python/millpond_torch")

    def test_millpond_paddle(self):
        self.strictly(ROOT / "python/paddle/millpond_paddle")


if __name__ == "__main__":
    unittest.main()
