//! Writes the files that `run.py` looks at, into the folder that is its argument: histories and snapshots of a program that
//! does what programs do, and of one that is made up to be awkward. An argument `million` adds a history of a million
//! events.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use millpond::capi::*;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;

fn done(status: C_Status) {
    assert!(status == C_Status::SUCCESS, "a call has failed");
}

fn text(s: &str) -> CString {
    CString::new(s).unwrap()
}

#[derive(Clone, Copy)]
struct Device(*mut millpond_device);

// SAFETY: handles may be used from any thread.
unsafe impl Send for Device {}

#[derive(Clone, Copy)]
struct Pool(*mut millpond_pool);

// SAFETY: as above.
unsafe impl Send for Pool {}

#[derive(Clone, Copy, PartialEq)]
struct Stream(C_Stream);

// SAFETY: as above.
unsafe impl Send for Stream {}

impl Device {
    /// Host device number `n`.
    fn open(n: i32) -> Device {
        let mut d = null_mut();
        // SAFETY: plain arguments; the place is writable.
        done(unsafe { millpond_device_get(c"host".as_ptr(), n, &mut d) });
        Device(d)
    }

    fn record(self, path: &Path, frames: usize) {
        let path = text(path.to_str().unwrap());
        let options = millpond_history_options {
            struct_size: size_of::<millpond_history_options>(),
            event_count: 1 << 22,
            frame_count: frames,
            path: path.as_ptr(),
        };
        // SAFETY: the options are complete.
        done(unsafe { millpond_device_history_start(self.0, &options) });
    }

    fn stop(self) {
        // SAFETY: a handle, and no place.
        done(unsafe { millpond_device_history_stop(self.0, null_mut()) });
    }

    fn snapshot(self, path: &Path) {
        let path = text(path.to_str().unwrap());
        // SAFETY: the path is a C string.
        done(unsafe { millpond_device_write_snapshot(self.0, MILLPOND_SNAPSHOT_JSON, path.as_ptr()) });
    }

    fn pool(self, name: Option<&str>) -> Pool {
        let mut p = null_mut();
        match name {
            // SAFETY: the place is writable.
            None => done(unsafe { millpond_device_get_default_pool(self.0, &mut p) }),
            Some(name) => {
                let name = text(name);
                let options = millpond_pool_options {
                    struct_size: size_of::<millpond_pool_options>(),
                    name: name.as_ptr(),
                    limit_bytes: 0,
                    flags: 0,
                };
                // SAFETY: as above, and the options are complete.
                done(unsafe { millpond_pool_create(self.0, &options, &mut p) });
            }
        }
        Pool(p)
    }

    fn stream(self) -> Stream {
        let mut s = null_mut();
        // SAFETY: the place is writable.
        done(unsafe { millpond_stream_create(self.0, &mut s) });
        Stream(s)
    }

    /// Work that takes a while.
    fn work(self, stream: Stream, block: usize, bytes: usize) {
        for value in 0..8 {
            // SAFETY: the range is a block of this device.
            done(unsafe { millpond_memset_async(self.0, stream.0, block as *mut c_void, value, bytes) });
        }
    }

    fn synchronize(self) {
        // SAFETY: a handle only.
        done(unsafe { millpond_device_synchronize(self.0) });
    }
}

impl Pool {
    /// None without room.
    fn try_alloc(self, bytes: usize, stream: Stream) -> Option<usize> {
        let mut p = null_mut();
        // SAFETY: the place is writable.
        let status = unsafe { millpond_pool_alloc(self.0, bytes, stream.0, &mut p) };
        (status == C_Status::SUCCESS).then_some(p as usize)
    }

    fn alloc(self, bytes: usize, stream: Stream) -> usize {
        self.try_alloc(bytes, stream).unwrap()
    }

    fn free(self, block: usize, stream: Stream) {
        // SAFETY: nobody uses the block.
        done(unsafe { millpond_pool_free(self.0, block as *mut c_void, stream.0) });
    }
}

fn tagged<T>(name: &str, body: impl FnOnce() -> T) -> T {
    let name = text(name);
    // SAFETY: a C string.
    done(unsafe { millpond_tag_push(name.as_ptr()) });
    let got = body();
    done(millpond_tag_pop());
    got
}

fn note(what: &str) {
    let what = text(what);
    // SAFETY: a C string.
    done(unsafe { millpond_history_annotate(what.as_ptr()) });
}

/// Numbers that look random and are always the same.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

