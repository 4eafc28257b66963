"""The part of millpond.h that this package uses: structs, numbers and signatures.

python/tests/test_abi.py compares all of it with the header, by a C compiler.
"""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char, c_char_p, c_double, c_int, c_int32, c_size_t, c_uint8, c_uint32, c_uint64
from ctypes import c_void_p
from typing import Any

E_INVALID_ARGUMENT, E_NOT_INITIALIZED, E_NOT_PERMITTED = 1, 8, 15
E_OUT_OF_MEMORY, E_UNKNOWN_POINTER, E_DOUBLE_FREE, E_UNKNOWN_STREAM = 2, 3, 4, 5
BLOCK_LIVE, BLOCK_WAITING, BLOCK_FREE, BLOCK_ANY = 1, 2, 4, 7
SNAPSHOT_JSON, SNAPSHOT_TORCH_PICKLE = 1, 2
STATS_JSON, STATS_PROMETHEUS, STATS_STREAMS = 1, 2, 256
COPY_H2D, COPY_D2H, COPY_D2D = 0, 1, 2
CAP_MAPPING, CAP_HOST_ACCESS, CAP_UNIFIED, CAP_PINNED, CAP_STREAMS, CAP_CALLBACKS = 1, 2, 4, 8, 16, 32
CAP_EXPORT, CAP_RDMA = 64, 128
STREAM_NON_BLOCKING = 1
SLEEP_KEEP = 1
PLACE_DEVICE, PLACE_HOST = 1, 2
ADVICE = {
    "read_mostly": 1, "unset_read_mostly": 2, "preferred": 3, "unset_preferred": 4, "accessed_by": 5,
    "unset_accessed_by": 6,
}
LATENCY_BUCKETS = 160
OPTION_BYTES, OPTIONS_BYTES, TYPE_NAME_BYTES = 512, 2048, 32
# Room for structs that this package only hands on, with what they may grow by.
MEMORY_STATS_BYTES, HOST_MEMORY_STATS_BYTES = 4096, 1024

LATENCY = {
    "alloc": 1, "free": 2, "device_alloc": 3, "device_free": 4, "device_event": 5, "event_wait": 6, "lock_wait": 7
}
HISTORY = {
    1: "alloc", 2: "free_requested", 3: "free_completed", 4: "free_refused", 5: "segment_alloc", 6: "segment_free",
    7: "segment_map", 8: "segment_unmap", 9: "oom", 10: "record_stream", 11: "snapshot", 12: "annotate",
}
HOOKS = {1: "alloc", 2: "free", 3: "free_failed"}
OOM_TOP, OOM_LABEL, OOM_WORDS, OOM_HAS_STREAM = 8, 48, 192, 16
GROUP_NAME = 40
OOM_REASONS = {
    1: "bookkeeping", 2: "larger_than_device", 3: "above_pool_limit", 4: "above_device_limit", 5: "pool_limit",
    6: "device_limit", 7: "waiting", 8: "fragmented", 9: "device_refused", 10: "exhausted",
}
OOM_FLAGS = {
    1: "maps", 2: "could_map", 4: "pooled", 8: "captured", 16: "has_stream", 32: "watched", 64: "no_scatter",
    128: "contiguous", 256: "could_pool",
}
OOM_MISSING = {1: "all", 2: "device_free", 4: "waits", 8: "largest", 16: "streams"}
OOM_WAITS = {1: "stream", 2: "all_streams", 3: "ended", 4: "others", 5: "nothing"}
OOM_STEPS = {
    0: "pool_idle", 1: "collect", 2: "device", 3: "whole", 4: "pool_busy", 5: "others_idle", 6: "ready", 7: "waiting",
    8: "others_busy", 9: "trim", 10: "callbacks",
}
SEGMENTS = {1: "segment", 2: "large", 3: "small", 4: "scattered"}
HISTORY_HOST, HISTORY_AT_ONCE, HISTORY_STREAM = 1, 2, 4


