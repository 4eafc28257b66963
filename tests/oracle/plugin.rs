//! The oracle's device as a plugin: the table of a custom runtime over the world, in several variants. Its memory is
//! ordinary memory; memory that is given back is checked against the work that is still queued.

use super::time::{self, enter};
use super::world::{Lie, Work, world};
use millpond::Code;
use millpond::capi::*;
use millpond::paddle::abi::*;
use std::alloc::Layout;
use std::ffi::c_void;
use std::sync::Mutex;

/// What a plugin has, and what it tells of its sizes.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub name: &'static std::ffi::CStr,
    pub capacity: usize,
    pub min_chunk: usize,
    pub max_chunk: usize,
    pub init: usize,
    pub realloc: usize,
    pub padding: usize,
    pub events: bool,
    pub synchronize: bool,
    pub callbacks: bool,
    pub query: bool,
}

/// Everything is there; sizes as the host device has them.
pub const FULL: Manner = Manner {
    name: c"oracle",
    capacity: 48 << 20,
    min_chunk: 512,
    max_chunk: 0,
    init: 8 << 20,
    realloc: 8 << 20,
    padding: 0,
    events: true,
    synchronize: true,
    callbacks: true,
    query: true,
};

static NOW: Mutex<Manner> = Mutex::new(FULL);

fn now() -> Manner {
    *NOW.lock().unwrap()
}

/// Registers it.
pub fn register(manner: Manner) {
    *NOW.lock().unwrap() = manner;
    let status = unsafe { millpond_device_type_register(Some(init), std::ptr::null_mut(), 0) };
    assert_eq!(status, C_Status::SUCCESS);
}

const OK: C_Status = C_Status::SUCCESS;

fn say(result: Result<(), Code>) -> C_Status {
    match result {
        Ok(()) => OK,
        Err(Code::OutOfMemory) => C_Status::FAILED,
        Err(_) => C_Status::ERROR,
    }
}

fn line(stream: C_Stream) -> Result<usize, Code> {
    let found = world().line_of(stream as usize as u64);
    found.ok_or_else(|| {
        world().violate("the plugin is asked about a stream that has ended");
        Code::UnknownStream
    })
}

fn known(there: bool) -> Result<(), Code> {
    if there {
        return Ok(());
    }
    world().violate("the plugin is asked about a stream or an event that has ended");
    Err(Code::UnknownEvent)
}

macro_rules! calls {
    ($($name:ident ( $($arg:ident : $type:ty),* ) $call:literal $body:block)*) => {$(
        unsafe extern "C-unwind" fn $name(_: C_Device, $($arg: $type),*) -> C_Status {
            let body = || -> Result<(), Code> {
                enter($call)?;
                $body
            };
            say(body())
        }
    )*};
}