/// A training program: weights, activations that come and go in steps, a loader on a thread of its own, a cache that grows,
/// blocks that other streams use, a scattered block, and a request that finds no memory.
#[inline(never)] // its name is looked for among the callers
fn program(folder: &Path) {
    let d = Device::open(0);
    d.record(&folder.join("program.history"), 64);
    let (main, side) = (d.stream(), d.stream());
    let (pool, cache) = (d.pool(None), d.pool(Some("kv \"cache\" </script>")));
    note("setting up");
    let weights: Vec<usize> =
        tagged("weights", || (0..24).map(|n| pool.alloc((1 + n % 4) * 3 * MIB / 2, main)).collect());
    let optimizer: Vec<usize> =
        tagged("optimizer", || (0..24).map(|n| pool.alloc((1 + n % 4) * 3 * MIB / 2, main)).collect());
    let mut dice = Dice(88172645463325252);
    let mut held = Vec::new();
    for step in 0..12 {
        note(&format!("step {}", step + 1));
        let loader = std::thread::spawn(move || {
            tagged("input", || {
                let block = pool.alloc(4 * MIB, side);
                d.work(side, block, 4 * MIB);
                block
            })
        });
        let input = loader.join().unwrap();
        // The main stream uses what the loader's stream has written.
        // SAFETY: a block and a stream of this device.
        done(unsafe { millpond_record_stream(input as *mut c_void, main.0) });
        let activations: Vec<usize> = tagged("activations", || {
            (0..40).map(|_| pool.alloc(1000 + dice.roll(5 * MIB / 2), main)).collect()
        });
        d.work(main, activations[0], 1000);
        tagged("kv_cache", || held.push(cache.alloc(MIB + step * 100_000, side)));
        d.work(main, input, 4 * MIB);
        pool.free(input, side); // waits for the main stream
        let (mut early, late): (Vec<usize>, Vec<usize>) =
            activations.into_iter().partition(|_| dice.roll(3) == 0);
        early.reverse();
        early.into_iter().for_each(|p| pool.free(p, main));
        let gradients: Vec<usize> =
            tagged("gradients", || (0..12).map(|_| pool.alloc(700_000 + dice.roll(MIB), main)).collect());
        late.into_iter().rev().for_each(|p| pool.free(p, main));
        gradients.into_iter().for_each(|p| pool.free(p, main));
        d.synchronize();
    }
    // Everything is taken, and then free in pieces: what is asked for next is scattered.
    note("evaluation");
    let parts: Vec<usize> = tagged("fill", || std::iter::from_fn(|| pool.try_alloc(2 * MIB, main)).collect());
    parts.iter().step_by(2).for_each(|&p| pool.free(p, main));
    let scattered = tagged("scattered", || pool.alloc(24 * MIB, main));
    assert!(pool.try_alloc(900 * MIB, main).is_none());
    d.snapshot(&folder.join("program.json"));
    d.stop();
    let _ = (weights, optimizer, scattered, held);
}

/// Names that would end a script, an attribute or a line, and hide what stands beside them; also pinned memory.
fn awkward(folder: &Path) {
    let d = Device::open(1);
    let (pool, s) = (d.pool(None), Stream(null_mut()));
    let (a, b) = tagged("alone", || (pool.alloc(3 * MIB, s), pool.alloc(1000, s)));
    d.snapshot(&folder.join("alone.json"));
    pool.free(a, s);
    pool.free(b, s);
    d.record(&folder.join("awkward.history"), 0);
    let names = [
        "</script><img src=x onerror=a>",
        "\"quoted\" 'and' \\slashed\\",
        "<!-- <script>",
        "bell \u{7} line\nend \u{202e}txet",
        "${x} `y` {{z}}",
        &"long".repeat(7)[..28],
        "größe 大きさ",
    ];
    let blocks: Vec<usize> =
        names.iter().enumerate().map(|(n, name)| tagged(name, || pool.alloc((n + 1) * 100_000, s))).collect();
    note(&"</script><b>a very long note</b> ".repeat(100));
    note("");
    let mut pinned = null_mut();
    // SAFETY: the place is writable.
    done(unsafe { millpond_host_alloc(d.0, 300_000, &mut pinned) });
    blocks.iter().take(3).for_each(|&p| pool.free(p, s));
    // SAFETY: the block is ours.
    done(unsafe { millpond_host_free(d.0, pinned) });
    d.stop();
    // A history that begins late: blocks are freed in it that it has never seen.
    d.record(&folder.join("late.history"), 0);
    blocks.iter().skip(3).for_each(|&p| pool.free(p, s));
    d.stop();
    d.record(&folder.join("empty.history"), 0);
    d.stop();
    d.record(&folder.join("one.history"), 0);
    note("the only one");
    d.stop();
}

/// A million events and more, on four threads.
fn million(folder: &Path) {
    let d = Device::open(2);
    d.record(&folder.join("million.history"), 0);
    std::thread::scope(|scope| {
        for t in 0..4 {
            scope.spawn(move || {
                let (pool, stream, mut dice) = (d.pool(None), d.stream(), Dice(77 + t as u64 * 1_000_003));
                let mut live = Vec::new();
                for n in 0..250_000usize / 2 {
                    let name = ["weights", "activations", "kv_cache", "gradients"][dice.roll(4)];
                    let bytes = [512, 3000, 8000, 60_000][dice.roll(4)] + dice.roll(4000);
                    live.push(tagged(name, || pool.alloc(bytes, stream)));
                    // The sawtooth of a program that works in steps.
                    let most = 200 + 1800 * (n % 12_500) / 12_500;
                    while live.len() > most {
                        pool.free(live.swap_remove(dice.roll(live.len())), stream);
                    }
                    if n % 2000 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(3)); // the file's writer keeps up
                    }
                }
                live.into_iter().for_each(|p| pool.free(p, stream));
            });
        }
    });
    d.stop();
}

/// Writes all files into a folder.
pub(crate) fn write(folder: &Path, with_million: bool) {
    std::fs::create_dir_all(folder).unwrap();
    let options = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 3,
        capacity_bytes: (320 * MIB) as u64,
        disable_mapping: 0,
    };
    // SAFETY: the options are complete.
    done(unsafe { millpond_host_configure(&options) });
    program(folder);
    awkward(folder);
    if with_million {
        million(folder);
    }
}

#[allow(dead_code, reason = "a test that has this file as a module calls `write`")]
fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = std::path::PathBuf::from(arguments.next().unwrap());
    write(&folder, arguments.next().as_deref() == Some("million"));
}