class DeviceInfo(ctypes.Structure):
    """millpond_device_info"""

    _fields_ = [
        ("struct_size", c_size_t), ("type", c_char * 32), ("ordinal", c_int32), ("caps", c_uint32),
        ("total_bytes", c_uint64), ("free_bytes", c_uint64), ("min_chunk_bytes", c_uint64),
        ("max_chunk_bytes", c_uint64), ("max_alloc_bytes", c_uint64), ("extra_padding_bytes", c_uint64),
        ("init_alloc_bytes", c_uint64), ("realloc_bytes", c_uint64), ("compute_capability", c_uint64),
        ("runtime_version", c_uint64), ("driver_version", c_uint64), ("name", c_char * 64),
        ("pci_bus_id", c_char * 16), ("uuid", c_uint8 * 16),
    ]


class PoolOptions(ctypes.Structure):
    """millpond_pool_options"""

    _fields_ = [("struct_size", c_size_t), ("limit_bytes", c_uint64), ("name", c_char_p), ("flags", c_uint64)]


class Counter(ctypes.Structure):
    """millpond_counter"""

    _fields_ = [("current", c_uint64), ("peak", c_uint64), ("total", c_uint64)]


class Stats(ctypes.Structure):
    """millpond_stats"""

    _fields_ = [
        ("struct_size", c_size_t), ("requested_bytes", Counter), ("allocated_bytes", Counter),
        ("active_bytes", Counter), ("reserved_bytes", Counter), ("blocks", Counter), ("segments", Counter),
        ("driver_calls", c_uint64), ("out_of_memory_count", c_uint64), ("limit_bytes", c_uint64),
        ("sleeping_bytes", Counter),
    ]


class BlockRecord(ctypes.Structure):
    """millpond_block_record"""

    _fields_ = [
        ("struct_size", c_size_t), ("ptr", c_void_p), ("size_bytes", c_size_t), ("requested_bytes", c_size_t),
        ("stream", c_void_p), ("pool", c_void_p), ("segment", c_void_p), ("state", c_uint32), ("tag", c_uint32),
    ]


class SegmentRecord(ctypes.Structure):
    """millpond_segment_record"""

    _fields_ = [
        ("struct_size", c_size_t), ("ptr", c_void_p), ("size_bytes", c_size_t), ("home", c_void_p),
        ("stream", c_void_p), ("pool", c_void_p), ("kind", c_uint32), ("reserved", c_uint32),
    ]


class GroupMember(ctypes.Structure):
    """millpond_group_member"""

    _fields_ = [
        ("struct_size", c_size_t), ("member_id", c_uint64), ("process_id", c_uint64), ("name", c_char * GROUP_NAME),
        ("device", c_char * GROUP_NAME), ("card", c_uint8 * 16), ("reserved_bytes", c_uint64),
        ("unused_bytes", c_uint64), ("budget_bytes", c_uint64), ("given_bytes", c_uint64), ("received_bytes", c_uint64),
        ("looked_ms", c_uint64),
    ]


class OomHolder(ctypes.Structure):
    """millpond_oom_holder"""

    _fields_ = [
        ("label", c_char * OOM_LABEL), ("pool", c_void_p), ("stream", c_void_p), ("live_bytes", c_uint64),
        ("block_count", c_uint64), ("waiting_bytes", c_uint64), ("free_bytes", c_uint64),
    ]


class OomWait(ctypes.Structure):
    """millpond_oom_wait"""

    _fields_ = [("waits_for", c_uint32), ("block_count", c_uint32), ("stream", c_void_p), ("bytes", c_uint64)]


class OomTried(ctypes.Structure):
    """millpond_oom_tried"""

    _fields_ = [
        ("step", c_uint32), ("try_count", c_uint32), ("helped_count", c_uint32), ("reserved", c_uint32),
        ("bytes", c_uint64),
    ]


