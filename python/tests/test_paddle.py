"""What millpond_paddle.enable does before and after the import of PaddlePaddle, with a module in its place; with
PaddlePaddle itself: python/paddle/tests/run.py."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# It takes every plugin that is a file, and tells what it has found.
STAND_IN = """
import os, pathlib, types
__version__ = "0"
found = {f.name: f.is_file() for f in pathlib.Path(os.environ["CUSTOM_DEVICE_ROOT"]).iterdir()}
serves = os.environ.get("MILLPOND_PLUGIN_DEVICE")
if os.environ.get("FAILS"):
    raise ImportError(f"no PaddlePaddle for {serves}")
device = types.SimpleNamespace(get_all_custom_device_type=lambda: ["millpond"])
is_compiled_with_cuda = is_compiled_with_xpu = lambda: True
"""


class Enable(unittest.TestCase):
    def program(self, text, **env):
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            (work / "paddle.py").write_text(STAND_IN)
            (work / "plugins").mkdir()
            (work / "plugins/libvendor.so").touch()
            (work / "ours.so").touch()
            (work / "links").mkdir()
            set_up = f"import os, sys\nsys.path[:0] = [{str(ROOT / 'python/paddle')!r}, {folder!r}]\n"
            set_up += f"import millpond_paddle\nmillpond_paddle.plugin_path = lambda: {folder + '/ours.so'!r}\n"
            set_up += "before = dict(os.environ)\n"
            kept = {k: v for k, v in os.environ.items() if not k.startswith(("MILLPOND_", "CUSTOM_DEVICE"))}
            done = subprocess.run([sys.executable, "-c", set_up + text], cwd=folder, env={**kept, **env, "TMPDIR": "links"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual((done.returncode, done.stdout, os.listdir(work / "links")), (0, "", []))

    def test_plugins_of_others_are_found_from_a_relative_folder(self):
        for root in ("plugins", "./plugins", "plugins/../plugins"):
            self.program(
                "millpond_paddle.enable()\n"
                "import paddle\n"
                "assert paddle.found == {'libvendor.so': True, 'ours.so': True}, paddle.found\n",
                CUSTOM_DEVICE_ROOT=root)

    def test_the_environment_is_left_as_it_was(self):
        text = (
            "millpond_paddle.enable(serve='cpu')\n"
            "import paddle\n"
            "assert paddle.serves == 'cpu', paddle.serves\n"
            "assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())\n"
        )
        self.program(text)
        self.program(text, MILLPOND_PLUGIN_DEVICE="host", CUSTOM_DEVICE_ROOT="plugins")
        self.program(text, MILLPOND_PLUGIN_DEVICE="", CUSTOM_DEVICE_ROOT="")

    def test_also_where_the_import_fails(self):
        self.program(
            "try:\n"
            "    millpond_paddle.enable(serve='cpu')\n"
            "except ImportError as e:\n"
            "    assert str(e) == 'no PaddlePaddle for cpu', e\n"
            "else:\n"
            "    raise SystemExit('imported')\n"
            "assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())\n"
            "assert not millpond_paddle.is_enabled()\n",
            FAILS="1")


if __name__ == "__main__":
    unittest.main()
