//! A warm program costs the host nothing: no allocation on the heap, no call into the driver, no growth.
//!
//! The traces of the repository are replayed through the C API, on a device that maps and on one that does not. After
//! two passes and a third, the fourth must not allocate host memory nor call the device. A counting global allocator
//! sees every host allocation of the process; the host device's own statistics count its calls.

use crate::apart::apart_for;
use crate::host_memory::allocations;
use millpond::capi::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::null_mut;

/// (bytes, slot, stream); 0 bytes free the slot.
type Op = (usize, u32, u32);

struct Program {
    ops: Vec<Op>,
    slots: u32,
    streams: u32,
}

/// A program of fixed shape, as training is: layers whose sizes repeat, workspaces that die at once, gradients that
/// live to the end of the step, on two streams.
fn training() -> Program {
    let mut p = Program { ops: Vec::new(), slots: 0, streams: 2 };
    let mut spare: Vec<u32> = Vec::new();
    let mut random = 1u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % n
    };
    let sizes: Vec<usize> = (0..40).map(|_| 512usize << below(15) | below(4096) as usize).collect();
    let open = |p: &mut Program, spare: &mut Vec<u32>, bytes: usize, stream: u32| {
        let slot = spare.pop().unwrap_or_else(|| {
            p.slots += 1;
            p.slots - 1
        });
        p.ops.push((bytes, slot, stream));
        (slot, stream)
    };
    for _ in 0..20 {
        let mut kept = Vec::new();
        for (i, &bytes) in sizes.iter().enumerate() {
            let stream = u32::from(i % 7 == 0);
            kept.push(open(&mut p, &mut spare, bytes, stream));
            let (work, s) = open(&mut p, &mut spare, bytes * 2 + 4096, stream);
            p.ops.push((0, work, s));
            spare.push(work);
        }
        for (slot, s) in kept.into_iter().rev() {
            p.ops.push((0, slot, s));
            spare.push(slot);
        }
    }
    p
}

/// A trace of the repository, unpacked by the command that the traces are packed with.
fn recorded(name: &str) -> Option<Program> {
    let path = format!("{}/traces/{name}.trace.zst", env!("CARGO_MANIFEST_DIR"));
    let out = Command::new("zstd").args(["-dcq", &path]).output().ok()?;
    let text = String::from_utf8(out.stdout).ok().filter(|t| !t.is_empty())?;
    let mut p = Program { ops: Vec::new(), slots: 0, streams: 1 };
    let (mut slots, mut spare) = (HashMap::new(), Vec::new());
    for line in text.lines() {
        let n: Vec<u64> = line.split(' ').skip(1).filter_map(|w| w.parse().ok()).collect();
        match (line.as_bytes().first(), n.as_slice()) {
            (Some(b'a'), &[id, bytes, stream]) => {
                let slot = spare.pop().unwrap_or_else(|| {
                    p.slots += 1;
                    p.slots - 1
                });
                slots.insert(id, (slot, stream as u32));
                p.streams = p.streams.max(stream as u32 + 1);
                p.ops.push((bytes as usize, slot, stream as u32));
            }
            (Some(b'f'), &[id]) => {
                let (slot, stream) = slots.remove(&id).unwrap();
                p.ops.push((0, slot, stream));
                spare.push(slot);
            }
            _ => {}
        }
    }
    // What the program never frees is freed at the end, so that the next pass finds what this one found.
    p.ops.extend(slots.into_values().map(|(slot, stream)| (0, slot, stream)));
    Some(p)
}

#[track_caller]
fn ok(status: C_Status) {
    let text =
        || unsafe { std::ffi::CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy().into_owned();
    assert_eq!(status, C_Status::SUCCESS, "{}", text());
}

fn driver_calls(device: *mut millpond_device) -> u64 {
    let mut s: millpond_stats = unsafe { std::mem::zeroed() };
    s.struct_size = size_of::<millpond_stats>();
    ok(unsafe { millpond_device_get_stats(device, &mut s) });
    s.driver_calls
}

/// Host allocations and driver calls of each of `passes` passes.
fn replay(p: &Program, device: *mut millpond_device, passes: usize) -> Vec<(u64, u64)> {
    let mut pool = null_mut();
    ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
    let mut streams: Vec<C_Stream> = vec![null_mut(); p.streams as usize];
    for s in &mut streams {
        ok(unsafe { millpond_stream_create(device, s) });
    }
    let mut blocks: Vec<*mut c_void> = vec![null_mut(); p.slots as usize];
    let mut all = Vec::with_capacity(passes);
    for _ in 0..passes {
        let calls = driver_calls(device);
        let before = allocations();
        for &(bytes, slot, stream) in &p.ops {
            let (block, stream) = (&mut blocks[slot as usize], streams[stream as usize]);
            if bytes != 0 {
                ok(unsafe { millpond_pool_alloc(pool, bytes, stream, block) });
            } else {
                ok(unsafe { millpond_pool_free(pool, *block, stream) });
            }
        }
        let allocations = allocations() - before; // before the statistics, which may allocate
        all.push((allocations, driver_calls(device) - calls));
    }
    streams.iter().for_each(|&s| ok(unsafe { millpond_stream_destroy(device, s) }));
    all
}

/// Passes until a program is warm. Most are after one or two; where the program's own steps differ, the places of
/// its blocks settle over a few more.
const WARM_UP: usize = 10;

fn warm_is_free(mapping: bool) {
    let options = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: 64 << 30, // nothing touches it
        disable_mapping: u32::from(!mapping),
    };
    let mut programs = vec![("training", training())];
    for name in ["fasterrcnn_train", "resnet50_train", "gpt2_train"] {
        programs.extend(recorded(name).map(|p| (name, p)));
    }
    for (name, program) in &programs {
        ok(unsafe { millpond_host_configure(&options) });
        let mut device = null_mut();
        ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
        let passes = replay(program, device, WARM_UP + 1);
        // The first call of a pass counts too, so the device has been asked for something.
        assert!(passes[0].1 > 0, "{name}: the cold pass made no driver call; is anything counted?");
        // In this program, what outlives a step lies elsewhere after each step, so that the one large hole is
        // rarely the same twice: up to one call in a thousand operations is left, and what such a call notes.
        let drifts = *name == "resnet50_train" && mapping;
        let most = if drifts { program.ops.len() as u64 / 1000 } else { 0 };
        let (allocations, calls) = passes[WARM_UP];
        assert!(
            allocations <= most && calls <= most,
            "{name}, mapping {mapping}: (host allocations, driver calls) by pass: {passes:?}"
        );
        ok(millpond_finalize());
    }
}

/// Apart, as every allocation of the process counts.
#[test]
fn a_warm_program_allocates_nothing_and_calls_no_driver() {
    apart_for(300, || {
        let before = allocations();
        drop(std::hint::black_box(Box::new(1)));
        assert_eq!(allocations(), before + 1, "allocations are not counted");
        warm_is_free(false);
        warm_is_free(true);
    });
}