class OomReport(ctypes.Structure):
    """millpond_oom_report"""

    _fields_ = [
        ("struct_size", c_size_t), ("reason", c_uint32), ("missing", c_uint32), ("flags", c_uint32),
        ("waiting_stream_count", c_uint32), ("device", c_void_p), ("pool", c_void_p),
        ("pool_label", c_char * OOM_LABEL), ("stream", c_void_p),
        *((name, c_uint64) for name in [
            "requested_bytes", "rounded_bytes", "pool_limit_bytes", "device_limit_bytes", "device_most_bytes",
            "pool_reserved_bytes", "reserved_bytes", "live_bytes", "waiting_bytes", "exported_bytes",
            "free_here_bytes", "free_other_streams_bytes", "free_other_pools_bytes", "moving_bytes", "sleeping_bytes",
            "unreserved_bytes", "device_free_bytes", "largest_here_bytes", "largest_elsewhere_bytes",
        ]),
        ("device_said", c_char * OOM_WORDS),
        *((name, c_uint32) for name in [
            "pool_count", "stream_count", "tag_count", "wait_count", "tried_count", "reserved",
        ]),
        ("pools", OomHolder * OOM_TOP), ("streams", OomHolder * OOM_TOP), ("tags", OomHolder * OOM_TOP),
        ("waits", OomWait * OOM_TOP), ("tried", OomTried * len(OOM_STEPS)), ("whole_granule_bytes", c_uint64),
        ("headroom_bytes", c_uint64), ("max_split_bytes", c_uint64),
    ]


class TagStats(ctypes.Structure):
    """millpond_tag_stats"""

    _fields_ = [
        ("struct_size", c_size_t), ("name", c_char_p), ("tag", c_uint32), ("reserved", c_uint32),
        ("requested_bytes", Counter), ("allocated_bytes", Counter), ("blocks", Counter), ("waiting_bytes", c_uint64),
        ("active_bytes", Counter), ("active_blocks", Counter), ("small_allocated_bytes", Counter),
        ("small_blocks", Counter), ("host_bytes", Counter), ("host_blocks", Counter), ("unified_bytes", Counter),
        ("unified_blocks", Counter),
    ]


class Latency(ctypes.Structure):
    """millpond_latency"""

    _fields_ = [
        ("struct_size", c_size_t), ("count", c_uint64), ("total_ns", c_uint64), ("min_ns", c_uint64),
        ("max_ns", c_uint64), ("buckets", c_uint64 * LATENCY_BUCKETS),
    ]


class HistoryOptions(ctypes.Structure):
    """millpond_history_options"""

    _fields_ = [("struct_size", c_size_t), ("event_count", c_size_t), ("frame_count", c_size_t), ("path", c_char_p)]


class HistoryEvent(ctypes.Structure):
    """millpond_history_event"""

    _fields_ = [
        ("struct_size", c_size_t), ("time_ns", c_uint64), ("kind", c_uint32), ("flags", c_uint32), ("ptr", c_void_p),
        ("size_bytes", c_uint64), ("requested_bytes", c_uint64), ("stream", c_void_p), ("pool", c_void_p),
        ("thread", c_uint32), ("tag", c_uint32), ("frames", POINTER(c_uint64)), ("frame_count", c_size_t),
        ("text", c_char_p), ("device_free_bytes", c_uint64), ("stamp", c_uint64),
    ]


class BlockEvent(ctypes.Structure):
    """millpond_block_event"""

    _fields_ = [
        ("struct_size", c_size_t), ("kind", c_uint32), ("has_stream", c_uint32), ("ptr", c_void_p),
        ("requested_bytes", c_size_t), ("size_bytes", c_size_t), ("stream", c_void_p), ("pool", c_void_p),
        ("device", c_void_p),
    ]


