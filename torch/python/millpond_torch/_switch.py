"""Makes PyTorch use Millpond: as its allocator for everything, or for one torch.cuda.MemPool."""
from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Tuple, Union

from ._library import MillpondError, Stats, check, device_count, library, library_path
from ._native import load_cpu, load_native

if TYPE_CHECKING:
    import torch

# Hook of torch._C._cuda_CUDAAllocator: its setter (and what it is called in some releases), and our function.
HOOKS = [
    (("set_init_fn",), "millpond_torch_init"),
    (("set_reset_fn",), "millpond_torch_reset"),
    (("set_memory_fraction_fn",), "millpond_torch_memory_fraction"),
    (("set_base_alloc_fn",), "millpond_torch_base_alloc"),
    (("set_record_stream_fn",), "millpond_torch_record_stream"),
    (("set_begin_allocate_to_pool", "set_begin_allocate_to_pool_fn"), "millpond_torch_begin_allocate_to_pool"),
    (("set_end_allocate_to_pool_fn", "set_end_allocate_to_pool"), "millpond_torch_end_allocate_to_pool"),
    (("set_release_pool", "set_release_pool_fn"), "millpond_torch_release_pool"),
]

_lock = threading.Lock()
_allocator: Optional[torch.cuda.memory.CUDAPluggableAllocator] = None
_segments: Optional[torch.cuda.memory.CUDAPluggableAllocator] = None  # the allocator behind every MemPool
_enabled = False
_native = False  # by the allocator of C++
_cpu = False


def _any_torch(how: str = "install it") -> Any:
    try:
        import torch
    except ImportError as e:
        raise MillpondError(f"PyTorch cannot be imported ({e}); {how}, see https://pytorch.org/get-started") from None
    return torch


def _torch() -> Any:
    torch = _any_torch("install it with CUDA support")
    memory = getattr(getattr(torch, "cuda", None), "memory", None)
    if not hasattr(memory, "CUDAPluggableAllocator"):
        raise MillpondError(
            f"PyTorch {getattr(torch, '__version__', '?')} has no torch.cuda.memory.CUDAPluggableAllocator; "
            "2.1 or newer is needed"
        )
    if getattr(getattr(torch, "version", None), "cuda", None) is None:
        raise MillpondError(
            f"PyTorch {getattr(torch, '__version__', '?')} was built without CUDA; install a build with it, "
            "see https://pytorch.org/get-started"
        )
    return torch


def allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """A torch.cuda.memory.CUDAPluggableAllocator of Millpond's functions, with all hooks set. The same one each time. For
    torch.cuda.memory.change_current_allocator(); a MemPool is made by mem_pool().

    MillpondError where the library, PyTorch or a GPU is missing.
    """
    global _allocator
    lib = library()
    torch = _torch()
    device_count(lib)
    with _lock:
        if _allocator is None:
            made = torch.cuda.memory.CUDAPluggableAllocator(
                library_path(), "millpond_torch_alloc", "millpond_torch_free")
            inner = made.allocator()
            for setters, ours in HOOKS:
                setter = next((getattr(inner, s) for s in setters if hasattr(inner, s)), None)
                if setter is None:
                    raise MillpondError(
                        f"PyTorch {torch.__version__} lacks {setters[0]} of its pluggable allocator; 2.1 or newer is needed")
                setter(ctypes.cast(getattr(lib, ours), ctypes.c_void_p).value)
            lib.millpond_torch_init(device_count(lib))  # all hooks are there
            _allocator = made
        return _allocator


def _refuse(why: object) -> NoReturn:
    raise MillpondError(
        f"PyTorch keeps its allocator: {why}; call millpond_torch.enable() before the first CUDA tensor, at the top of the "
        "program") from None


def _leave(torch: Any) -> None:
    """PyTorch's own allocator gives all its memory back. MillpondError where some of it is in use."""
    try:
        torch._C._cuda_clearCublasWorkspaces()
    except AttributeError:
        pass
    devices, kept = range(torch.cuda.device_count()), 0
    try:
        held = sum(torch.cuda.memory_allocated(i) for i in devices)
        if held == 0:
            torch.cuda.empty_cache()
            kept = sum(torch.cuda.memory_reserved(i) for i in devices)
    except RuntimeError:
        _refuse("it is not PyTorch's own, but one that the program has set before")
    if held:
        _refuse(f"{held} bytes are in use")
    if kept:
        _refuse(f"{kept} bytes belong to a CUDA graph or a torch.cuda.MemPool that is alive; delete it before")


def _all_ours(torch: Any, made: Any) -> None:
    """Makes PyTorch's allocator ours although its own has been started, which happens with the first call that needs CUDA
    (torch.cuda.set_device, mem_get_info, pinned memory). PyTorch refuses that as a rule; but an allocator that has no
    memory can be left. MillpondError where it has some.
    """
    _leave(torch)
    # changeCurrentAllocator() asks one thing of the allocator in place: whether it was started. For that call, one takes
    # the place that answers no to everything.
    import pathlib

    try:
        c10 = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10_cuda.so"))
        place = ctypes.c_void_p.in_dll(c10, "_ZN3c104cuda20CUDACachingAllocator9allocatorE")
    except (OSError, ValueError):
        _refuse("it has been started, and this build of PyTorch does not show where it is")
    no = ctypes.cast(library().millpond_torch_no, ctypes.c_void_p).value
    functions = (ctypes.c_void_p * 256)(*[no] * 256)
    nobody = (ctypes.c_void_p * 64)(ctypes.addressof(functions))
    before = place.value
    place.value = ctypes.addressof(nobody)
    try:
        torch.cuda.memory.change_current_allocator(made)
    except RuntimeError as e:
        _refuse(e)
    finally:
        if place.value == ctypes.addressof(nobody):
            place.value = before


