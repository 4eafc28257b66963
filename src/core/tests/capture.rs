//! Captures: what a graph will find at its replay, and what must not be asked of the device meanwhile. The
//! simulated device fails a test that asks it.

use super::super::blocks::WaitingBlocks;
use super::super::ground::Pool;
use super::super::state::captures::CaptureId;
use super::*;

/// Offset and bytes of a block, and the memory behind it.
type Shown = (u64, u64, Vec<(u64, u64)>);

/// The captures of a random program: one that records, and those whose graphs are alive.
#[derive(Default)]
pub(super) struct Graphs {
    pool: PoolId,
    open: Option<(CaptureId, u64)>,
    alive: Vec<CaptureId>,
    /// What a replay will use: addresses, and the memory behind them.
    shown: Vec<Shown>,
}

impl Graphs {
    pub(super) fn new(pool: PoolId) -> Graphs {
        Graphs { pool, ..Graphs::default() }
    }
    pub(super) fn recording(&self, stream: u64) -> bool {
        self.open.is_some_and(|o| o.1 == stream)
    }
    pub(super) fn any_recording(&self) -> bool {
        self.open.is_some()
    }
    pub(super) fn none(&self) -> bool {
        self.open.is_none() && self.alive.is_empty()
    }
    pub(super) fn begin(&mut self, b: &mut Bench, stream: u64) {
        let begun = b.pond.captures().begin(self.pool, stream);
        if self.recording(stream) {
            assert_eq!(begun.unwrap_err().code(), Code::Busy);
        } else if self.open.is_some() {
            b.pond.captures().release(begun.unwrap()).unwrap(); // abandoned before it began to record
        } else {
            b.world.lock().unwrap().recording.insert(stream);
            self.open = Some((begun.unwrap(), stream));
        }
    }
    pub(super) fn end(&mut self, b: &mut Bench) {
        let Some((id, stream)) = self.open.take() else { return };
        b.world.lock().unwrap().recording.remove(&stream);
        b.pond.captures().end(id).unwrap();
        assert_eq!(b.pond.captures().end(id).unwrap_err().code(), Code::NotPermitted);
        self.alive.push(id);
    }
    pub(super) fn release(&mut self, b: &mut Bench) {
        if self.alive.is_empty() || self.open.is_some() {
            return;
        }
        let id = self.alive.remove(0);
        if self.alive.is_empty() {
            self.shown.clear();
        }
        b.pond.captures().release(id).unwrap();
        assert_eq!(b.pond.captures().release(id).unwrap_err().code(), Code::InvalidArgument);
    }
    /// All that a graph may use is where it was, and belongs to nobody outside the pool.
    pub(super) fn check(&mut self, b: &Bench) {
        if let Some((_, stream)) = self.open {
            let w = b.world.lock().unwrap();
            for x in b.live.iter().filter(|x| x.pool == self.pool && x.stream == Some(stream)) {
                if !self.shown.iter().any(|s| (s.0, s.1) == (x.offset, x.bytes)) {
                    self.shown.push((x.offset, x.bytes, w.behind(x.offset, x.bytes)));
                }
            }
        }
        let w = b.world.lock().unwrap();
        for (offset, bytes, behind) in &self.shown {
            assert_eq!(&w.behind(*offset, *bytes), behind, "a graph's memory has moved");
        }
        for x in b.live.iter().filter(|x| x.pool != self.pool) {
            for &(a, n) in &x.ranges {
                let hit = self.shown.iter().flat_map(|s| &s.2).any(|&(c, m)| a < c + m && c < a + n);
                assert!(!hit, "a block outside the pool lies in a graph's memory");
            }
        }
    }
    pub(super) fn finish(&mut self, b: &mut Bench) {
        self.end(b);
        while !self.alive.is_empty() {
            self.release(b);
        }
    }
}

fn bench(mapping: bool) -> (Bench, PoolId) {
    let b = Bench::new(config(mapping, 64 << 20));
    let p = b.pond.pool_create(0, false).unwrap();
    (b, p)
}

fn begin(b: &Bench, pool: PoolId, stream: u64) -> CaptureId {
    let id = b.pond.captures().begin(pool, stream).unwrap();
    b.world.lock().unwrap().recording.insert(stream);
    id
}

