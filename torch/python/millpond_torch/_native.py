"""Builds Millpond's allocator of C++ against the installed PyTorch, and finds what was built.

One file serves one release of PyTorch: its classes differ between releases. MILLPOND_TORCH_NATIVE names the file;
otherwise it lies in the user's cache, under the release and what it was built from.
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import subprocess
import sysconfig
import tempfile
from typing import Any, List, Optional

from ._library import MillpondError

VARIABLE = "MILLPOND_TORCH_NATIVE"
HERE = pathlib.Path(__file__).parent
SOURCES = [HERE / "native.cpp", HERE / "pluggable.hpp"]


def _place(torch: Any) -> pathlib.Path:
    named = os.environ.get(VARIABLE)
    if named:
        return pathlib.Path(named)
    what = hashlib.sha256(b"".join(s.read_bytes() for s in SOURCES)).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "millpond_torch" / f"libmillpond-native-{torch.__version__}-{what}.so"


def _headers(torch: Any) -> List[pathlib.Path]:
    """Folders with PyTorch's headers and the CUDA runtime's, which come with PyTorch's wheel or with CUDA's toolkit."""
    base = pathlib.Path(torch.__file__).parent / "include"
    packages = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"
    cuda = [packages / "cu13" / "include", packages / "cuda_runtime" / "include"]
    cuda += [pathlib.Path(os.environ[v]) / "include" for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    cuda.append(pathlib.Path("/usr/local/cuda/include"))
    found = next((c for c in cuda if (c / "cuda_runtime_api.h").is_file()), None)
    if found is None:
        raise MillpondError("cuda_runtime_api.h was not found; install the CUDA toolkit, or set CUDA_HOME")
    return [base, base / "torch" / "csrc" / "api" / "include", found]


def build_native(compiler: Optional[str] = None) -> str:
    """Builds the allocator of enable(native=True) for the installed PyTorch, unless it is there. Returns the file.

    Needs a C++ compiler (`compiler`, else CXX, else g++) and the CUDA runtime's headers. MillpondError where that fails.
    """
    import torch

    place = _place(torch)
    if place.is_file() and all(place.stat().st_mtime >= s.stat().st_mtime for s in SOURCES):
        return str(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    compiler = compiler or os.environ.get("CXX") or "g++"
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = pathlib.Path(folder) / place.name
        command = [
            compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{HERE}",
            *[f"-isystem{h}" for h in _headers(torch)], "-o", str(made), str(SOURCES[0]),
            f"-L{libraries}", "-lc10", "-lc10_cuda", "-ldl",
        ]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as e:
            raise MillpondError(f"{compiler} cannot be run ({e}); install a C++ compiler, or set CXX") from None
        if done.returncode != 0:
            raise MillpondError(
                f"the allocator does not build against PyTorch {torch.__version__}; enable() without `native` works all the "
                f"same:\n{done.stdout}")
        made.replace(place)
    return str(place)


def load_native(torch: Any) -> ctypes.CDLL:
    """The built allocator, for this release of PyTorch; MillpondError where there is none."""
    place = _place(torch)
    if not place.is_file():
        raise MillpondError(f"there is no {place}; millpond_torch.build_native() builds it for PyTorch {torch.__version__}")
    try:
        file = ctypes.CDLL(str(place))
    except OSError as e:
        raise MillpondError(f"{place} does not fit PyTorch {torch.__version__} ({e}); remove it and build it again") from None
    file.millpond_native_install.restype = ctypes.c_int
    file.millpond_native_install.argtypes = [ctypes.c_char_p, ctypes.c_int]
    return file
