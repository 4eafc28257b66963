"""Why a request found no memory: the report, field by field."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields
from typing import Any, Optional

from . import _abi


@dataclass(frozen=True)
class OomHolder:
    """A pool, a stream or a tag, as `label` says, and what it holds."""

    label: str
    live_bytes: int
    block_count: int
    waiting_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class OomWait:
    """What freed blocks wait for: `on` is "stream", "all_streams", "ended", "others" or "nothing"."""

    on: str
    stream: int
    bytes: int
    block_count: int


@dataclass(frozen=True)
class OomStep:
    """A step that was tried, and what it brought."""

    step: str
    tries: int
    helped: int
    bytes: int


@dataclass(frozen=True)
class OomReport:
    """Why a request found no memory: millpond_oom_report. `text` is all of it for people, with advice at the end.

    `reason` is one of "bookkeeping", "larger_than_device", "above_pool_limit", "above_device_limit", "pool_limit",
    "device_limit", "waiting", "fragmented", "device_refused", "exhausted"; `flags` has words such as "maps" and "captured",
    and `missing` those of the parts that are unknown. `stream` is None for a request without one.
    """

    reason: str
    flags: frozenset[str]
    missing: frozenset[str]
    pool: str
    stream: Optional[int]
    requested_bytes: int
    rounded_bytes: int
    pool_limit_bytes: int
    device_limit_bytes: int
    device_most_bytes: int
    pool_reserved_bytes: int
    reserved_bytes: int
    live_bytes: int
    waiting_bytes: int
    waiting_stream_count: int
    exported_bytes: int
    free_here_bytes: int
    free_other_streams_bytes: int
    free_other_pools_bytes: int
    moving_bytes: int
    sleeping_bytes: int
    unreserved_bytes: int
    device_free_bytes: int
    largest_here_bytes: int
    largest_elsewhere_bytes: int
    whole_granule_bytes: int
    headroom_bytes: int
    max_split_bytes: int
    device_said: str
    pools: tuple[OomHolder, ...]
    streams: tuple[OomHolder, ...]
    tags: tuple[OomHolder, ...]
    waits: tuple[OomWait, ...]
    tried: tuple[OomStep, ...]
    text: str


def _words(bits: int, names: dict[int, str]) -> frozenset[str]:
    return frozenset(name for bit, name in names.items() if bits & bit)


def _said(chars: bytes) -> str:
    return chars.decode(errors="replace")


def told(lib: Any, raw: _abi.OomReport) -> OomReport:
    """The report of that struct."""
    text = ctypes.create_string_buffer(16384)
    lib.millpond_oom_report_text(ctypes.byref(raw), text, len(text), None)  # fails for nothing that is a report

    def holders(all_: Any, count: int) -> tuple[OomHolder, ...]:
        return tuple(
            OomHolder(_said(h.label), h.live_bytes, h.block_count, h.waiting_bytes, h.free_bytes) for h in all_[:count]
        )

    numbers = {f.name: getattr(raw, f.name) for f in fields(OomReport) if f.name.endswith("_bytes")}
    return OomReport(
        reason=_abi.OOM_REASONS.get(raw.reason, str(raw.reason)),
        flags=_words(raw.flags, _abi.OOM_FLAGS),
        missing=_words(raw.missing, _abi.OOM_MISSING),
        pool=_said(raw.pool_label),
        stream=(raw.stream or 0) if raw.flags & _abi.OOM_HAS_STREAM else None,
        waiting_stream_count=raw.waiting_stream_count,
        device_said=_said(raw.device_said),
        pools=holders(raw.pools, raw.pool_count),
        streams=holders(raw.streams, raw.stream_count),
        tags=holders(raw.tags, raw.tag_count),
        waits=tuple(
            OomWait(_abi.OOM_WAITS.get(w.waits_for, str(w.waits_for)), w.stream or 0, w.bytes, w.block_count)
            for w in raw.waits[: raw.wait_count]
        ),
        tried=tuple(
            OomStep(_abi.OOM_STEPS.get(t.step, str(t.step)), t.try_count, t.helped_count, t.bytes)
            for t in raw.tried[: raw.tried_count]
        ),
        text=_said(text.value),
        **numbers,
    )