fn end(b: &Bench, id: CaptureId, stream: u64) {
    b.world.lock().unwrap().recording.remove(&stream);
    b.pond.captures().end(id).unwrap();
}

#[test]
fn a_captured_streams_requests_come_from_the_captures_pool() {
    let (mut b, p) = bench(true);
    let before = b.alloc(PoolId::DEFAULT, Some(1), 1000).unwrap();
    b.free(before, None); // at hand for the next request of the stream
    let id = begin(&b, p, 1);
    let i = b.alloc_as(PoolId::DEFAULT, p, Some(1), 1000).unwrap();
    assert_eq!(b.pond.block(b.live[i].offset).unwrap().pool, p);
    let j = b.alloc(PoolId::DEFAULT, Some(2), 1000).unwrap();
    assert_eq!(b.pond.block(b.live[j].offset).unwrap().pool, PoolId::DEFAULT, "others go on as before");
    end(&b, id, 1);
    let k = b.alloc(PoolId::DEFAULT, Some(1), 1000).unwrap();
    assert_eq!(b.pond.block(b.live[k].offset).unwrap().pool, PoolId::DEFAULT);
    assert_eq!(b.pond.pool_destroy(p).unwrap_err().code(), Code::Busy);
    b.pond.captures().release(id).unwrap();
    b.finish();
}

#[test]
fn a_graphs_memory_stays_until_its_last_graph_is_gone() {
    for mapping in [true, false] {
        let (mut b, p) = bench(mapping);
        let reserved = |b: &Bench| b.pond.stats(Some(p)).unwrap().reserved.current;
        let id = begin(&b, p, 1);
        let i = b.alloc(p, Some(1), 20 << 20).unwrap();
        b.free(i, None);
        end(&b, id, 1);
        let second = begin(&b, p, 2); // shared
        end(&b, second, 2);
        let kept = reserved(&b);
        assert!(kept >= 20 << 20);
        b.pond.empty_cache(None).unwrap();
        assert_eq!(reserved(&b), kept, "nothing is trimmed");
        assert_eq!(
            b.alloc(PoolId::DEFAULT, Some(1), 50 << 20).unwrap_err().code(),
            Code::OutOfMemory,
            "nor stolen"
        );
        b.pond.captures().release(id).unwrap();
        assert_eq!(reserved(&b), kept);
        b.pond.captures().release(second).unwrap();
        assert_eq!(reserved(&b), 0, "with the last graph it goes");
        b.alloc(PoolId::DEFAULT, Some(1), 50 << 20).unwrap();
        b.finish();
    }
}

#[test]
fn a_pool_that_is_kept_keeps_its_memory_to_itself() {
    for mapping in [true, false] {
        let (mut b, p) = bench(mapping);
        assert_eq!(b.pond.captures().keep(PoolId::DEFAULT).unwrap_err().code(), Code::InvalidArgument);
        let id = b.pond.captures().keep(p).unwrap();
        assert_eq!(b.pond.captures().end(id).unwrap_err().code(), Code::NotPermitted);
        assert_eq!(b.pond.captures().add(id, 1).unwrap_err().code(), Code::NotPermitted);
        let i = b.alloc(p, Some(1), 40 << 20).unwrap();
        b.free(i, None);
        b.pond.empty_cache(None).unwrap();
        let taken = b.alloc(PoolId::DEFAULT, Some(1), 40 << 20);
        assert_eq!(taken.unwrap_err().code(), Code::OutOfMemory);
        assert_eq!(b.pond.pool_destroy(p).unwrap_err().code(), Code::Busy);
        let i = b.alloc(PoolId::DEFAULT, Some(2), 1 << 20).unwrap();
        assert_eq!(b.pond.block(b.live[i].offset).unwrap().pool, PoolId::DEFAULT, "no stream is captured");
        b.pond.captures().release_async(id).unwrap();
        b.alloc(PoolId::DEFAULT, Some(1), 40 << 20).unwrap();
        b.pond.pool_destroy(p).unwrap();
        b.finish();
    }
}

