"""Makes PyTorch use Millpond: as its allocator for everything, or for one torch.cuda.MemPool."""
import ctypes
import threading

from ._library import MillpondError, device_count, library, library_path

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
_allocator = None
_enabled = False


def _torch():
    try:
        import torch
    except ImportError as e:
        raise MillpondError(
            f"PyTorch cannot be imported ({e}); install it with CUDA support, see https://pytorch.org/get-started"
        ) from None
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


def allocator():
    """A torch.cuda.memory.CUDAPluggableAllocator of Millpond's functions, with all hooks set. The same one each time.

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


def enable():
    """PyTorch takes all CUDA memory from Millpond from now on. A second call does nothing.

    Must come before the first CUDA tensor: PyTorch does not change an allocator that is in use. Then, and where the
    library, PyTorch or a GPU is missing, it raises MillpondError.
    """
    global _enabled
    made = allocator()
    torch = _torch()
    with _lock:
        if _enabled:
            return
        try:
            torch.cuda.memory.change_current_allocator(made)
        except RuntimeError as e:
            raise MillpondError(
                f"PyTorch keeps its allocator ({e}); call millpond_torch.enable() before anything touches CUDA, "
                "at the top of the program"
            ) from None
        _enabled = True


def is_enabled():
    """Whether enable() has switched PyTorch over."""
    return _enabled


def mem_pool():
    """A new torch.cuda.MemPool that gets its segments from Millpond, for torch.cuda.use_mem_pool(); PyTorch's own
    allocator, or the one that is enabled, goes on beside it. Needs PyTorch 2.5 or newer."""
    made = allocator()
    torch = _torch()
    if not hasattr(torch.cuda, "MemPool"):
        raise MillpondError(f"PyTorch {torch.__version__} has no torch.cuda.MemPool; 2.5 or newer is needed")
    return torch.cuda.MemPool(made.allocator())
