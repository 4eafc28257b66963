//! The table of operations: the preparation, in which nothing fails, and the operation itself. An operation that a
//! device does not support (UNSUPPORTED when nothing fails) is skipped there.

use crate::api::*;
use crate::calls::*;
use crate::questions::*;
use crate::world::World;
use millpond::capi::*;

pub struct Operation {
    pub name: &'static str,
    pub prepare: fn(&mut World) -> Outcome<()>,
    pub act: fn(&mut World) -> Outcome<()>,
    /// What it may answer when nothing fails, beside success.
    pub code: u32,
}

const OOM: u32 = MILLPOND_E_OUT_OF_MEMORY;
const BUSY: u32 = MILLPOND_E_BUSY;

macro_rules! operations {
    ($($name:literal: $prepare:expr, $act:expr $(, or $code:expr)?;)*) => {
        pub const OPERATIONS: &[Operation] = &[
            $(Operation { name: $name, prepare: $prepare, act: $act, code: 0 $(+ $code)? }),*
        ];
    };
}

operations! {
    "alloc small": nothing, |w| alloc(w, SMALL);
    "alloc large": nothing, |w| alloc(w, LARGE);
    "alloc huge": nothing, |w| alloc(w, HUGE);
    "alloc most": nothing, |w| alloc(w, MOST), or OOM;
    "alloc too much": nothing, |w| alloc(w, TOO_MUCH), or OOM;
    "alloc when all is taken": fill_up, |w| alloc(w, LARGE), or OOM;
    "alloc in pieces": scatter, |w| alloc(w, 3 * LARGE), or OOM;
    "alloc at the limit": limit_to_what_is, |w| alloc(w, HUGE), or OOM;
    "alloc in a scope": nothing, in_scope;
    "alloc with a callback": nothing, with_oom_callback, or OOM;
    "pool_alloc small": nothing, |w| alloc_on(w, w.pool, SMALL, w.a);
    "pool_alloc large": nothing, |w| alloc_on(w, w.pool, LARGE, w.a);
    "pool_alloc huge": nothing, |w| alloc_on(w, w.pool, HUGE, w.a);
    "pool_alloc most": nothing, |w| alloc_on(w, w.pool, MOST, w.a), or OOM;
    "pool_alloc too much": nothing, |w| alloc_on(w, w.pool, TOO_MUCH, w.a), or OOM;
    "pool_alloc own": nothing, |w| alloc_on(w, w.own, HUGE, w.b);
    "pool_alloc on a new stream": new_stream, |w| alloc_on_new_stream(w, LARGE);
    "pool_alloc when all is taken": fill_up, |w| alloc_on(w, w.pool, LARGE, w.a), or OOM;
    "pool_alloc of others' memory": fill_up, |w| { w.blocks.len(); alloc_on(w, w.own, 2 * LARGE, w.a) }, or OOM;
    "pool_alloc in pieces": scatter, |w| alloc_on(w, w.pool, 3 * LARGE, w.a), or OOM;
    "pool_alloc at the limit": limit_to_what_is, |w| alloc_on(w, w.pool, HUGE, w.a), or OOM;
    "free small": nothing, |w| free_it(w, "small");
    "free large": nothing, |w| free_it(w, "large");
    "free huge": nothing, |w| free_it(w, "huge");
    "free any": nothing, |w| free_it(w, "any");
    "free used": nothing, |w| free_it(w, "used");
    "free was used": nothing, |w| free_it(w, "was used");
    "free of an ended stream": nothing, |w| free_it(w, "of c");
    "free of an ended stream on another": nothing, |w| free_on(w, "of c", w.a);
    "free own": nothing, |w| free_it(w, "own");
    "free_sized": nothing, |w| free_with_size(w, "large");
    "pool_alloc_zeroed": nothing, alloc_zeroed;
    "pool_alloc_aligned": nothing, |w| alloc_aligned(w, LARGE);
    "pool_alloc_aligned huge": nothing, |w| alloc_aligned(w, HUGE);
    "pool_alloc_batch": nothing, alloc_batch;
    "pool_free its stream": nothing, |w| free_on(w, "large", w.a);
    "pool_free other stream": nothing, |w| free_on(w, "large", w.b);
    "pool_free huge on another stream": nothing, |w| free_on(w, "huge", w.b);
    "pool_free NULL": nothing, |w| free_on(w, "large", NULL);
    "pool_free any": nothing, |w| free_on(w, "any", w.b);
    "pool_free at an event": nothing, free_that_waits_for_event;
    "record_stream": nothing, |w| record_stream(w.at("large"), w.b);
    "record_stream any": nothing, |w| record_stream(w.at("any"), w.b);
    "record_end": nothing, |w| record_end(w.at("used"), w.b);
    "record_end again": nothing, |w| record_end(w.at("was used"), w.b);
    "record_end_at": nothing, end_at_event;
    "get_block": nothing, |w| block(w.at("large")).map(drop);
    "stream_create": nothing, stream_create;
    "stream_destroy a": nothing, |w| stream_destroy(w, w.a);
    "stream_destroy b": nothing, |w| stream_destroy(w, w.b);
    "stream_forget": nothing, |w| stream_forget(w, w.b);
    "stream_query": nothing, stream_query;
    "stream_synchronize": nothing, |w| w.d.stream_synchronize(w.b);
    "stream_wait_event": nothing, |w| w.d.stream_wait(w.b, w.e);
    "stream_add_callback": nothing, stream_callback;
    "event_create": nothing, event_create;
    "event_record": nothing, |w| w.d.event_record(w.b, w.e);
    "event_query": nothing, |w| w.d.event_query(w.e).map(drop);
    "event_synchronize": nothing, |w| w.d.event_synchronize(w.e);
    "event_destroy": nothing, event_destroy;
    "event_destroy held": free_that_waits_for_event, event_destroy;
    "copy h2d": nothing, |w| copy(w, MILLPOND_COPY_H2D, None, 5000);
    "copy d2h": nothing, |w| copy(w, MILLPOND_COPY_D2H, None, 5000);
    "copy d2d": nothing, |w| copy(w, MILLPOND_COPY_D2D, None, MIB);
    "copy_async h2d": nothing, |w| copy(w, MILLPOND_COPY_H2D, Some(w.a), 5000);
    "copy_async d2h": nothing, |w| copy(w, MILLPOND_COPY_D2H, Some(w.a), 5000);
    "copy_async d2d": nothing, |w| copy(w, MILLPOND_COPY_D2D, Some(w.a), MIB);
    "copy_async pinned": nothing, copy_pinned;
    "copy_peer": other_block, |w| copy_peer(w, None);
    "copy_peer_async": other_block, |w| copy_peer(w, Some(w.a));
    "memset": nothing, |w| fill(w, None);
    "memset_async": nothing, |w| fill(w, Some(w.a));
    "synchronize": nothing, |w| w.d.synchronize();
    "device_get_info": nothing, info;
    "device_get": nothing, open_other;
    "device_can_access_peer": nothing, can_peer;
    "device_enable_peer_access": other_block, enable_peer;
    "get_stats": nothing, stats;
    "get_memory_stats": nothing, memory_stats;
    "get_memory_stats with pools": used_pool, memory_stats;
    "walk": nothing, walk;
    "walk with many that wait": many_wait, walk;
    "snapshot": nothing, snapshot;
    "free one of many that wait": many_wait, |w| free_it(w, "used");
    "alloc where many wait": |w| { many_wait(w)?; fill_up(w) }, |w| alloc_on(w, w.pool, LARGE, w.a), or OOM;
    "stats where many wait": many_wait, stats;
    "tags": nothing, tagged;
    "history": nothing, history;
    "get_host_stats": nothing, host_stats;
    "poll_exports": nothing, poll_exports;
    "device_empty_cache": nothing, |w| w.d.empty_cache();
    "device_empty_cache with pools": used_pool, |w| w.d.empty_cache();
    "device_trim_to": nothing, |w| w.d.trim_to(4 * MIB);
    "device_trim_to with pools": used_pool, |w| w.d.trim_to(4 * MIB);
    "device_set_budget": used_pool, |w| w.d.set_budget(20 * MIB).map(drop);
    "device_set_limit": nothing, |w| w.d.set_limit(20 * MIB);
    "device_set_options": nothing, set_options;
    "pool_create": nothing, |w| pool_of(w).map(drop);
    "pool_destroy": used_pool, destroy_last_pool;
    "pool_release": used_pool, release_last_pool;
    "pool_release with blocks": nothing, release_own_pool;
    "pool_empty_cache": used_pool, |w| last_pool(w).empty_cache();
    "pool_trim_to": used_pool, |w| last_pool(w).trim_to(MIB);
    "trim_to in a capture": captured, |w| w.d.trim_to(MIB), or BUSY;
    "pool_set_limit": nothing, |w| w.own.set_limit(20 * MIB);
    "capture_begin": nothing, capture_begin;
    "alloc in a capture": captured, |w| alloc_on(w, w.pool, HUGE, w.a);
    "alloc beside a capture": captured, |w| alloc(w, LARGE);
    "free in a capture": captured, |w| free_on(w, "large", w.a);
    "free any in a capture": captured, |w| free_it(w, "any");
    "free used in a capture": captured, |w| free_it(w, "used");
    "empty_cache in a capture": captured, |w| w.d.empty_cache(), or BUSY;
    "capture_end": captured, capture_end;
    "capture_release": captured_and_ended, capture_release;
    "capture_release before the end": captured, capture_release;
    "checkpoint": nothing, checkpoint;
    "restore": changed_since, restore;
    "sleep": nothing, |w| sleep(w, false);
    "sleep, contents kept": nothing, |w| sleep(w, true);
    "device_sleep": nothing, |w| sleep_by_name(w, true);
    "wake": |w| sleep(w, false), wake;
    "wake, contents kept": |w| sleep(w, true), wake;
    "wake when all is taken": |w| { sleep(w, true)?; fill_up(w) }, wake, or OOM;
    "device_wake": |w| sleep(w, true), wake_by_name;
    "alloc while a pool sleeps": |w| sleep(w, true), |w| alloc(w, HUGE);
    "free while its pool sleeps": |w| sleep(w, true), |w| free_it(w, "own");
    "export": nothing, export;
    "import": export, import;
    "import_close": exported_and_imported, import_close;
    "free exported": exported_only, |w| free_it(w, "large");
    "segment callback": nothing, segment_callback;
    "dlpack": nothing, tensor;
    "host_alloc small": nothing, |w| host_alloc(w, 700);
    "host_alloc large": nothing, |w| host_alloc(w, 3 * MIB);
    "host_free small": nothing, |w| host_free(w, 0);
    "host_free large": nothing, |w| host_free(w, 1);
    "host_free used": host_used, |w| host_free(w, 1);
    "host_free back": |w| w.d.set_options("pinned_max_cached_size_mb:0"), |w| host_free(w, 1);
    "host_record_stream": nothing, host_record;
    "empty_host_cache": |w| { host_record(w)?; host_free(w, 1) }, empty_host_cache;
    "host_register": nothing, host_register;
    "host_unregister": host_register, host_unregister;
    "unified_alloc": nothing, unified_alloc;
    "unified_free": unified_alloc, unified_free;
    "unified_prefetch": unified_alloc, unified_prefetch;
    "unified_advise": unified_alloc, unified_advise;
    "device_type_unregister": nothing, unregister, or BUSY;
    "finalize": nothing, finalize;
}