# torch.cuda.memory._set_allocator_settings calls one of these, by the release, and programs call them, too.
SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")


def _follow_settings(torch: Any) -> None:
    """What the program sets for PyTorch's own allocator is set for Millpond, too, once PyTorch has taken it."""
    lib = library()

    def following(theirs: Any) -> Any:
        @functools.wraps(theirs)
        def ours(env: str) -> None:
            # PyTorch would look for its own allocator in the place that Millpond has.
            theirs(",".join(part for part in env.split(",") if "".join(part.split()) != "backend:native"))
            check(lib, lib.millpond_torch_settings(env.encode()))
        return ours
    for name in SETTERS:
        theirs = getattr(torch._C, name, None)
        if theirs is not None:
            setattr(torch._C, name, following(theirs))


def enable(native: bool = False) -> None:
    """PyTorch takes all CUDA memory from Millpond from now on. A second call does nothing.

    With `native`, by an allocator of C++ that build_native() has built, so that torch.cuda.memory_stats(), MemPool and
    torch.OutOfMemoryError work as with PyTorch's own allocator.

    Must come before the first CUDA tensor: PyTorch does not change an allocator that has memory, be it a tensor's, a
    graph's or a MemPool's. Then, and where the library, PyTorch or a GPU is missing, it raises MillpondError. No other
    thread may use CUDA through PyTorch meanwhile: what it allocates between the look and the change would be lost.
    """
    global _enabled, _native
    if native and not _enabled:
        lib, torch = library(), _torch()
        count = device_count(lib)
        file = load_native(torch)
        with _lock:
            if _enabled:
                return
            _leave(torch)
            if not file.millpond_native_install(library_path().encode(), count):
                raise MillpondError(
                    f"{library_path()} and this package are of different versions; install both from one release")
            _enabled = _native = True
            _follow_settings(torch)
        return
    made = allocator()
    torch = _torch()
    with _lock:
        if _enabled:
            return
        try:
            torch.cuda.memory.change_current_allocator(made)
        except RuntimeError:
            _all_ours(torch, made)
        _enabled = True
        _follow_settings(torch)


def enable_cpu() -> None:
    """Every CPU tensor that is made from now on takes its memory from Millpond's device `cpu`. A second call does nothing.

    For programs that are tested and measured without a GPU: each byte that they write lies in Millpond's blocks. Tensors
    that are there stay where they are. Builds a small allocator of C++ for the installed PyTorch on the first call, for
    which a C++ compiler is needed (CXX, else g++), and keeps it in the user's cache; MILLPOND_TORCH_CPU names another
    file. A forked child, such as a worker of a DataLoader, takes new memory from PyTorch's own allocator. What is shared
    between processes, or with NumPy, does not come from here either. A request that finds no memory raises RuntimeError
    with the reason. Cannot be undone.

    MillpondError where the library, PyTorch or the compiler is missing.
    """
    global _cpu
    lib, torch = library(), _any_torch()
    with _lock:
        if _cpu:
            return
        check(lib, lib.millpond_torch_cpu_stats(ctypes.byref(Stats(struct_size=ctypes.sizeof(Stats)))))  # opens it
        if not load_cpu(torch).millpond_cpu_install(library_path().encode()):
            raise MillpondError(
                f"{library_path()} and this package are of different versions; install both from one release")
        _cpu = True


def is_enabled() -> bool:
    """Whether enable() has switched PyTorch over."""
    return _enabled


class _Pool(Tuple[int, int]):
    """What mem_pool() gives when Millpond is the allocator: PyTorch's handle of a pool, as torch.cuda.graph_pool_handle()
    makes them, which keeps the pool's memory for as long as it lives itself."""

    _device: int
    _drop: Any

    def __new__(cls, torch: Any) -> _Pool:
        made = super().__new__(cls, torch.cuda.graph_pool_handle())
        lib, made._device = library(), torch.cuda.current_device()
        check(lib, lib.millpond_torch_pool_hold(made._device, *made))
        made._drop = lib.millpond_torch_pool_drop
        return made

    @property
    def id(self) -> Tuple[int, int]:
        return (self[0], self[1])

    def __del__(self) -> None:
        drop = getattr(self, "_drop", None)
        if drop is not None:
            drop(self._device, *self)


def mem_pool() -> Union[torch.cuda.MemPool, _Pool]:
    """A new pool for torch.cuda.use_mem_pool() and torch.cuda.graph(pool=...). Its memory is its own, and goes back when the
    pool and what was allocated in it are gone.

    Beside PyTorch's own allocator it is a torch.cuda.MemPool, which needs PyTorch 2.5 or newer, over segments of
    Millpond. After enable(), when PyTorch can make no MemPool, it is an object with the same `id`.
    """
    global _segments
    pool: torch.cuda.MemPool
    if _native:
        pool = _torch().cuda.MemPool()
        return pool
    if _enabled:
        return _Pool(_torch())
    lib = library()
    torch = _torch()
    device_count(lib)
    if not hasattr(torch.cuda, "MemPool"):
        raise MillpondError(f"PyTorch {torch.__version__} has no torch.cuda.MemPool; 2.5 or newer is needed")
    with _lock:
        if _segments is None:
            _segments = torch.cuda.memory.CUDAPluggableAllocator(
                library_path(), "millpond_torch_segment_alloc", "millpond_torch_segment_free")
    pool = torch.cuda.MemPool(_segments.allocator())
    return pool
