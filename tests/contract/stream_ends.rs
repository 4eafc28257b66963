//! A stream that was destroyed with work queued: that work still runs, and memory that it uses is nobody else's until
//! it has. Blocks without a stream may have been used by any stream, also by one that has ended meanwhile.

use crate::apart::*;
use crate::api::*;
use crate::{held, threads};
use millpond::capi::C_Status;
use millpond::paddle::abi::*;
use millpond::paddle::init_plugin;
use std::ffi::c_void;
use std::ptr::null_mut;

const BYTES: usize = 3 * MIB;

/// Work of a stream that will write `bytes` bytes at `p`, soon.
fn late_fill(d: Device, stream: Stream, p: usize, bytes: usize) -> Gate {
    let gate = d.gate(stream);
    d.fill(stream, p, 0xAA, bytes);
    gate.open_after(LATE);
    gate
}

/// The next block without a stream, which the host and every stream may use at once: no late work writes into it.
#[track_caller]
fn next_block_is_untouched(d: Device, gate: &Gate) {
    let q = d.alloc(BYTES).unwrap();
    poke(q, 0x11, BYTES);
    gate.open();
    d.synchronize().unwrap();
    assert_eq!(filled(q, BYTES), Some(0x11), "late work wrote into the next block");
    free(q).unwrap();
}

/// A block without a stream, filled by a stream that ends before it gets there.
fn late_writer(d: Device) {
    let a = d.stream();
    let p = d.alloc(BYTES).unwrap();
    let gate = late_fill(d, a, p, BYTES);
    d.end_stream(a).unwrap();
    free(p).unwrap();
    next_block_is_untouched(d, &gate);
}

/// Everything comes back once the work is over.
fn all_is_back(d: Device, capacity: usize) {
    d.synchronize().unwrap();
    let s = d.stats();
    assert_eq!((s.allocated_bytes.current, s.active_bytes.current, s.blocks.current), (0, 0, 0));
    assert_eq!(d.room_for(2 * MIB), capacity / (2 * MIB));
    d.empty_cache().unwrap();
    assert_eq!(d.stats().reserved_bytes.current, 0);
}

/// A block without a stream that a destroyed stream still writes is not given to the next request: the free waits for
/// streams that have ended, too.
#[test]
fn a_block_waits_for_a_stream_that_ended_before_its_free() {
    apart(|| {
        let d = host(64 * MIB, true);
        late_writer(d);
        all_is_back(d, 64 * MIB);
    });
}

/// The same where the device gives segments.
#[test]
fn a_block_in_a_segment_waits_for_a_stream_that_ended_before_its_free() {
    apart(|| {
        let d = host(64 * MIB, false);
        late_writer(d);
        // A segment of 3 MiB is no multiple of what is asked for next.
        d.synchronize().unwrap();
        d.empty_cache().unwrap();
        all_is_back(d, 64 * MIB);
    });
}

/// The same on the device of a custom-runtime plugin.
#[test]
fn a_block_of_a_plugin_waits_for_a_stream_that_ended_before_its_free() {
    apart(|| {
        let d = threads::plugin("threads");
        late_writer(d);
        d.synchronize().unwrap();
        d.empty_cache().unwrap(); // as in a segment
        all_is_back(d, 32 * MIB);
    });
}

/// The ended stream reads the block: the next owner must not write before it has.
#[test]
fn a_block_waits_for_an_ended_stream_that_reads_it() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (a, result) = (d.stream(), d.alloc(BYTES).unwrap());
        let p = d.alloc(BYTES).unwrap();
        poke(p, 0x77, BYTES);
        let gate = d.gate(a);
        d.copy(a, result, p, BYTES);
        gate.open_after(LATE);
        d.end_stream(a).unwrap();
        free(p).unwrap();

        let q = d.alloc(BYTES).unwrap();
        poke(q, 0x11, BYTES);
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(result, BYTES), Some(0x77), "the stream read the next owner's bytes");
    });
}