OomHandler = ctypes.CFUNCTYPE(c_bool, c_void_p, c_void_p)
WriteCallback = ctypes.CFUNCTYPE(c_bool, c_void_p, c_void_p, c_size_t)
HistoryCallback = ctypes.CFUNCTYPE(c_bool, c_void_p, POINTER(HistoryEvent))
BlockHook = ctypes.CFUNCTYPE(None, c_void_p, POINTER(BlockEvent))
HookDestroy = ctypes.CFUNCTYPE(None, c_void_p)

_out_u64, _out_size, _out_ptr = POINTER(c_uint64), POINTER(c_size_t), POINTER(c_void_p)
_handle = c_void_p

# name, what it returns, what it takes
FUNCTIONS: list[tuple[str, Any, list[Any]]] = [
    ("millpond_version", c_char_p, []),
    ("millpond_version_number", c_uint32, []),
    ("millpond_last_error_code", c_uint32, []),
    ("millpond_last_error_message", c_char_p, []),
    ("millpond_error_name", c_char_p, [c_uint32]),
    ("millpond_last_oom", c_int, [POINTER(OomReport)]),
    ("millpond_oom_report_text", c_int, [POINTER(OomReport), c_char_p, c_size_t, _out_size]),
    ("millpond_device_type_get_count", c_int, [_out_size]),
    ("millpond_device_type_get_name", c_int, [c_size_t, c_char_p, c_size_t]),
    ("millpond_device_type_get_reason", c_int, [c_char_p, c_char_p, c_size_t]),
    ("millpond_device_type_load", c_int, [c_char_p, c_char_p, c_size_t]),
    ("millpond_device_get_count", c_int, [c_char_p, _out_size]),
    ("millpond_device_get", c_int, [c_char_p, c_int32, POINTER(_handle)]),
    ("millpond_device_get_info", c_int, [_handle, POINTER(DeviceInfo)]),
    ("millpond_device_get_reason", c_int, [_handle, c_uint32, c_char_p, c_size_t]),
    ("millpond_device_synchronize", c_int, [_handle]),
    ("millpond_device_set_limit", c_int, [_handle, c_uint64]),
    ("millpond_device_get_stats", c_int, [_handle, POINTER(Stats)]),
    ("millpond_device_reset_peaks", c_int, [_handle]),
    ("millpond_device_reset_accumulated", c_int, [_handle]),
    ("millpond_pool_reset_accumulated", c_int, [_handle]),
    ("millpond_device_reset_host_accumulated", c_int, [_handle]),
    ("millpond_device_reset_host_peaks", c_int, [_handle]),
    ("millpond_device_empty_cache", c_int, [_handle]),
    ("millpond_device_trim_to", c_int, [_handle, c_uint64]),
    ("millpond_device_set_budget", c_int, [_handle, c_uint64, POINTER(c_uint64)]),
    ("millpond_device_join_group", c_int, [_handle, c_char_p, c_char_p, c_uint64, _out_u64]),
    ("millpond_device_leave_group", c_int, [_handle]),
    ("millpond_device_serve_group", c_int, [_handle, c_uint64, _out_u64]),
    ("millpond_group_list", c_int, [c_char_p, POINTER(GroupMember), c_size_t, c_size_t, _out_size]),
    ("millpond_group_set_budget", c_int, [c_char_p, c_uint64, c_uint64]),
    ("millpond_device_get_default_pool", c_int, [_handle, POINTER(_handle)]),
    ("millpond_set_default_options", c_int, [c_char_p, c_int32, c_char_p]),
    ("millpond_device_set_options", c_int, [_handle, c_char_p]),
    ("millpond_device_get_option", c_int, [_handle, c_char_p, c_char_p, c_size_t]),
    ("millpond_device_get_options", c_int, [_handle, c_char_p, c_size_t]),
    ("millpond_pool_create", c_int, [_handle, POINTER(PoolOptions), POINTER(_handle)]),
    ("millpond_pool_release", c_int, [_handle]),
    ("millpond_pool_alloc", c_int, [_handle, c_size_t, c_void_p, _out_ptr]),
    ("millpond_pool_alloc_zeroed", c_int, [_handle, c_size_t, c_void_p, _out_ptr]),
    ("millpond_pool_alloc_aligned", c_int, [_handle, c_size_t, c_size_t, c_void_p, _out_ptr]),
    ("millpond_pool_alloc_unordered_aligned", c_int, [_handle, c_size_t, c_size_t, _out_ptr]),
    ("millpond_pool_alloc_batch", c_int, [_handle, _out_size, c_size_t, c_void_p, _out_ptr]),
    ("millpond_pool_free_batch", c_int, [_handle, _out_ptr, c_size_t, c_void_p, _out_size]),
    ("millpond_pool_add_oom_handler", c_int, [_handle, OomHandler, c_void_p, _out_u64]),
    ("millpond_device_add_oom_handler", c_int, [_handle, OomHandler, c_void_p, _out_u64]),
    ("millpond_device_remove_oom_callback", c_int, [_handle, c_uint64]),
    ("millpond_pool_empty_cache", c_int, [_handle]),
    ("millpond_pool_trim_to", c_int, [_handle, c_uint64]),
    ("millpond_pool_set_limit", c_int, [_handle, c_uint64]),
    ("millpond_pool_get_stats", c_int, [_handle, POINTER(Stats)]),
    ("millpond_pool_reset_peaks", c_int, [_handle]),
    ("millpond_pool_sleep", c_int, [_handle, c_uint32]),
    ("millpond_pool_wake", c_int, [_handle]),
    ("millpond_scope_begin", c_int, [_handle]),
    ("millpond_scope_end", c_int, [_handle]),
    ("millpond_alloc", c_int, [_handle, c_size_t, _out_ptr]),
    ("millpond_device_free", c_int, [_handle, c_void_p]),
    ("millpond_free", c_int, [c_void_p]),
    ("millpond_pool_free", c_int, [_handle, c_void_p, c_void_p]),
    ("millpond_try_expand", c_int, [c_void_p, c_size_t]),
    ("millpond_export_dmabuf", c_int, [c_void_p, c_size_t, POINTER(c_int), POINTER(c_uint64)]),
    ("millpond_get_usable_size", c_int, [c_void_p, _out_size]),
    ("millpond_record_stream", c_int, [c_void_p, c_void_p]),
    ("millpond_host_alloc", c_int, [_handle, c_size_t, _out_ptr]),
    ("millpond_host_free", c_int, [_handle, c_void_p]),
    ("millpond_unified_alloc", c_int, [_handle, c_size_t, _out_ptr]),
    ("millpond_unified_free", c_int, [_handle, c_void_p]),
    ("millpond_unified_prefetch", c_int, [_handle, c_void_p, c_void_p, c_size_t, c_uint32]),
    ("millpond_unified_advise", c_int, [_handle, c_void_p, c_size_t, c_uint32, c_uint32]),
    ("millpond_host_record_stream", c_int, [_handle, c_void_p, c_void_p]),
    ("millpond_device_empty_host_cache", c_int, [_handle]),
    ("millpond_device_list_blocks", c_int, [_handle, _handle, c_uint32, POINTER(BlockRecord), c_size_t, c_size_t,
                                            _out_size]),
    ("millpond_device_list_segments", c_int, [_handle, _handle, POINTER(SegmentRecord), c_size_t, c_size_t, _out_size]),
    ("millpond_device_write_snapshot", c_int, [_handle, c_uint32, c_char_p]),
    ("millpond_device_send_snapshot", c_int, [_handle, c_uint32, WriteCallback, c_void_p]),
    ("millpond_tag_push", c_int, [c_char_p]),
    ("millpond_tag_pop", c_int, []),
    ("millpond_tag_get_number", c_int, [c_char_p, POINTER(c_uint32)]),
    ("millpond_tag_push_number", c_int, [c_uint32]),
    ("millpond_tag_get_name", c_char_p, [c_uint32]),
    ("millpond_device_list_tags", c_int, [_handle, POINTER(TagStats), c_size_t, c_size_t, _out_size]),
    ("millpond_device_history_start", c_int, [_handle, POINTER(HistoryOptions)]),
    ("millpond_device_history_stop", c_int, [_handle, _out_u64]),
    ("millpond_device_history_read", c_int, [_handle, HistoryCallback, c_void_p, _out_u64]),
    ("millpond_history_annotate", c_int, [c_char_p]),
    ("millpond_history_stamp", c_uint64, []),
    ("millpond_history_on_signal", c_int, [c_int, POINTER(HistoryOptions)]),
    ("millpond_device_add_hook", c_int, [_handle, BlockHook, c_void_p, HookDestroy, _out_u64]),
    ("millpond_device_remove_hook", c_int, [_handle, c_uint64]),
    ("millpond_device_record_start", c_int, [_handle, c_char_p]),
    ("millpond_device_record_stop", c_int, [_handle, _out_u64]),
    ("millpond_device_get_memory_stats", c_int, [_handle, c_void_p]),
    ("millpond_pool_get_memory_stats", c_int, [_handle, c_void_p]),
    ("millpond_memory_stats_find", c_int, [c_void_p, c_char_p, _out_u64]),
    ("millpond_memory_stats_name", c_char_p, [c_size_t]),
    ("millpond_device_get_host_memory_stats", c_int, [_handle, c_void_p]),
    ("millpond_host_memory_stats_find", c_int, [c_void_p, c_char_p, _out_u64]),
    ("millpond_host_memory_stats_name", c_char_p, [c_size_t]),
    ("millpond_write_stats", c_int, [c_uint32, c_char_p, c_size_t, _out_size]),
    ("millpond_device_write_stats", c_int, [_handle, c_uint32, c_char_p, c_size_t, _out_size]),
    ("millpond_device_get_latency", c_int, [_handle, c_uint32, POINTER(Latency)]),
    ("millpond_device_reset_latencies", c_int, [_handle]),
    ("millpond_latency_quantile", c_int, [POINTER(Latency), c_double, _out_u64]),
    ("millpond_latency_bucket_start", c_uint64, [c_size_t]),
    ("millpond_copy", c_int, [_handle, c_uint32, c_void_p, c_void_p, c_size_t]),
    ("millpond_copy_async", c_int, [_handle, c_void_p, c_uint32, c_void_p, c_void_p, c_size_t]),
    ("millpond_memset", c_int, [_handle, c_void_p, c_uint8, c_size_t]),
    ("millpond_memset_async", c_int, [_handle, c_void_p, c_void_p, c_uint8, c_size_t]),
    ("millpond_stream_create_with_priority", c_int, [_handle, c_int32, c_uint32, _out_ptr]),
    ("millpond_device_get_stream_priority_range", c_int, [_handle, POINTER(c_int32), POINTER(c_int32)]),
    ("millpond_stream_destroy", c_int, [_handle, c_void_p]),
    ("millpond_stream_forget", c_int, [_handle, c_void_p]),
    ("millpond_stream_query", c_int, [_handle, c_void_p, POINTER(c_bool)]),
    ("millpond_stream_synchronize", c_int, [_handle, c_void_p]),
    ("millpond_stream_wait_event", c_int, [_handle, c_void_p, c_void_p]),
    ("millpond_event_create", c_int, [_handle, _out_ptr]),
    ("millpond_event_destroy", c_int, [_handle, c_void_p]),
    ("millpond_event_record", c_int, [_handle, c_void_p, c_void_p]),
]


def declare(lib: Any) -> None:
    """Gives each function its signature; AttributeError where the library does not have one."""
    for name, result, arguments in FUNCTIONS:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
