//! Parts of operations that take several calls: passing blocks to and from the model, and preparing the situations that
//! an operation needs.

use crate::api::*;
use crate::heap;
use crate::kinds::MAX_CHUNK;
use crate::world::{POOL_NAME, World};
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

pub type Done = Outcome<()>;

/// Sizes of requests [B].
pub const SMALL: usize = 700;
pub const LARGE: usize = 3 * MIB;
pub const HUGE: usize = MAX_CHUNK + 2 * MIB;
/// With this nothing is left, but for what waits.
pub const MOST: usize = 16 * MIB;
pub const TOO_MUCH: usize = 64 * MIB;

pub fn nothing(_: &mut World) -> Done {
    Ok(())
}

// ---- memory ----------------------------------------------------------------------------------------------------

pub fn alloc(w: &mut World, bytes: usize) -> Done {
    let answer = w.d.alloc(bytes);
    w.took("new", bytes, w.a, answer)
}

pub fn alloc_on(w: &mut World, pool: Pool, bytes: usize, stream: Stream) -> Done {
    let answer = pool.alloc(bytes, stream);
    w.took("new", bytes, stream, answer)
}

pub fn alloc_zeroed(w: &mut World) -> Done {
    let mut p = null_mut();
    let (pool, on) = (ptr(w.pool.0), ptr(w.a.0));
    // A device that refuses the fill and the free gets the block back by a later call.
    w.frees_later = true;
    let answer = outcome(unsafe { millpond_pool_alloc_zeroed(pool, LARGE, on, &mut p) });
    w.took("new", LARGE, w.a, answer.map(|()| p.expose_provenance()))
}

pub fn alloc_aligned(w: &mut World, bytes: usize) -> Done {
    let mut p = null_mut();
    let (pool, on) = (ptr(w.pool.0), ptr(w.a.0));
    let answer = outcome(unsafe { millpond_pool_alloc_aligned(pool, bytes, 64 << 10, on, &mut p) });
    w.took("new", bytes, w.a, answer.map(|()| p.expose_provenance()))
}

pub fn alloc_batch(w: &mut World) -> Done {
    let sizes = [SMALL, LARGE, HUGE];
    // A device that refuses frees, too, gets back by a later call what the batch has taken.
    w.frees_later = true;
    let mut all = [null_mut(); 3];
    let (pool, on) = (ptr(w.pool.0), ptr(w.a.0));
    outcome(unsafe { millpond_pool_alloc_batch(pool, sizes.as_ptr(), 3, on, all.as_mut_ptr()) })?;
    all.into_iter().zip(sizes).try_for_each(|(p, bytes)| w.took("new", bytes, w.a, Ok(p.expose_provenance())))
}

/// Memory of the program.
static OWN: [u8; 5000] = [1; 5000];

pub fn host_register(w: &mut World) -> Done {
    outcome(unsafe { millpond_host_register(ptr(w.d.0), OWN.as_ptr().cast_mut().cast(), OWN.len()) })
}

pub fn host_unregister(w: &mut World) -> Done {
    outcome(unsafe { millpond_host_unregister(ptr(w.d.0), OWN.as_ptr().cast_mut().cast()) })
}

/// A request on a stream that has been made for it.
pub fn alloc_on_new_stream(w: &mut World, bytes: usize) -> Done {
    let s = *w.streams.last().unwrap_or(&NULL);
    alloc_on(w, w.pool, bytes, s)
}

pub fn new_stream(w: &mut World) -> Done {
    let s = w.d.try_stream()?;
    w.streams.push(s);
    Ok(())
}