/// Of several streams that have ended the block waits for all, in whatever order they come to their end.
#[test]
fn a_block_waits_for_each_of_the_streams_that_have_ended() {
    apart(|| {
        let d = host(64 * MIB, true);
        let p = d.alloc(BYTES).unwrap();
        let streams: Vec<Stream> = (0..3).map(|_| d.stream()).collect();
        let gates: Vec<Gate> = streams.iter().map(|&s| d.gate(s)).collect();
        for (n, &s) in streams.iter().enumerate() {
            let part = BYTES / 3;
            d.fill(s, p + n * part, 0xA0 + n as u8, part);
        }
        for (n, gate) in gates.iter().enumerate() {
            gate.open_after(LATE * (1 + (n as u32 + 1) % 3));
        }
        streams.iter().for_each(|&s| d.end_stream(s).unwrap());
        free(p).unwrap();
        // Each request may get what no stream holds any more.
        for _ in 0..8 {
            let q = d.alloc(BYTES).unwrap();
            poke(q, 0x11, BYTES);
            std::thread::sleep(LATE / 2);
            assert_eq!(filled(q, BYTES), Some(0x11), "work of an ended stream wrote into the next block");
            free(q).unwrap();
        }
        gates.iter().for_each(Gate::open);
        all_is_back(d, 64 * MIB);
    });
}

/// A block that is freed in another thread than the one that has ended the stream.
#[test]
fn a_block_that_another_thread_frees_waits_for_the_ended_stream() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (a, p) = (d.stream(), d.alloc(BYTES).unwrap());
        let gate = late_fill(d, a, p, BYTES);
        std::thread::spawn(move || d.end_stream(a).unwrap()).join().unwrap();
        std::thread::spawn(move || free_sized(p, BYTES).unwrap()).join().unwrap();
        next_block_is_untouched(d, &gate);
    });
}

/// Memory of a block without a stream that goes to a heap of a stream, since the device is full: the taker waits for
/// the ended stream, on the device at least.
#[test]
fn what_an_ended_stream_still_uses_is_not_taken_by_another_stream() {
    apart(|| {
        let d = host(8 * MIB, true);
        let (a, b, pool) = (d.stream(), d.stream(), d.default_pool());
        let p = d.alloc(8 * MIB).unwrap();
        let gate = late_fill(d, a, p, 8 * MIB);
        d.end_stream(a).unwrap();
        free(p).unwrap();
        let q = pool.alloc(2 * MIB, b).unwrap();
        d.fill(b, q, 0x11, 2 * MIB);
        if !gate.is_open() {
            std::thread::sleep(LATE / 4); // the fill has run, if nothing holds it up
        }
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(q, 2 * MIB), Some(0x11), "work of the ended stream came after the taker's");
    });
}

/// A stream that could not be destroyed, since the device refused, is as it was: blocks that it uses wait for it.
#[test]
fn a_stream_whose_end_was_refused_is_still_waited_for() {
    apart(|| {
        let (d, control) = held::host(64 * MIB, true);
        let a = d.stream();
        control.fail("stream_destroy", 1, millpond::Code::Device);
        assert_eq!(code(d.end_stream(a)), millpond::capi::MILLPOND_E_DEVICE);

        let p = d.alloc(BYTES).unwrap();
        let gate = late_fill(d, a, p, BYTES); // it lives
        free(p).unwrap();
        next_block_is_untouched(d, &gate);
        d.end_stream(a).unwrap();
    });
}

/// The same with a block of the stream itself: what is free in its heap is given to nobody who does not wait for it.
#[test]
fn a_stream_whose_end_was_refused_keeps_its_order() {
    apart(|| {
        let (d, control) = held::host(64 * MIB, true);
        let (a, pool) = (d.stream(), d.default_pool());
        let p = pool.alloc(BYTES, a).unwrap();
        control.fail("stream_destroy", 1, millpond::Code::Device);
        assert_eq!(code(d.end_stream(a)), millpond::capi::MILLPOND_E_DEVICE);

        let gate = late_fill(d, a, p, BYTES);
        pool.free(p, a).unwrap(); // it lives: it can be named
        let c = d.stream();
        let q = pool.alloc(BYTES, c).unwrap();
        d.fill(c, q, 0x11, BYTES);
        std::thread::sleep(LATE / 4);
        gate.open();
        d.synchronize().unwrap();
        assert_eq!(filled(q, BYTES), Some(0x11), "work of a live stream came after that of the next owner");
        d.end_stream(a).unwrap();
    });
}

