//! Recorded programs: the replay once cold and three times warm, and the smallest device on which a fresh process
//! completes, by bisection to 0.1 %.
//!
//! Every replay is a forked child, made before the allocator is opened, so that the trace is read once.

use super::{DEVICE, Job, say};
use crate::subject::{self, Account, Subject};
use crate::tools::{cpu_ns, median};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::HashMap;
use std::ffi::c_void;
use std::io::{Read, Write};
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const PAGE: u64 = 2 << 20;

/// An event: an allocation, or with 0 bytes the free of what the slot holds.
#[derive(Clone, Copy)]
struct Op {
    bytes: u64,
    slot: u32,
    stream: u32,
}

/// A trace; blocks sit in slots, which are used again, so that the table of pointers stays small.
pub(crate) struct Trace {
    ops: Vec<Op>,
    slots: usize,
    streams: u32,
    peak_live: u64,
}

impl Trace {
    /// Reads a trace, compressed or not (`traces/README.md` has the format).
    pub(crate) fn read(path: &Path) -> Result<Trace> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let mut text = String::new();
        if bytes.starts_with(&ZSTD_MAGIC) {
            let mut d = ruzstd::decoding::StreamingDecoder::new(bytes.as_slice())
                .map_err(|e| anyhow!("zstd: {e}"))?;
            d.read_to_string(&mut text).context("zstd")?;
        } else {
            text = String::from_utf8(bytes).context("not a trace")?;
        }
        Trace::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Trace> {
        let mut t = Trace { ops: Vec::new(), slots: 0, streams: 1, peak_live: 0 };
        let mut slot_of: HashMap<u64, (u32, u32, u64)> = HashMap::new(); // id -> slot, stream, bytes
        let mut streams: HashMap<u64, u32> = HashMap::new();
        let mut spare = Vec::new();
        let mut live = 0u64;
        for (i, line) in text.lines().enumerate() {
            let mut w = line.split_ascii_whitespace();
            let kind = w.next();
            let numbers: Vec<u64> = match kind {
                Some("a" | "f") => {
                    w.map(str::parse).collect::<Result<_, _>>().with_context(|| format!("line {}", i + 1))?
                }
                _ => continue,
            };
            match (kind, numbers.as_slice()) {
                (Some("a"), &[id, bytes, ref stream @ ..]) => {
                    if bytes == 0 || slot_of.contains_key(&id) {
                        continue;
                    }
                    let slot = spare.pop().unwrap_or_else(|| {
                        t.slots += 1;
                        t.slots as u32 - 1
                    });
                    let n = streams.len() as u32;
                    let stream = *streams.entry(stream.first().copied().unwrap_or(0)).or_insert(n);
                    slot_of.insert(id, (slot, stream, bytes));
                    t.ops.push(Op { bytes, slot, stream });
                    live += bytes;
                    t.peak_live = t.peak_live.max(live);
                }
                (Some("f"), &[id]) => {
                    let Some((slot, stream, bytes)) = slot_of.remove(&id) else { continue };
                    t.ops.push(Op { bytes: 0, slot, stream });
                    live -= bytes;
                    spare.push(slot);
                }
                _ => bail!("line {}: {line:?}", i + 1),
            }
        }
        t.streams = streams.len().max(1) as u32;
        ensure!(!t.ops.is_empty(), "there is not one `a` line in it");
        Ok(t)
    }
}

/// What a replay tells through its pipe.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Told {
    status: u64, // 0 complete, 1 out of memory, 2 failed
    cold_ns: f64,
    warm_ns: f64,
    peak: f64,
    cold_calls: f64,
    warm_calls: f64,
}

type Table = Vec<(*mut c_void, u64)>;

/// The status of the first call that fails, else 0.
fn pass(t: &Trace, s: &Subject, table: &mut Table) -> i32 {
    for op in &t.ops {
        let b = &mut table[op.slot as usize];
        if op.bytes != 0 {
            let e = (s.alloc)(op.bytes as usize, op.stream, &mut b.0);
            if e != 0 {
                return e;
            }
            b.1 = op.bytes;
        } else {
            s.free(b.0, b.1, op.stream);
            b.0 = std::ptr::null_mut();
        }
    }
    0
}

/// Frees what the program never did.
fn end(t: &Trace, s: &Subject, table: &mut Table) {
    let mut stream = vec![0; t.slots];
    t.ops.iter().filter(|o| o.bytes != 0).for_each(|o| stream[o.slot as usize] = o.stream);
    for (b, &stream) in table.iter_mut().zip(&stream) {
        if !b.0.is_null() {
            s.free(b.0, b.1, stream);
            b.0 = std::ptr::null_mut();
        }
    }
}