/// Takes what is left, so that requests have to look everywhere.
pub fn fill_up(w: &mut World) -> Done {
    for bytes in [8 * MIB, 2 * MIB] {
        while let Ok(p) = w.pool.alloc(bytes, w.b) {
            w.blocks.push(Block0::anonymous(p, bytes));
            if w.d.stats().reserved_bytes.current + (4 * MIB) as u64 > crate::kinds::CAPACITY as u64 {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Memory in pieces: every second one is free.
pub fn scatter(w: &mut World) -> Done {
    let mut all = Vec::new();
    while let Ok(p) = w.pool.alloc(2 * MIB, w.a) {
        all.push(p);
        if all.len() == 10 {
            break;
        }
    }
    w.d.set_limit(w.d.stats().reserved_bytes.current as usize)?;
    for (i, p) in all.into_iter().enumerate() {
        if i % 2 == 0 {
            w.pool.free(p, w.a)?;
        } else {
            w.blocks.push(Block0::anonymous(p, 2 * MIB));
        }
    }
    Ok(())
}

pub fn limit_to_what_is(w: &mut World) -> Done {
    w.d.set_limit(w.d.stats().reserved_bytes.current as usize)
}

/// Makes blocks that nobody looks into.
pub struct Block0;

impl Block0 {
    pub fn anonymous(at: usize, bytes: usize) -> crate::world::Block {
        crate::world::Block { name: "filling", at, bytes, tag: None, fill_on: None }
    }
}

pub fn free_it(w: &mut World, name: &'static str) -> Done {
    let answer = free(w.at(name));
    w.freed(name, answer)
}

pub fn free_on(w: &mut World, name: &'static str, stream: Stream) -> Done {
    let answer = w.pool.free(w.at(name), stream);
    w.freed(name, answer)
}

pub fn free_with_size(w: &mut World, name: &'static str) -> Done {
    let answer = free_sized(w.at(name), w.block(name).bytes);
    w.freed(name, answer)
}

pub fn pool_of(w: &mut World) -> Outcome<Pool> {
    let options = millpond_pool_options {
        struct_size: size_of::<millpond_pool_options>(),
        limit_bytes: 0,
        name: null(),
        flags: 0,
    };
    let mut p = null_mut();
    outcome(unsafe { millpond_pool_create(ptr(w.d.0), &options, &mut p) })?;
    let pool = Pool(p.expose_provenance());
    w.pools.push(pool);
    Ok(pool)
}

/// A pool with nothing in it but what is unused.
pub fn used_pool(w: &mut World) -> Done {
    let pool = pool_of(w)?;
    for s in [w.a, w.b] {
        let [p, q] = [pool.alloc(LARGE, s)?, pool.alloc(SMALL, s)?];
        record_stream(p, w.b)?;
        pool.free(p, s)?;
        pool.free(q, s)?;
    }
    Ok(())
}

pub fn last_pool(w: &World) -> Pool {
    *w.pools.last().unwrap()
}

pub fn destroy_last_pool(w: &mut World) -> Done {
    let pool = last_pool(w);
    let answer = pool.destroy();
    w.ended_pool(pool, answer)
}

pub fn release_own_pool(w: &mut World) -> Done {
    let answer = w.own.release();
    w.ended_pool(w.own, answer)
}

pub fn release_last_pool(w: &mut World) -> Done {
    let pool = last_pool(w);
    let answer = pool.release();
    w.ended_pool(pool, answer)
}

pub fn in_scope(w: &mut World) -> Done {
    outcome(unsafe { millpond_scope_begin(ptr(w.own.0)) })?;
    let answer = alloc(w, LARGE);
    outcome(unsafe { millpond_scope_end(ptr(w.own.0)) })?;
    answer
}

pub fn with_oom_callback(w: &mut World) -> Done {
    unsafe extern "C-unwind" fn empty(data: *mut c_void, _: u64) -> bool {
        unsafe { millpond_device_empty_cache(data.cast()) == C_Status::SUCCESS }
    }
    let mut id = 0;
    let added = unsafe { millpond_device_add_oom_callback(ptr(w.d.0), Some(empty), ptr(w.d.0), &mut id) };
    outcome(added)?;
    let answer = alloc(w, TOO_MUCH);
    outcome(unsafe { millpond_device_remove_oom_callback(ptr(w.d.0), id) })?;
    answer
}

// ---- streams, events -------------------------------------------------------------------------------------------

pub fn stream_create(w: &mut World) -> Done {
    let s = w.d.try_stream()?;
    assert_ne!(s, NULL, "success without a stream");
    w.streams.push(s);
    Ok(())
}

pub fn stream_destroy(w: &mut World, stream: Stream) -> Done {
    let answer = w.d.end_stream(stream);
    w.ended_stream(stream, answer)
}

pub fn stream_forget(w: &mut World, stream: Stream) -> Done {
    outcome(unsafe { millpond_stream_forget(ptr(w.d.0), ptr(stream.0)) })
}

pub fn stream_query(w: &mut World) -> Done {
    let mut done = false;
    outcome(unsafe { millpond_stream_query(ptr(w.d.0), ptr(w.b.0), &mut done) })
}

pub fn stream_callback(w: &mut World) -> Done {
    unsafe extern "C-unwind" fn nothing(_: *mut c_void, _: C_Status) {}
    outcome(unsafe { millpond_stream_add_callback(ptr(w.d.0), ptr(w.a.0), Some(nothing), null_mut()) })
}

pub fn event_create(w: &mut World) -> Done {
    let mut e: C_Event = null_mut();
    outcome(unsafe { millpond_event_create(ptr(w.d.0), &mut e) })?;
    assert!(!e.is_null(), "success without an event");
    w.events.push(Event(e.expose_provenance()));
    Ok(())
}

/// The event ends, and blocks wait for it.
pub fn event_destroy(w: &mut World) -> Done {
    let (d, e) = (w.d, w.e);
    d.end_event(e)?;
    w.events.retain(|x| *x != e);
    Ok(())
}

pub fn end_at_event(w: &mut World) -> Done {
    w.d.event_record(w.b, w.e)?;
    record_end_at(w.at("used"), w.b, w.e)
}

pub fn free_that_waits_for_event(w: &mut World) -> Done {
    end_at_event(w)?;
    free_on(w, "used", w.a)
}

// ---- copies ----------------------------------------------------------------------------------------------------

pub fn copy(w: &mut World, kind: u32, stream: Option<Stream>, bytes: usize) -> Done {
    w.wild("large");
    let (d, at) = (ptr(w.d.0), w.at("large"));
    let host = w.scratch.as_mut_ptr().cast::<c_void>();
    let (to, from): (*mut c_void, *const c_void) = match kind {
        MILLPOND_COPY_H2D => (ptr(at), host),
        MILLPOND_COPY_D2H => (host, ptr(at)),
        _ => (ptr(at), ptr(at + MIB)),
    };
    outcome(match stream {
        None => unsafe { millpond_copy(d, kind, to, from, bytes) },
        Some(s) => unsafe { millpond_copy_async(d, ptr(s.0), kind, to, from, bytes) },
    })
}

/// A copy from pinned memory, which is freed at once.
pub fn copy_pinned(w: &mut World) -> Done {
    w.wild("large");
    let h = w.host_alloc(5000)?;
    let to = ptr(w.at("large"));
    let copied = outcome(unsafe {
        millpond_copy_async(ptr(w.d.0), ptr(w.a.0), MILLPOND_COPY_H2D, to, ptr::<c_void>(h), 5000)
    });
    let freed = outcome(unsafe { millpond_host_free(ptr(w.d.0), ptr(h)) });
    if freed.is_err() {
        w.host.push((h, None));
    }
    copied.and(freed)
}

pub fn other_block(w: &mut World) -> Done {
    let p = w.other_device()?.alloc(MIB)?;
    w.others.push(p);
    Ok(())
}

pub fn copy_peer(w: &mut World, stream: Option<Stream>) -> Done {
    let (to, from) = (w.other_device()?, ptr::<c_void>(w.at("large")));
    let (d, p) = (ptr(w.d.0), w.others[0]);
    outcome(match stream {
        None => unsafe { millpond_copy_peer(ptr(to.0), ptr(p), d, from, MIB) },
        Some(s) => unsafe { millpond_copy_peer_async(ptr(to.0), ptr(p), d, ptr(s.0), from, MIB) },
    })
}

pub fn fill(w: &mut World, stream: Option<Stream>) -> Done {
    w.wild("large");
    let (d, at) = (ptr(w.d.0), ptr(w.at("large")));
    outcome(match stream {
        None => unsafe { millpond_memset(d, at, 3, MIB) },
        Some(s) => unsafe { millpond_memset_async(d, ptr(s.0), at, 3, MIB) },
    })
}

pub fn enable_peer(w: &mut World) -> Done {
    let other = w.other_device()?;
    outcome(unsafe { millpond_device_enable_peer_access(ptr(w.d.0), ptr(other.0)) })
}

pub fn can_peer(w: &mut World) -> Done {
    let other = w.other_device()?;
    let mut can = false;
    outcome(unsafe { millpond_device_can_access_peer(ptr(w.d.0), ptr(other.0), &mut can) })
}

// ---- captures, layouts, sleep ----------------------------------------------------------------------------------

pub fn capture_begin(w: &mut World) -> Done {
    let c = w.own.capture(w.a)?;
    w.captures.push(c);
    Ok(())
}

/// A capture that has taken memory, and freed some.
pub fn captured(w: &mut World) -> Done {
    capture_begin(w)?;
    let p = w.pool.alloc(LARGE, w.a)?;
    w.pool.free(p, w.a)
}

pub fn captured_and_ended(w: &mut World) -> Done {
    captured(w)?;
    w.captures[0].end()
}

pub fn capture_end(w: &mut World) -> Done {
    w.captures[0].end()
}

pub fn capture_release(w: &mut World) -> Done {
    w.captures[0].release()?;
    w.captures.clear();
    Ok(())
}

/// A checkpoint; since then a block has gone and others have come.
pub fn changed_since(w: &mut World) -> Done {
    checkpoint(w)?;
    free_it(w, "own")?;
    for (name, bytes) in [("since", SMALL), ("since too", 300_000)] {
        let answer = w.own.alloc(bytes, w.a);
        w.took(name, bytes, w.a, answer)?;
        record_stream(w.at(name), w.b)?;
    }
    Ok(())
}

pub fn checkpoint(w: &mut World) -> Done {
    let mut c = null_mut();
    outcome(unsafe { millpond_pool_checkpoint(ptr(w.own.0), &mut c) })?;
    w.checkpoints.push(Checkpoint(c.expose_provenance()));
    Ok(())
}

pub fn restore(w: &mut World) -> Done {
    type Notes = Vec<(usize, usize, bool)>;
    unsafe extern "C-unwind" fn note(data: *mut c_void, at: *mut c_void, bytes: usize, live: bool) {
        unsafe { &mut *data.cast::<Notes>() }.push((at.expose_provenance(), bytes, live));
    }
    let mut notes = heap::own(|| Notes::with_capacity(64));
    let data = (&raw mut notes).cast();
    let to = ptr(w.checkpoints[0].0);
    outcome(unsafe { millpond_pool_restore(ptr(w.own.0), to, Some(note), data) })?;
    for (at, bytes, live) in notes {
        if live {
            w.blocks.push(Block0::anonymous(at, bytes));
        } else {
            w.blocks.retain(|b| b.at != at);
        }
    }
    Ok(())
}

pub fn sleep(w: &mut World, keep: bool) -> Done {
    let answer = w.own.sleep(keep);
    note_sleep(w, keep, answer)
}

pub fn sleep_by_name(w: &mut World, keep: bool) -> Done {
    let flags = if keep { MILLPOND_SLEEP_KEEP } else { 0 };
    let answer = outcome(unsafe { millpond_device_sleep(ptr(w.d.0), POOL_NAME.as_ptr(), flags) });
    note_sleep(w, keep, answer)
}

fn note_sleep(w: &mut World, keep: bool, answer: Done) -> Done {
    // After an error it may sleep in part.
    if answer.is_ok() || w.d.stats().sleeping_bytes.current != 0 {
        w.asleep.push(w.own);
        if !keep {
            w.wild("own");
        }
    }
    answer
}

pub fn wake(w: &mut World) -> Done {
    w.own.wake()?;
    w.asleep.clear();
    Ok(())
}

pub fn wake_by_name(w: &mut World) -> Done {
    outcome(unsafe { millpond_device_wake(ptr(w.d.0), POOL_NAME.as_ptr()) })?;
    w.asleep.clear();
    Ok(())
}

// ---- sharing ---------------------------------------------------------------------------------------------------

pub fn export(w: &mut World) -> Done {
    let p = ptr::<c_void>(w.at("large"));
    let (mut bytes, mut fds) = (0, 0);
    outcome(unsafe { millpond_export_get_size(p, &mut bytes, &mut fds) })?;
    let (mut info, mut files) = heap::own(|| (vec![0_u8; bytes], vec![-1; fds]));
    let data = info.as_mut_ptr().cast();
    outcome(unsafe { millpond_export(p, data, bytes, files.as_mut_ptr(), fds) })?;
    w.exported = (info, files);
    Ok(())
}

pub fn import(w: &mut World) -> Done {
    let (info, files) = &w.exported;
    let mut p = null_mut();
    let data = info.as_ptr().cast();
    let (bytes, fds) = (info.len(), files.len());
    let done = outcome(unsafe { millpond_import(ptr(w.d.0), data, bytes, files.as_ptr(), fds, &mut p) });
    // Segments of "cuda" are opened in other processes only.
    done.map_err(|e| match e.message.contains("in another process than its own only") {
        true => Failed { code: MILLPOND_E_UNSUPPORTED, ..e },
        false => e,
    })?;
    assert!(!p.is_null(), "success without an address");
    w.imports.push(p.expose_provenance());
    Ok(())
}

pub fn exported_and_imported(w: &mut World) -> Done {
    export(w)?;
    import(w)
}

pub fn import_close(w: &mut World) -> Done {
    outcome(unsafe { millpond_import_close(ptr(w.imports[0])) })?;
    w.imports.clear();
    Ok(())
}

/// Frees a block that others still use.
pub fn exported_only(w: &mut World) -> Done {
    export(w)
}

pub fn segment_callback(w: &mut World) -> Done {
    unsafe extern "C-unwind" fn told(_: *mut c_void, _: u32, _: *mut c_void, _: usize) {}
    let mut id = 0;
    let d = ptr(w.d.0);
    outcome(unsafe { millpond_device_add_segment_callback(d, Some(told), null_mut(), &mut id) })?;
    outcome(unsafe { millpond_device_remove_segment_callback(d, id) })
}

pub fn tensor(w: &mut World) -> Done {
    let mut t = null_mut();
    outcome(unsafe { millpond_dlpack_export(ptr(w.at("used")), null(), &mut t) })?;
    // The deleter cannot say that it has failed: the block goes by a later call on the device.
    w.frees_later = true;
    let gone = outcome(unsafe { millpond_dlpack_destroy(t) });
    w.blocks.retain(|b| b.name != "used");
    gone
}

// ---- host and unified memory -----------------------------------------------------------------------------------

pub fn host_alloc(w: &mut World, bytes: usize) -> Done {
    let h = w.host_alloc(bytes)?;
    poke(h, 5, bytes);
    w.host.push((h, Some(5)));
    Ok(())
}

pub fn host_free(w: &mut World, nth: usize) -> Done {
    outcome(unsafe { millpond_host_free(ptr(w.d.0), ptr(w.host[nth].0)) })?;
    w.host.remove(nth);
    Ok(())
}

pub fn host_record(w: &mut World) -> Done {
    let (d, h) = (ptr(w.d.0), ptr::<c_void>(w.host[1].0));
    outcome(unsafe { millpond_host_record_stream(d, h, ptr(w.b.0)) })
}

pub fn host_used(w: &mut World) -> Done {
    host_record(w)
}

pub fn empty_host_cache(w: &mut World) -> Done {
    outcome(unsafe { millpond_device_empty_host_cache(ptr(w.d.0)) })
}

pub fn unified_alloc(w: &mut World) -> Done {
    let mut p = null_mut();
    outcome(unsafe { millpond_unified_alloc(ptr(w.d.0), 5000, &mut p) })?;
    assert!(!p.is_null(), "success without an address");
    w.unified.push(p.expose_provenance());
    Ok(())
}

pub fn unified_free(w: &mut World) -> Done {
    outcome(unsafe { millpond_unified_free(ptr(w.d.0), ptr(w.unified[0])) })?;
    w.unified.clear();
    Ok(())
}

pub fn unified_prefetch(w: &mut World) -> Done {
    let (d, p) = (ptr(w.d.0), ptr(w.unified[0]));
    outcome(unsafe { millpond_unified_prefetch(d, null_mut(), p, 5000, MILLPOND_PLACE_DEVICE) })
}

pub fn unified_advise(w: &mut World) -> Done {
    let (d, p) = (ptr(w.d.0), ptr(w.unified[0]));
    let (advice, place) = (MILLPOND_ADVICE_PREFERRED, MILLPOND_PLACE_DEVICE);
    outcome(unsafe { millpond_unified_advise(d, p, 5000, advice, place) })
}
