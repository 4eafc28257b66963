//! Parts of operations that ask something, or set something, and leave the memory alone.

use crate::api::*;
use crate::calls::{Done, SMALL, alloc};
use crate::heap;
use crate::world::World;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

pub fn info(w: &mut World) -> Done {
    let mut i: millpond_device_info = unsafe { std::mem::zeroed() };
    i.struct_size = size_of::<millpond_device_info>();
    outcome(unsafe { millpond_device_get_info(ptr(w.d.0), &mut i) })
}

pub fn stats(w: &mut World) -> Done {
    let mut s: millpond_stats = unsafe { std::mem::zeroed() };
    s.struct_size = size_of::<millpond_stats>();
    outcome(unsafe { millpond_device_get_stats(ptr(w.d.0), &mut s) })?;
    for pool in [w.pool, w.own] {
        outcome(unsafe { millpond_pool_get_stats(ptr(pool.0), &mut s) })?;
    }
    outcome(unsafe { millpond_device_reset_peaks(ptr(w.d.0)) })
}

pub fn memory_stats(w: &mut World) -> Done {
    let mut s: Box<millpond_memory_stats> = heap::own(|| Box::new(unsafe { std::mem::zeroed() }));
    s.struct_size = size_of::<millpond_memory_stats>();
    let answer = outcome(unsafe { millpond_device_get_memory_stats(ptr(w.d.0), &mut *s) });
    let other = outcome(unsafe { millpond_pool_get_memory_stats(ptr(w.own.0), &mut *s) });
    heap::own(|| drop(s));
    answer.and(other)
}

pub fn walk(w: &mut World) -> Done {
    unsafe extern "C-unwind" fn block(data: *mut c_void, _: *const millpond_block_record) -> bool {
        unsafe { *data.cast::<usize>() += 1 };
        true
    }
    unsafe extern "C-unwind" fn segment(data: *mut c_void, _: *const millpond_segment_record) -> bool {
        unsafe { *data.cast::<usize>() += 1 };
        true
    }
    let mut count = 0_usize;
    let data = (&raw mut count).cast::<c_void>();
    outcome(unsafe { millpond_device_walk_blocks(ptr(w.d.0), null_mut(), 0, Some(block), data) })?;
    outcome(unsafe { millpond_device_walk_segments(ptr(w.d.0), null_mut(), Some(segment), data) })?;
    assert!(count > 0);
    Ok(())
}

pub fn snapshot(w: &mut World) -> Done {
    unsafe extern "C-unwind" fn hear(_: *mut c_void, _: *const c_void, _: usize) -> bool {
        true
    }
    outcome(unsafe {
        millpond_device_send_snapshot(ptr(w.d.0), MILLPOND_SNAPSHOT_TORCH_PICKLE, Some(hear), null_mut())
    })
}

/// A block with a new tag, within another one.
pub fn tagged(w: &mut World) -> Done {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = heap::own(|| std::ffi::CString::new(format!("tag {number}")).unwrap());
    let pushed = outcome(unsafe { millpond_tag_push(name.as_ptr()) });
    heap::own(|| drop(name));
    pushed?;
    let answer = alloc(w, SMALL);
    outcome(millpond_tag_pop())?;
    answer
}

/// Many blocks that wait for B for a moment.
pub fn many_wait(w: &mut World) -> Done {
    if w.b != NULL {
        w.d.gate(w.b).open_after(std::time::Duration::from_millis(5));
    }
    for _ in 0..300 {
        let p = w.pool.alloc(SMALL, w.a)?;
        record_stream(p, w.b)?;
        w.pool.free(p, w.a)?;
    }
    Ok(())
}

/// A history that lasts until the device ends.
pub fn history(w: &mut World) -> Done {
    outcome(unsafe { millpond_device_history_start(ptr(w.d.0), null()) })
}

pub fn set_options(w: &mut World) -> Done {
    let text = c"garbage_collection_threshold:0.5";
    outcome(unsafe { millpond_device_set_options(ptr(w.d.0), text.as_ptr()) })
}

pub fn host_stats(w: &mut World) -> Done {
    let mut s: millpond_host_stats = unsafe { std::mem::zeroed() };
    s.struct_size = size_of::<millpond_host_stats>();
    outcome(unsafe { millpond_device_get_host_stats(ptr(w.d.0), &mut s) })
}

pub fn poll_exports(w: &mut World) -> Done {
    let (mut blocks, mut bytes) = (0, 0);
    outcome(unsafe { millpond_device_poll_exports(ptr(w.d.0), &mut blocks, &mut bytes) })
}

pub fn open_other(w: &mut World) -> Done {
    let name = w.name_of_type();
    let mut d = null_mut();
    outcome(unsafe { millpond_device_get(name.as_ptr(), 1, &mut d) })
}

pub fn unregister(w: &mut World) -> Done {
    let name = w.name_of_type();
    let done = outcome(unsafe { millpond_device_type_unregister(name.as_ptr()) });
    match done {
        Err(e) if e.code == MILLPOND_E_NOT_PERMITTED => Err(Failed { code: MILLPOND_E_UNSUPPORTED, ..e }),
        done => done,
    }
}

pub fn finalize(w: &mut World) -> Done {
    w.has_ended = true;
    outcome(millpond_finalize())
}
