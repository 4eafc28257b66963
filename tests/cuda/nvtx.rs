//! A tool that speaks NVTX, loaded as real ones are, sees heaps, blocks and slow things: `nvtx_tool.c` checks what it is
//! told and writes it down. The program that it watches is this one once more.

use crate::apart;
use crate::compilers::{self, Scratch};
use crate::cuda::*;
use millpond::runtime::{self, PoolId};
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

const INSIDE: &str = "NVTX_TOOL_LOG";
/// A tool that is named is told of mapped memory, too.
const NAMED: (&str, &str) = ("MILLPOND_TOOLS", "nvtx");
const POOL: PoolId = PoolId::DEFAULT;

fn tool(scratch: &Scratch) -> String {
    let out = scratch.path("tool.so").to_str().unwrap().to_owned();
    let source = compilers::root().join("tests/cuda/nvtx_tool.c");
    // Function pointers of one type go through a common one, as in NVTX itself.
    let flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wno-cast-function-type", "-o", &out];
    compilers::compile_ok("-std=c11", &source, &flags);
    out
}

/// Runs a test of this program under the tool; what the tool has written.
fn under_the_tool(name: &str, test: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let scratch = Scratch::new(name);
    let (tool, log) = (tool(&scratch), scratch.path("log"));
    let mut program = apart::program(test);
    program.env("NVTX_INJECTION64_PATH", tool).env(INSIDE, &log).envs(variables.iter().copied());
    let done = program.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(!text.contains("wrong"), "{text}");
    text.lines().map(str::to_owned).collect()
}

/// What lines make of the memory. Fails where a region lies in no heap or on another one, or ends and is not there.
#[derive(Default)]
struct Told {
    heaps: BTreeMap<u64, (u64, u64)>,   // number: address, bytes
    regions: BTreeMap<u64, (u64, u64)>, // address: bytes, heap
    most: usize,
    ranges: Vec<String>,
    depth: i64,
    /// Of the program's accesses, right and wrong ones, which were all judged so.
    accesses: usize,
}

impl Told {
    fn of(lines: &[String]) -> Told {
        let mut t = Told::default();
        lines.iter().for_each(|line| t.hear(line));
        assert_eq!(t.depth, 0, "ranges that do not end");
        t
    }

    fn hear(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let what = words.next().unwrap();
        let rest: Vec<&str> = words.collect();
        let n = |i: usize| rest[i].split(' ').next().unwrap().parse::<u64>().unwrap();
        match what {
            "heap" => {
                let (at, bytes) = rest[1].split_once(' ').unwrap();
                self.heaps.insert(n(0), (at.parse().unwrap(), bytes.parse().unwrap()));
            }
            "end_heap" => {
                self.heaps.remove(&n(0)).unwrap_or_else(|| panic!("{line}"));
                self.regions.retain(|_, r| r.1 != n(0));
            }
            "region" => {
                let (at, bytes) = rest[1].split_once(' ').unwrap();
                let (at, bytes): (u64, u64) = (at.parse().unwrap(), bytes.parse().unwrap());
                let heap = self.heaps[&n(0)];
                assert!(heap.0 <= at && at + bytes <= heap.0 + heap.1, "{line}: not in {heap:?}");
                let before = self.regions.range(..at + bytes).next_back();
                assert!(before.is_none_or(|(&a, &(b, _))| a + b <= at), "{line}: on {before:?}");
                self.regions.insert(at, (bytes, n(0)));
                self.most = self.most.max(self.regions.len());
            }
            "end_region" => _ = self.regions.remove(&n(0)).unwrap_or_else(|| panic!("{line}")),
            "push" | "mark" => {
                self.depth += i64::from(what == "push");
                self.ranges.push(rest[1].to_owned());
            }
            "pop" => self.depth -= 1,
            // What a checker of accesses makes of them: it knows only the regions.
            "may" | "planted" => {
                let last = self.regions.range(..=n(0)).next_back();
                let allowed = last.is_some_and(|(&a, &(bytes, _))| n(0) < a + bytes);
                assert_eq!(allowed, what == "may", "{line}: the region before it is {last:?}");
                self.accesses += 1;
            }
            _ => {}
        }
    }
}

