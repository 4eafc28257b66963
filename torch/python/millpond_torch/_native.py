"""Builds Millpond's allocators of C++ against the installed PyTorch, and finds what was built.

One file serves one release of PyTorch: its classes differ between releases. MILLPOND_TORCH_NATIVE and
MILLPOND_TORCH_CPU name the files; otherwise they lie in the user's cache, under the release and what they were built from.
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import shutil
import subprocess
import sysconfig
import tempfile
from typing import Any, List, Optional

from ._library import MillpondError

HERE = pathlib.Path(__file__).parent


class Part:
    """A file to build: its source, the variable that names it, PyTorch's libraries that it needs."""

    def __init__(self, name: str, variable: str, libraries: List[str], cuda: bool) -> None:
        self.name, self.variable, self.libraries, self.cuda = name, variable, libraries, cuda
        headers = ["compat.hpp", "holdings.hpp", "library.hpp", "numbers.hpp", "oom.hpp", "others.hpp", "pluggable.hpp", "sharing.hpp", "trace.hpp"] if cuda else ["pluggable.hpp"]
        self.sources = [HERE / f"{name}.cpp", *[HERE / header for header in headers], pathlib.Path(__file__)]  # how it is built counts, too

    def place(self, torch: Any) -> pathlib.Path:
        named = os.environ.get(self.variable)
        if named:
            return pathlib.Path(named)
        what = hashlib.sha256(b"".join(s.read_bytes() for s in self.sources)).hexdigest()[:16]
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        return cache / "millpond_torch" / f"libmillpond-{self.name}-{torch.__version__}-{what}.so"


NATIVE = Part("native", "MILLPOND_TORCH_NATIVE", ["c10", "c10_cuda"], cuda=True)
CPU = Part("cpu", "MILLPOND_TORCH_CPU", ["c10"], cuda=False)


def _headers(torch: Any, with_cuda: bool) -> List[pathlib.Path]:
    """Folders with PyTorch's headers and the CUDA runtime's, which come with PyTorch's wheel or with CUDA's toolkit."""
    base = pathlib.Path(torch.__file__).parent / "include"
    if not with_cuda:
        return [base, base / "torch" / "csrc" / "api" / "include"]
    packages = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"
    cuda = [packages / "cu13" / "include", packages / "cuda_runtime" / "include"]
    cuda += [pathlib.Path(os.environ[v]) / "include" for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    compiler = shutil.which("nvcc")
    if compiler is not None:
        cuda.append(pathlib.Path(compiler).resolve().parent.parent / "include")
    cuda += [pathlib.Path("/usr/local/cuda/include"), packages / "cuda_nvcc" / "include"]
    return [base, base / "torch" / "csrc" / "api" / "include", *_cuda_headers(cuda)]


def _cuda_headers(places: List[pathlib.Path]) -> List[pathlib.Path]:
    """Of some folders those with the CUDA runtime's headers and with the compiler's, which the runtime's include: in a toolkit
    one folder has both, in Python packages they can be apart, and a PyTorch wheel comes without the compiler's."""
    found = []
    for header, package in (("cuda_runtime_api.h", "nvidia-cuda-runtime"), ("crt/host_defines.h", "nvidia-cuda-crt")):
        place = next((p for p in places if (p / header).is_file()), None)
        if place is None:
            raise MillpondError(f"{header} was not found; install the CUDA toolkit or the Python package {package}, or set CUDA_HOME")
        if place not in found:
            found.append(place)
    return found


def _standard_library() -> List[str]:
    """What links the C++ library that PyTorch runs on, and no second one.

    Some compilers have theirs as an archive only, or link it so by default. In the process there are two then, and a number that
    one of them writes is looked up in the other's table of locales: the process ends at the first message with a number in it.
    Symbols that the loaded library has are bound to it, since it comes before the compiler's; what only the archive has stays
    invisible to others.
    """
    try:
        maps = pathlib.Path("/proc/self/maps").read_text()
    except OSError:  # not Linux
        return []
    loaded = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libstdc++.so" in line}
    return [*sorted(path for path in loaded if os.path.isfile(path)), "-Wl,--exclude-libs,libstdc++.a"]


def build_native(compiler: Optional[str] = None) -> str:
    """Builds the allocator of enable(native=True) for the installed PyTorch, unless it is there. Returns the file.

    Needs a C++ compiler (`compiler`, else CXX, else g++) and the CUDA runtime's headers. MillpondError where that fails.
    """
    import torch

    return build(torch, NATIVE, compiler)


def build(torch: Any, part: Part, compiler: Optional[str] = None) -> str:
    """Builds a part, unless it is there and as new as its sources; the file."""
    place = part.place(torch)
    if place.is_file() and all(place.stat().st_mtime >= s.stat().st_mtime for s in part.sources):
        return str(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    compiler = compiler or os.environ.get("CXX") or "g++"
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = pathlib.Path(folder) / place.name
        command = [
            compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{HERE}",
            *[f"-isystem{h}" for h in _headers(torch, part.cuda)], "-o", str(made), str(part.sources[0]),
            f"-L{libraries}", *[f"-l{library}" for library in part.libraries], *_standard_library(), "-ldl",
        ]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as e:
            raise MillpondError(f"{compiler} cannot be run ({e}); install a C++ compiler, or set CXX") from None
        if done.returncode != 0:
            other = "; enable() without `native` works all the same" if part is NATIVE else ""
            raise MillpondError(f"the allocator does not build against PyTorch {torch.__version__}{other}:\n{done.stdout}")
        made.replace(place)
    return str(place)


def load_native(torch: Any) -> ctypes.CDLL:
    """The built allocator, for this release of PyTorch; MillpondError where there is none."""
    file = load(torch, NATIVE, f"millpond_torch.build_native() builds it for PyTorch {torch.__version__}")
    file.millpond_native_install.restype = ctypes.c_int
    file.millpond_native_install.argtypes = [ctypes.c_char_p, ctypes.c_int]
    return file


def load_cpu(torch: Any) -> ctypes.CDLL:
    """The allocator of the processor's memory: the file that is named, or one that is built if it is not there yet."""
    if not (os.environ.get(CPU.variable) and CPU.place(torch).is_file()):
        build(torch, CPU)
    file = load(torch, CPU, "it was built a moment ago")
    file.millpond_cpu_install.restype = ctypes.c_int
    file.millpond_cpu_install.argtypes = [ctypes.c_char_p]
    return file


def load(torch: Any, part: Part, what_to_do: str) -> ctypes.CDLL:
    place = part.place(torch)
    if not place.is_file():
        raise MillpondError(f"there is no {place}; {what_to_do}")
    try:
        return ctypes.CDLL(str(place))
    except OSError as e:
        raise MillpondError(f"{place} does not fit PyTorch {torch.__version__} ({e}); remove it and build it again") from None
