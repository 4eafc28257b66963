"""C and C++ code that is built against the package, and shares its pond."""
import ctypes
import importlib.metadata
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import millpond
from support import EXTENSION, extension, needs

CMAKE = """
cmake_minimum_required(VERSION 3.22)
project(extension LANGUAGES CXX)
find_package(Millpond 0.1 CONFIG REQUIRED COMPONENTS shared)
add_executable(program program.cpp)
target_compile_features(program PRIVATE cxx_std_17)
target_link_libraries(program PRIVATE Millpond::millpond)
"""
PROJECT = """
[build-system]
requires = ["scikit-build-core", "millpond"]
build-backend = "scikit_build_core.build"

[project]
name = "own"
version = "1.0"
"""
PROJECT_CMAKE = """
cmake_minimum_required(VERSION 3.22)
project(own LANGUAGES C)
find_package(Millpond 0.1 CONFIG REQUIRED COMPONENTS shared)
add_library(own MODULE own.c)
target_link_libraries(own PRIVATE Millpond::shared)
install(TARGETS own LIBRARY DESTINATION own)
"""
PROGRAM = """
#include <millpond/millpond.hpp>
#include <cstdio>
int main() {
  millpond::Device device("host");
  millpond::Buffer block = device.default_pool().allocate(1000, millpond::Stream(device));
  std::puts(millpond_version());
}
"""


class OnePond(unittest.TestCase):
    def test_an_extension_shares_the_pond(self):
        with extension() as made:
            device = millpond.Device("host")
            before = device.stats().requested_bytes.current
            # It names no folder: what this process has is what it gets.
            own = ctypes.CDLL(made)
            own.extension_alloc.restype = ctypes.c_void_p
            own.extension_alloc.argtypes = [ctypes.c_size_t]
            address = own.extension_alloc(777_000)
            self.assertEqual(device.stats().requested_bytes.current - before, 777_000)
            self.assertIn(address, [b.ptr for b in device.blocks("live")])
            millpond.Block(device, address, 777_000, None).free()
            self.assertEqual(device.stats().requested_bytes.current, before)

            # And the other way: what was loaded first is what the package uses.
            run = (f"import ctypes\nctypes.CDLL({str(millpond.prefix() / 'lib/libmillpond.so.0')!r})\n"
                   f"e = ctypes.CDLL({made!r})\ne.extension_alloc.argtypes = [ctypes.c_size_t]\n"
                   "e.extension_alloc.restype = ctypes.c_void_p\nassert e.extension_alloc(555)\n"
                   "import millpond\nprint(millpond.Device('host').stats().requested_bytes.current)")
            env = {"MILLPOND_LIBRARY": "/no/such/file"}
            done = subprocess.run([sys.executable, "-c", run], env=env, stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.stdout, "555\n")

    def test_cmake_finds_the_package(self):
        if shutil.which("cmake") is None or shutil.which("c++") is None:
            self.skipTest("no CMake, or no C++ compiler")
        points = [p for p in importlib.metadata.entry_points().select(group="cmake.prefix")] \
            if hasattr(importlib.metadata.entry_points(), "select") \
            else list(importlib.metadata.entry_points()["cmake.prefix"])
        self.assertEqual({p.value for p in points if p.name == "millpond"}, {"millpond"})
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder)
            (here / "CMakeLists.txt").write_text(CMAKE)
            (here / "program.cpp").write_text(PROGRAM)
            for words in (["-S", here, "-B", here / "build", f"-DCMAKE_PREFIX_PATH={millpond.prefix()}"],
                          ["--build", here / "build"]):
                done = subprocess.run(["cmake", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)
            done = subprocess.run([here / "build/program"], stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.stdout.strip(), millpond.version())

    def test_scikit_build_core_finds_the_package(self):
        """Nobody names a folder: the wheel's entry point does."""
        needs("scikit_build_core")
        if shutil.which("cmake") is None or shutil.which("cc") is None:
            self.skipTest("no CMake, or no C compiler")
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder)
            (here / "pyproject.toml").write_text(PROJECT)
            (here / "CMakeLists.txt").write_text(PROJECT_CMAKE)
            (here / "own.c").write_text(EXTENSION)
            done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps",
                                   "--no-build-isolation", "--no-index", "--wheel-dir", here / "made", here],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode, 0, done.stdout)
            with zipfile.ZipFile(next((here / "made").glob("*.whl"))) as wheel:
                name = next(n for n in wheel.namelist() if n.endswith(".so"))
                own = ctypes.CDLL(wheel.extract(name, here))
            own.extension_alloc.restype, own.extension_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
            device = millpond.Device("host")
            address = own.extension_alloc(654_321)
            self.assertIn((address, 654_321), [(b.ptr, b.requested) for b in device.blocks("live")])
            millpond.Block(device, address, 654_321, None).free()


if __name__ == "__main__":
    unittest.main()