/// Blocks come and go on a device, and slow things happen: what the tool watches.
fn program(settings: &[(&str, &str)]) {
    let fake = Fake::new(settings, |_| {});
    let d = runtime::device("cuda", 0).unwrap();
    let (m, s) = (d.memory(), d.streams().create().unwrap());
    let say = |what: &str| {
        use std::io::Write;
        let path = std::env::var(INSIDE).unwrap();
        writeln!(std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap(), "{what}")
            .unwrap();
    };
    let a = m.alloc(POOL, s, 1000).unwrap();
    let b = m.alloc(POOL, s, 5 * MIB + 8).unwrap();
    say(&format!("has {a} 1000 {b} {}", 5 * MIB + 8));
    say(&format!("may {a}"));
    say(&format!("may {}", a + 999));
    say(&format!("planted {}", a + 1000)); // within the rounded size
    say(&format!("planted {}", b + 5 * MIB + 8));
    // Freed, while work on the stream may use it.
    fake.hold(true);
    d.memset_async(s, b, 1, MIB).unwrap();
    m.free(b, Some(s), None).unwrap();
    say(&format!("has {a} 1000 {b} {}", 5 * MIB + 8));
    let c = m.alloc(POOL, s, MIB).unwrap();
    fake.hold(false);
    d.streams().synchronize(s).unwrap();
    say(&format!("has {a} 1000 {c} {MIB}"));
    say(&format!("planted {}", b + 2 * MIB)); // freed, and not given to `c`
    say(&format!("may {c}"));
    m.free(c, Some(s), None).unwrap();
    m.free(a, Some(s), None).unwrap();
    d.streams().synchronize(s).unwrap();
    say(&format!("planted {a}"));
    say(&format!("planted {}", c + MIB - 1));
    say("has");
    m.empty_cache(None).unwrap();
    let p = m.pools().create(0).unwrap();
    let capture = m.captures().begin(p, s).unwrap();
    m.captures().end(capture).unwrap();
    m.captures().release(capture).unwrap();
    let id = m.oom_callbacks().add(|_| true).unwrap();
    assert!(
        m.alloc(POOL, s, d.info().unwrap().memory.total - MIB).is_ok() || m.alloc(POOL, s, 1 << 30).is_err()
    );
    let mut kept = Vec::new();
    while let Ok(x) = m.alloc(POOL, s, 16 * MIB) {
        kept.push(x);
    }
    m.oom_callbacks().remove(id).unwrap();
    drop(d);
    fake.end();
}

#[test]
fn inside_mapped() {
    if std::env::var_os(INSIDE).is_some() {
        program(&[("driver", "12080"), ("capacity", "320M")]);
    }
}

#[test]
fn inside_segments() {
    if std::env::var_os(INSIDE).is_some() {
        program(&[("no_vmm", "1"), ("capacity", "320M")]);
    }
}