fn replay(t: &Trace, job: &Job, capacity: u64, warm: usize) -> Result<Told> {
    let s = subject::open(&job.subject, t.streams, capacity)?;
    let mut table: Table = vec![(std::ptr::null_mut(), 0); t.slots];
    let per_op = |from: u64| (cpu_ns() - from) as f64 / t.ops.len() as f64;
    let mut told = Told::default();
    let a0: Account = s.account();
    let from = cpu_ns();
    told.status = pass(t, &s, &mut table) as u64;
    told.cold_ns = per_op(from);
    let a1 = s.account();
    told.cold_calls = (a1.driver_calls - a0.driver_calls) as f64;
    let mut all = Vec::new();
    for _ in 0..warm {
        if told.status != 0 {
            break;
        }
        end(t, &s, &mut table);
        let before = s.account().driver_calls;
        let from = cpu_ns();
        told.status = pass(t, &s, &mut table) as u64;
        all.push(per_op(from));
        told.warm_calls = (s.account().driver_calls - before) as f64; // of the last pass
    }
    told.warm_ns = median(&all);
    told.peak = s.account().peak_reserved as f64 / t.peak_live as f64;
    Ok(told)
}

/// A replay in a child. The caller has one thread and has not opened a subject.
fn in_child(t: &Trace, job: &Job, capacity: u64, warm: usize) -> Result<Told> {
    let (read, write) = pipe()?;
    // SAFETY: this process has one thread; the child only computes, writes to the pipe and exits.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("fork"),
        0 => {
            // SAFETY: no effect but a signal that ends this child.
            unsafe { libc::alarm(job.budget as u32 + 1) };
            let told = replay(t, job, capacity, warm).unwrap_or(Told { status: 2, ..Told::default() });
            // SAFETY: plain numbers without padding.
            let bytes =
                unsafe { std::slice::from_raw_parts((&raw const told).cast::<u8>(), size_of::<Told>()) };
            let _ = std::fs::File::from(write).write_all(bytes);
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        child => {
            drop(write);
            let mut bytes = [0u8; size_of::<Told>()];
            let got = std::fs::File::from(read).read_exact(&mut bytes);
            // SAFETY: our own child; no status is asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            if got.is_err() {
                return Ok(Told { status: 2, ..Told::default() });
            }
            // SAFETY: any bytes are a value of a struct of numbers.
            Ok(unsafe { bytes.as_ptr().cast::<Told>().read_unaligned() })
        }
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = std::io::pipe().context("pipe")?;
    debug_assert!(read.as_raw_fd() >= 0);
    Ok((read.into(), write.into()))
}

fn the_trace(job: &Job) -> Result<Trace> {
    Trace::read(job.trace.as_deref().context("a trace is needed")?)
}

pub(super) fn warm(job: &Job) -> Result<()> {
    let t = the_trace(job)?;
    let told = in_child(&t, job, DEVICE, 3)?;
    ensure!(told.status == 0, "the replay ended with status {}", told.status);
    say("warm_ns", told.warm_ns);
    say("cold_ns", told.cold_ns);
    say("driver_calls_cold", 1000.0 * told.cold_calls / t.ops.len() as f64);
    say("driver_calls_warm", told.warm_calls);
    if told.peak > 0.0 {
        say("peak", told.peak);
    }
    Ok(())
}

pub(super) fn capacity(job: &Job) -> Result<()> {
    let t = the_trace(job)?;
    let up = |x: f64| (x as u64).next_multiple_of(PAGE);
    let step = PAGE.max(up(t.peak_live as f64 / 1000.0));
    let fits = |c: u64| Ok::<_, anyhow::Error>(in_child(&t, job, c, 0)?.status == 0);
    let floor = t.peak_live.next_multiple_of(PAGE);
    let (mut low, mut high) = (floor, 0);
    if fits(floor)? {
        high = floor;
    } else {
        for f in [1.02, 1.05, 1.1, 1.2, 1.4, 1.8, 2.5, 4.0, 8.0] {
            let c = up(t.peak_live as f64 * f);
            if fits(c)? {
                high = c;
                break;
            }
            low = c;
        }
    }
    ensure!(high != 0, "it does not complete with 8 times the memory");
    while high - low > step {
        let middle = (low + (high - low) / 2).next_multiple_of(PAGE);
        if middle <= low || middle >= high {
            break;
        }
        if fits(middle)? { high = middle } else { low = middle }
    }
    let mut above = 0;
    for f in [1.01, 1.02, 1.04, 1.08] {
        above += u32::from(!fits(up(high as f64 * f))?);
    }
    say("smallest", high as f64 / t.peak_live as f64);
    say("fails_above", f64::from(above));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_streams_numbered() {
        let t = Trace::parse("# x\na 1 100 0\na 2 50 7\nf 1\na 3 10 7\nf 9\nf 2\nf 3\n")
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((t.slots, t.streams, t.peak_live, t.ops.len()), (2, 2, 150, 6));
        assert_eq!((t.ops[3].slot, t.ops[3].stream), (0, 1));
    }

    #[test]
    fn bad_lines_are_errors() {
        assert!(Trace::parse("a 1 x 0").is_err());
        assert!(Trace::parse("# nothing").is_err());
        assert!(Trace::parse("f 1 2").is_err());
    }
}
