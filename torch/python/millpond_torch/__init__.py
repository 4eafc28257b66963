"""Millpond as PyTorch's CUDA memory allocator.

    import millpond_torch
    millpond_torch.enable()          # before the first CUDA tensor

    millpond_torch.memory_stats()    # as torch.cuda.memory_stats(), which PyTorch does not offer for other allocators
    millpond_torch.snapshot()        # as torch.cuda.memory_snapshot()
    millpond_torch.enable_cpu()      # CPU tensors, too: to test and to measure without a GPU
    with millpond_torch.tag("kv_cache"):   # what is allocated here has this name, in reports of what holds memory
        ...

Nothing here imports PyTorch before it is needed, and nothing is printed. What cannot work raises MillpondError, whose
text says what to do.
"""
from ._library import MillpondError, library_path, version
from ._native import build_native
from ._stats import cpu_memory_stats, host_memory_stats, max_memory_allocated, max_memory_reserved, mem_get_info, memory_allocated, memory_reserved
from ._stats import memory_stats, reset_accumulated_memory_stats, reset_cpu_peak_memory_stats, reset_peak_memory_stats, snapshot
from ._switch import allocator, enable, enable_cpu, is_enabled, mem_pool
from ._tags import tag, tag_bytes

__all__ = [
    "MillpondError",
    "allocator",
    "build_native",
    "cpu_memory_stats",
    "enable",
    "enable_cpu",
    "host_memory_stats",
    "is_enabled",
    "library_path",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "mem_pool",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_cpu_peak_memory_stats",
    "reset_peak_memory_stats",
    "snapshot",
    "tag",
    "tag_bytes",
    "version",
]
__version__ = "0.1.0"