/// At each line "has" exactly these blocks are regions.
fn check(lines: &[String]) {
    assert_eq!(lines[..2], ["tool", "domain millpond"]);
    let mut t = Told::default();
    let mut seen = 0;
    for line in lines {
        let Some(has) = line.strip_prefix("has") else {
            t.hear(line);
            continue;
        };
        let words: Vec<u64> = has.split_whitespace().map(|w| w.parse().unwrap()).collect();
        let want: u64 = words.chunks(2).map(|w| w[1]).sum();
        let have: u64 = t.regions.values().map(|r| r.0).sum();
        assert_eq!(have, want, "{line}: {:?}", t.regions);
        for w in words.chunks(2) {
            // A block that lies in several heaps is several regions.
            let (mut at, end) = (w[0], w[0] + w[1]);
            while at < end {
                at += t.regions.get(&at).unwrap_or_else(|| panic!("{line}: {:?}", t.regions)).0;
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 4);
    let t = Told::of(lines);
    assert_eq!(t.accesses, 8, "overruns and uses after free among them");
    assert!(t.heaps.is_empty() && t.regions.is_empty(), "something is left at the end: {:?}", t.heaps);
    for what in [
        "segment alloc",
        "segment free",
        "empty_cache",
        "capture begins",
        "capture ends",
        "out-of-memory retry",
        "out of memory",
    ] {
        assert!(t.ranges.iter().any(|r| r == what), "no {what:?} in {:?}", t.ranges);
    }
}

#[test]
fn a_tool_sees_heaps_blocks_and_slow_things() {
    check(&under_the_tool("nvtx", "nvtx::inside_segments", &[]));
    check(&under_the_tool("nvtx-mapped", "nvtx::inside_mapped", &[NAMED]));
}

/// compute-sanitizer takes no heap in mapped memory and counts each as an error of the program (seen with 2025.3), so a
/// tool is told of such memory only where it is named.
#[test]
fn mapped_memory_is_told_only_to_tools_that_are_named() {
    let lines = under_the_tool("nvtx-unnamed", "nvtx::inside_mapped", &[]);
    assert!(!lines.iter().any(|l| l.starts_with("heap") || l.starts_with("region")), "{lines:?}");
    assert!(lines.iter().any(|l| l.contains("segment alloc")), "{lines:?}");
}

#[test]
fn a_tool_that_refuses_or_knows_no_memory_is_told_nothing_of_it() {
    let none = under_the_tool("nvtx-refuses", "nvtx::inside_mapped", &[("NVTX_TOOL_REFUSES", "1")]);
    assert!(!none.iter().any(|l| l.starts_with("domain") || l.starts_with("heap")), "{none:?}");
    let off = under_the_tool("nvtx-off", "nvtx::inside_mapped", &[("MILLPOND_TOOLS", "asan,memcheck")]);
    assert!(off.iter().all(|l| ["has", "may", "planted"].iter().any(|w| l.starts_with(w))), "{off:?}");
    let ranges = under_the_tool("nvtx-ranges", "nvtx::inside_segments", &[("NVTX_TOOL_HAS_NO_MEMORY", "1")]);
    // Who knows no region can judge no access.
    let is_access = |l: &String| l.starts_with("may") || l.starts_with("planted");
    let t = Told::of(&ranges.iter().filter(|l| !is_access(l)).cloned().collect::<Vec<_>>());
    assert!(t.most == 0 && t.ranges.iter().any(|r| r == "segment alloc"), "{ranges:?}");
}

/// What a tool makes the library ask the driver for disturbs no capture, and graphs keep their regions.
#[test]
fn graphs_run_under_a_tool() {
    let lines = under_the_tool("nvtx-graphs", "pools::graphs::replays_find_their_memory", &[NAMED]);
    let t = Told::of(&lines);
    assert!(t.most > 3, "{lines:?}");
}

/// Driver calls until somebody begins a capture, and on which stream.
static CALLS_LEFT: AtomicI64 = AtomicI64::new(-1);
static CAPTURED: AtomicU64 = AtomicU64::new(0);
static BEGIN: OnceLock<extern "C" fn(u64, u32) -> u32> = OnceLock::new();

/// Before each driver call. The capture is one that another thread could begin at that moment, unannounced.
unsafe extern "C" fn before_a_call(_: *const c_char, _: usize) -> u32 {
    if CALLS_LEFT.fetch_sub(1, Relaxed) == 0 {
        const RELAXED: u32 = 2;
        assert_eq!(BEGIN.get().unwrap()(CAPTURED.load(Relaxed), RELAXED), 0);
    }
    0
}

#[test]
fn inside_captures() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let fake = Fake::new(&[("driver", "12080"), ("capacity", "320M")], |_| {});
    let d = runtime::device("cuda", 0).unwrap();
    d.options().set("streams_announced:on").unwrap(); // else the stream is not asked
    let (m, s) = (d.memory(), fake.foreign_stream(0, 1));
    let observe: extern "C" fn(Option<unsafe extern "C" fn(*const c_char, usize) -> u32>) =
        fake.driver("fakecuda_observe");
    let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
    let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
    BEGIN.get_or_init(|| fake.driver("cuStreamBeginCapture_v2"));
    CAPTURED.store(s, Relaxed);
    let mut begun = 0;
    fake.with_primary(0, || {
        for n in 0..30 {
            let blocks = [(); 2].map(|()| m.alloc(POOL, s, 4096).unwrap());
            m.free(blocks[0], Some(s), None).unwrap();
            CALLS_LEFT.store(n, Relaxed);
            observe(Some(before_a_call));
            m.free(blocks[1], Some(s), None).unwrap(); // the tool wants to know what the stream does
            observe(None);
            if CALLS_LEFT.load(Relaxed) < 0 {
                begun += 1;
                let mut graph = 0;
                assert_eq!(end(s, &mut graph), 0, "a capture that began before call {n} is spoilt");
                assert_eq!(destroy(graph), 0);
            }
            d.streams().synchronize(s).unwrap();
        }
    });
    assert!(begun > 3, "{begun}");
    m.empty_cache(None).unwrap();
    d.streams().forget(s).unwrap();
    fake.foreign_stream_end(s);
    drop(d);
    fake.end();
}

/// What a tool makes the library ask disturbs no capture, whenever that begins.
#[test]
fn captures_may_begin_at_any_moment_under_a_tool() {
    let lines = under_the_tool("nvtx-captures", "nvtx::inside_captures", &[NAMED]);
    assert!(Told::of(&lines).most > 1, "{lines:?}");
}