/// 40 MiB of the pool are a released capture's, whose replay is queued on stream 1.
fn set_aside(b: &mut Bench, p: PoolId) -> CaptureId {
    let id = begin(b, p, 1);
    let i = b.alloc(p, Some(1), 40 << 20).unwrap();
    b.free(i, None);
    end(b, id, 1);
    b.world.lock().unwrap().streams.entry(1).or_default().queued += 1; // a replay
    b.pond.captures().release_async(id).unwrap();
    id
}

#[test]
fn a_release_that_must_not_wait_sets_the_memory_aside() {
    for mapping in [true, false] {
        let (mut b, p) = bench(mapping);
        let id = set_aside(&mut b, p);
        {
            let w = b.world.lock().unwrap();
            assert!(w.streams[&1].done < w.streams[&1].queued, "nothing was waited for");
        }
        assert_eq!(b.pond.captures().release(id).unwrap_err().code(), Code::InvalidArgument);
        let j = b.alloc(PoolId::DEFAULT, Some(2), 16 << 20).unwrap();
        assert!(b.pond.stats(Some(p)).unwrap().reserved.current >= 40 << 20, "it is the replay's");
        b.free(j, None);
        b.world.lock().unwrap().complete(1, u64::MAX);
        b.pond.empty_cache(None).unwrap();
        assert_eq!(b.world.lock().unwrap().taken, 0);
        b.pond.pool_destroy(p).unwrap();
        b.finish();
    }
}

#[test]
fn memory_that_is_set_aside_twice_waits_for_both_replays() {
    for mapping in [true, false] {
        let (mut b, p) = bench(mapping);
        b.alloc(PoolId::DEFAULT, Some(2), 1000).unwrap();
        set_aside(&mut b, p);
        let again = b.pond.captures().keep(p).unwrap();
        b.world.lock().unwrap().streams.entry(2).or_default().queued += 1; // a replay of another graph
        b.pond.captures().release_async(again).unwrap();
        let is_kept = |b: &Bench| {
            b.pond.stats(None).unwrap(); // asks what is over
            b.pond.ground().pools().live(p).unwrap().is_pinned()
        };
        b.world.lock().unwrap().complete(1, u64::MAX);
        assert!(is_kept(&b), "the second replay is not over");
        b.world.lock().unwrap().complete(2, u64::MAX);
        assert!(!is_kept(&b));
        b.finish();
    }
}

#[test]
fn a_heap_that_was_set_aside_serves_no_stream_that_has_ended_since() {
    for mapping in [true, false] {
        let (mut b, p) = bench(mapping);
        set_aside(&mut b, p);
        stream_ends(&b.pond, 1);
        b.world.lock().unwrap().complete(1, u64::MAX);
        b.pond.stats(None).unwrap(); // asks what is over
        let pool = b.pond.ground().pools().live(p).unwrap();
        let heaps = |pool: &Pool| {
            let streams = pool.streams();
            (streams.heaps.len(), streams.orphans.len(), streams.detached.len())
        };
        assert_eq!(heaps(pool), (0, 1, 0), "another stream may have that number by now");
        b.finish();
    }
}

#[test]
fn a_request_that_needs_memory_set_aside_waits_for_the_replay() {
    // The last one asks for a segment of its own.
    let ways = [
        (true, Some(2), 64),
        (true, None, 64),
        (false, Some(2), 64),
        (false, None, 64),
        (false, Some(2), 32),
    ];
    for (mapping, stream, max_chunk) in ways {
        let mut b = Bench::new(Config { max_chunk: max_chunk << 20, ..config(mapping, 64 << 20) });
        let p = b.pond.pool_create(0, false).unwrap();
        set_aside(&mut b, p);
        b.alloc(PoolId::DEFAULT, stream, 40 << 20).unwrap();
        {
            let w = b.world.lock().unwrap();
            assert!(w.passed(1, w.streams[&1].queued), "the replay is over");
        }
        b.pond.pool_destroy(p).unwrap();
        b.finish();
    }
}