// ---- as a host of the plugin sees it ---------------------------------------------------------------------------

struct Table(C_DeviceInterface);

impl Table {
    fn new() -> Table {
        let mut table = Table(unsafe { std::mem::zeroed() });
        let mut params: CustomRuntimeParams = unsafe { std::mem::zeroed() };
        table.0.size = size_of_val(&table.0);
        params.size = size_of_val(&params);
        params.interface = &mut table.0;
        unsafe { init_plugin(&mut params) };
        assert_eq!(unsafe { table.0.initialize.unwrap()() }, C_Status::SUCCESS);
        assert_eq!(unsafe { table.0.init_device.unwrap()(&mut C_Device_st { id: 0 }) }, C_Status::SUCCESS);
        table
    }

    fn alloc(&self, bytes: usize) -> usize {
        let mut p = null_mut();
        let call = self.0.device_memory_allocate.unwrap();
        assert_eq!(unsafe { call(&mut C_Device_st { id: 0 }, &mut p, bytes) }, C_Status::SUCCESS);
        p.expose_provenance()
    }

    fn free(&self, at: usize, bytes: usize) {
        let call = self.0.device_memory_deallocate.unwrap();
        assert_eq!(unsafe { call(&mut C_Device_st { id: 0 }, ptr(at), bytes) }, C_Status::SUCCESS);
    }
}

unsafe extern "C-unwind" fn stand(_: C_Device, _: C_Stream, data: *mut c_void, _: *mut C_Status) {
    let open = unsafe { Box::from_raw(data.cast::<std::sync::mpsc::Receiver<()>>()) };
    let _ = open.recv_timeout(LATE);
}

fn late_writer_of_the_plugin(bytes: usize) {
    let t = Table::new();
    let mut d = C_Device_st { id: 0 };
    let mut a: C_Stream = null_mut();
    assert_eq!(unsafe { t.0.create_stream.unwrap()(&mut d, &mut a) }, C_Status::SUCCESS);
    // Another live block, so that not all goes back to the device.
    let (source, p) = (t.alloc(bytes), t.alloc(bytes));
    poke(source, 0xAA, bytes);
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let data = Box::into_raw(Box::new(gate)).cast();
    let call = t.0.stream_add_callback.unwrap();
    assert_eq!(unsafe { call(&mut d, a, Some(stand), data) }, C_Status::SUCCESS);
    let call = t.0.async_memory_copy_d2d.unwrap();
    assert_eq!(unsafe { call(&mut d, a, ptr(p), ptr(source), bytes) }, C_Status::SUCCESS);
    assert_eq!(unsafe { t.0.destroy_stream.unwrap()(&mut d, a) }, C_Status::SUCCESS);
    t.free(p, bytes);

    let q = t.alloc(bytes);
    poke(q, 0x11, bytes);
    drop(open);
    assert_eq!(unsafe { t.0.synchronize_device.unwrap()(&mut d) }, C_Status::SUCCESS);
    assert_eq!(filled(q, bytes), Some(0x11), "work of the ended stream wrote into the next block");
}

/// Everything that the plugin serves is a block without a stream.
#[test]
fn a_block_that_the_plugin_serves_waits_for_a_stream_that_has_ended() {
    apart_with(&[("MILLPOND_PLUGIN_CACHE", "on"), ("MILLPOND_HOST_CAPACITY", "64M")], || {
        late_writer_of_the_plugin(BYTES)
    });
}

/// The same where freed memory goes back to the device, as soon as there is more of it than this block.
#[test]
fn a_block_that_the_plugin_serves_without_a_cache_waits_for_a_stream_that_has_ended() {
    apart_with(&[("MILLPOND_PLUGIN_CACHE", "off"), ("MILLPOND_HOST_CAPACITY", "64M")], || {
        late_writer_of_the_plugin(512 * KIB)
    });
}