calls! {
    stream_create(out: *mut C_Stream) "stream_create" {
        let made = world().stream_create();
        unsafe { *out = made as usize as C_Stream };
        Ok(())
    }
    stream_destroy(s: C_Stream) "stream_destroy" {
        let there = world().stream_destroy(s as usize as u64);
        known(there)
    }
    stream_query(s: C_Stream) "stream_query" {
        let l = line(s)?;
        let w = world();
        if w.lines[l].done == w.lines[l].queued() { Ok(()) } else { Err(Code::Busy) }
    }
    stream_sync(s: C_Stream) "sync_stream" {
        let l = line(s)?;
        world().not_captured(l, "waited for");
        let count = world().lines[l].queued();
        time::run_to(l, count);
        Ok(())
    }
    stream_wait(s: C_Stream, e: C_Event) "wait" {
        let l = line(s)?;
        let there = world().wait(l, e as usize as u64);
        known(there)
    }
    device_sync() "sync" {
        time::run_all(true);
        Ok(())
    }
    event_create(out: *mut C_Event) "event_create" {
        let made = world().event_create();
        unsafe { *out = made as usize as C_Event };
        Ok(())
    }
    event_destroy(e: C_Event) "event_destroy" {
        let there = world().event_destroy(e as usize as u64);
        known(there)
    }
    event_record(s: C_Stream, e: C_Event) "record" {
        let l = line(s)?;
        let there = world().record(l, e as usize as u64);
        known(there)
    }
    event_query(e: C_Event) "query" {
        let over = time::ask(e as usize as u64);
        known(over.is_some())?;
        if over == Some(true) { Ok(()) } else { Err(Code::Busy) }
    }
    event_sync(e: C_Event) "sync_event" {
        let clock = world().events.get(&(e as usize as u64)).cloned();
        known(clock.is_some())?;
        if world().lie != Lie::NoSync {
            time::run_clock(&clock.unwrap());
        }
        Ok(())
    }
    take(out: *mut *mut c_void, bytes: usize) "alloc" {
        let m = now();
        if !bytes.is_multiple_of(m.min_chunk) {
            world().violate("the plugin is asked for a size that its min chunk does not divide");
        }
        if world().taken as usize + bytes > m.capacity {
            return Err(Code::OutOfMemory);
        }
        let memory = unsafe { std::alloc::alloc(layout(bytes)) };
        let mut w = world();
        w.taken += bytes as u64;
        w.segments.insert(memory as usize, bytes);
        unsafe { *out = memory.cast() };
        Ok(())
    }
    give(at: *mut c_void, bytes: usize) "free" {
        let mut w = world();
        if w.segments.remove(&(at as usize)) != Some(bytes) {
            w.violate("memory is given back that was not taken so");
            return Err(Code::InvalidArgument);
        }
        w.taken -= bytes as u64;
        w.check_addresses(at as usize, bytes, "given back to the device");
        if w.violation.is_none() {
            unsafe { std::alloc::dealloc(at.cast(), layout(bytes)) };
        }
        Ok(())
    }
    fill(at: *mut c_void, value: u8, bytes: usize) "copy" {
        unsafe { at.cast::<u8>().write_bytes(value, bytes) };
        Ok(())
    }
    copy(to: *mut c_void, from: *const c_void, bytes: usize) "copy" {
        unsafe { to.cast::<u8>().copy_from(from.cast(), bytes) };
        Ok(())
    }
    copy_async(s: C_Stream, to: *mut c_void, from: *const c_void, bytes: usize) "copy" {
        let l = line(s)?;
        world().queue(l, Work::Move { to: to as usize, from: from as usize, bytes });
        Ok(())
    }
    stats(total: *mut usize, free: *mut usize) "info" {
        let m = now();
        let taken = world().taken as usize;
        unsafe { (*total, *free) = (m.capacity, m.capacity - taken) };
        Ok(())
    }
    min_chunk(out: *mut usize) "size" {
        unsafe { *out = now().min_chunk };
        Ok(())
    }
    max_chunk(out: *mut usize) "size" {
        unsafe { *out = now().max_chunk };
        Ok(())
    }
    init_size(out: *mut usize) "size" {
        unsafe { *out = now().init };
        Ok(())
    }
    realloc_size(out: *mut usize) "size" {
        unsafe { *out = now().realloc };
        Ok(())
    }
    padding(out: *mut usize) "size" {
        unsafe { *out = now().padding };
        Ok(())
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 4096).unwrap()
}

unsafe extern "C-unwind" fn callback(
    _: C_Device,
    stream: C_Stream,
    callback: C_Callback,
    data: *mut c_void,
) -> C_Status {
    let body = || -> Result<(), Code> {
        enter("callback")?;
        let l = line(stream)?;
        let (callback, data, stream) = (callback.unwrap(), data as usize, stream as usize);
        let call = move || {
            let (mut device, mut status) = (C_Device_st { id: 0 }, OK);
            unsafe { callback(&mut device, stream as C_Stream, data as *mut c_void, &mut status) };
        };
        world().queue(l, Work::Call(Box::new(call)));
        Ok(())
    };
    say(body())
}

unsafe extern "C-unwind" fn count(out: *mut usize) -> C_Status {
    unsafe { *out = 1 };
    OK
}

unsafe extern "C-unwind" fn init(params: *mut CustomRuntimeParams) {
    let params = unsafe { &mut *params };
    let table = unsafe { &mut *params.interface };
    let m = now();
    params.version = CustomRuntimeVersion::CURRENT;
    params.device_type = m.name.as_ptr().cast_mut();
    table.create_stream = Some(stream_create);
    table.destroy_stream = Some(stream_destroy);
    table.synchronize_stream = Some(stream_sync);
    table.device_memory_allocate = Some(take);
    table.device_memory_deallocate = Some(give);
    table.device_memory_set = Some(fill);
    table.memory_copy_h2d = Some(copy);
    table.memory_copy_d2h = Some(copy);
    table.memory_copy_d2d = Some(copy);
    table.async_memory_copy_d2d = Some(copy_async);
    table.get_device_count = Some(count);
    table.device_memory_stats = Some(stats);
    table.device_min_chunk_size = Some(min_chunk);
    table.device_max_chunk_size = Some(max_chunk);
    table.device_init_alloc_size = Some(init_size);
    table.device_realloc_size = Some(realloc_size);
    table.device_extra_padding_size = Some(padding);
    if m.synchronize {
        table.synchronize_device = Some(device_sync);
    }
    if m.events {
        table.create_event = Some(event_create);
        table.destroy_event = Some(event_destroy);
        table.record_event = Some(event_record);
        table.synchronize_event = Some(event_sync);
        table.stream_wait_event = Some(stream_wait);
        if m.query {
            table.query_event = Some(event_query);
        }
    }
    if m.query {
        table.query_stream = Some(stream_query);
    }
    if m.callbacks {
        table.stream_add_callback = Some(callback);
    }
}