#[test]
fn what_needs_a_wait_stays_pending_until_the_capture_ends() {
    let (mut b, p) = bench(true);
    b.world.lock().unwrap().streams.entry(1).or_default();
    let i = b.alloc(PoolId::DEFAULT, Some(2), 1 << 20).unwrap();
    let u = b.alloc(PoolId::DEFAULT, None, 1 << 20).unwrap();
    b.pond.record_stream(b.live[i].offset, 1).unwrap();
    b.live[i].uses.push(1);
    let id = begin(&b, p, 1);
    b.free(u.max(i), None);
    b.free(u.min(i), None);
    let active = |b: &Bench| b.pond.stats(None).unwrap().active.current;
    while WaitingBlocks::of(b.pond.ground()).wait_for_one(None) {}
    assert_eq!(active(&b), 2 << 20, "a captured stream cannot be asked how far it is");
    end(&b, id, 1);
    assert_eq!(active(&b), 2 << 20, "its work is still queued");
    while WaitingBlocks::of(b.pond.ground()).wait_for_one(None) {}
    assert_eq!(active(&b), 0);
    b.pond.captures().release(id).unwrap();
    b.finish();
}

#[test]
fn a_capture_only_grows_and_the_device_is_not_waited_for() {
    let (mut b, p) = bench(true);
    let i = b.alloc(PoolId::DEFAULT, Some(2), 60 << 20).unwrap();
    b.free(i, None);
    let id = begin(&b, p, 1);
    assert_eq!(b.pond.alloc(PoolId::DEFAULT, 1, 8 << 20).unwrap_err().code(), Code::OutOfMemory);
    b.alloc_as(PoolId::DEFAULT, p, Some(1), 4 << 20).unwrap();
    assert_eq!(b.pond.empty_cache(None).unwrap_err().code(), Code::Busy);
    assert_eq!(b.pond.captures().add(id, 1).unwrap_err().code(), Code::Busy);
    b.pond.captures().add(id, 3).unwrap();
    b.world.lock().unwrap().recording.insert(3);
    assert_eq!(b.pond.captures().begin(p, 3).unwrap_err().code(), Code::Busy);
    b.world.lock().unwrap().recording.clear();
    b.pond.captures().release(id).unwrap(); // abandoned: it need not be ended
    assert_eq!(b.pond.captures().add(id, 4).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(b.pond.captures().begin(PoolId::DEFAULT, 1).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(b.pond.captures().begin(p, 0).unwrap_err().code(), Code::InvalidArgument);
    b.pond.empty_cache(None).unwrap();
    b.finish();
}

/// But nothing of the captured stream itself, whose replays may be on another one, and nothing that a graph uses.
#[test]
fn a_captured_request_takes_what_is_idle_in_other_pools() {
    let (mut b, p) = bench(true);
    let q = b.pond.pool_create(0, false).unwrap();
    let kept = b.pond.captures().keep(q).unwrap();
    for (pool, stream, granules) in [(PoolId::DEFAULT, 1, 10), (PoolId::DEFAULT, 2, 10), (q, 3, 10)] {
        b.alloc(pool, Some(stream), granules * G).unwrap();
    }
    while !b.live.is_empty() {
        b.free(0, None);
    }
    let id = begin(&b, p, 1);
    let asks = |b: &mut Bench, n| b.alloc_as(PoolId::DEFAULT, p, Some(1), n * G).map(drop);
    asks(&mut b, 2).unwrap(); // what the device has left
    assert_eq!(asks(&mut b, 1).unwrap_err().code(), Code::OutOfMemory, "none of it is idle");
    for stream in [2, 3] {
        b.world.lock().unwrap().complete(stream, u64::MAX);
    }
    asks(&mut b, 4).unwrap();
    asks(&mut b, 6).unwrap();
    assert_eq!(asks(&mut b, 1).unwrap_err().code(), Code::OutOfMemory);
    end(&b, id, 1);
    while !b.live.is_empty() {
        b.free(0, None);
    }
    [id, kept].into_iter().for_each(|id| b.pond.captures().release(id).unwrap());
    b.finish();
}

#[test]
fn a_capture_that_nobody_announced_is_not_disturbed() {
    let (mut b, _) = bench(true);
    let i = b.alloc(PoolId::DEFAULT, Some(2), 30 << 20).unwrap();
    let j = b.alloc(PoolId::DEFAULT, Some(1), 30 << 20).unwrap();
    b.free(i.max(j), None);
    b.free(i.min(j), None);
    b.world.lock().unwrap().recording.insert(1);
    // Neither from the captured stream's heap nor to it; no mark, no wait.
    assert_eq!(b.pond.alloc(PoolId::DEFAULT, 1, 50 << 20).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!(b.pond.alloc(PoolId::DEFAULT, 2, 50 << 20).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!(b.pond.empty_cache(None).unwrap_err().code(), Code::Busy);
    b.world.lock().unwrap().recording.clear();
    b.alloc(PoolId::DEFAULT, Some(2), 50 << 20).unwrap();
    b.finish();
}

#[test]
fn segments_freed_during_a_capture_go_back_after_it() {
    let mut c = config(false, 64 << 20);
    c.max_chunk = 8 << 20;
    let mut b = Bench::new(c);
    let p = b.pond.pool_create(0, false).unwrap();
    let i = b.alloc(PoolId::DEFAULT, Some(1), 20 << 20).unwrap();
    let id = begin(&b, p, 2);
    b.free(i, None);
    assert!(b.world.lock().unwrap().taken >= 20 << 20);
    let j = b.alloc(p, Some(2), 20 << 20).unwrap();
    b.free(j, None);
    b.world.lock().unwrap().complete(1, u64::MAX);
    end(&b, id, 2);
    let taken = b.world.lock().unwrap().taken;
    assert!((20 << 20..40 << 20).contains(&taken), "the eager one went, the captured one stays: {taken}");
    b.pond.ground().backing.sync_all().unwrap();
    b.pond.captures().release(id).unwrap();
    assert_eq!(b.world.lock().unwrap().taken, 0);
    b.finish();
}

#[test]
fn a_use_that_has_ended_does_not_wait_for_the_free() {
    for event in [false, true] {
        let mut b = Bench::new(config(true, 64 << 20));
        let run = |b: &Bench, q: u64| b.world.lock().unwrap().complete(1, q);
        let i = b.alloc(PoolId::DEFAULT, Some(0), 3 << 20).unwrap();
        let at = b.live[i].offset;
        b.pond.record_stream(at, 1).unwrap();
        b.live[i].uses.push(1);
        b.end_use(i, 1, event);
        let end = b.live[i].ended[0].1;
        b.world.lock().unwrap().streams.get_mut(&1).unwrap().queued += 5; // more work, without the block
        b.free(i, None);
        let j = b.alloc(PoolId::DEFAULT, Some(0), 3 << 20).unwrap();
        assert_ne!(b.live[j].offset, at, "the use has not ended yet");
        b.free(j, None);
        run(&b, end);
        assert_eq!(b.pond.stats(None).unwrap().active.current, 0, "not the free, the end of the use counts");
        // A point that is passed already leaves nothing to wait for, and no mark behind.
        let i = b.alloc(PoolId::DEFAULT, Some(0), 3 << 20).unwrap();
        b.pond.record_stream(b.live[i].offset, 1).unwrap();
        b.world.lock().unwrap().streams.get_mut(&1).unwrap().done = u64::MAX;
        b.end_use(i, 1, event);
        assert!(b.world.lock().unwrap().marks.is_empty());
        let calls =
            b.pond.ground().maps.desc(b.pond.ground().maps.find(b.live[i].offset).unwrap().id).state();
        assert_eq!(calls & super::super::desc::USES, 0, "its free is an ordinary one");
        b.finish();
    }
}

#[test]
fn a_use_may_go_on_after_its_end() {
    let mut b = Bench::new(config(true, 64 << 20));
    let i = b.alloc(PoolId::DEFAULT, Some(0), 3 << 20).unwrap();
    b.end_use(i, 1, false);
    b.end_use(i, 1, false); // a later end takes the place of the earlier one
    b.end_use(i, 2, true);
    assert_eq!(b.world.lock().unwrap().marks.len(), 2);
    b.pond.record_stream(b.live[i].offset, 1).unwrap();
    b.live[i].uses.push(1);
    b.world.lock().unwrap().streams.get_mut(&1).unwrap().queued += 1;
    stream_ends(&b.pond, 2); // the mark stays valid
    assert_eq!(b.pond.end_use(b.live[i].offset + 512, 1, None).unwrap_err().code(), Code::UnknownPointer);
    b.free(i, Some(1));
    assert_eq!(b.pond.stats(None).unwrap().active.current, 3 << 20);
    b.finish();
}
