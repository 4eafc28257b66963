"""The Python of the README and of docs/packages.md runs as it stands there."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Readme(unittest.TestCase):
    def run_block(self, document, number):
        blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), flags=re.S | re.M)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-c", blocks[number]], cwd=folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            left = sorted(path.name for path in pathlib.Path(folder).iterdir())
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout, left

    def test_the_block_of_the_readme(self):
        said, _ = self.run_block("README.md", 0)
        self.assertIn("requested_bytes", said)

    def test_the_block_of_the_packages(self):
        _, left = self.run_block("docs/packages.md", 0)
        self.assertEqual(left, ["memory.history", "memory.json", "memory.json.html"])


if __name__ == "__main__":
    unittest.main()
