//! The simulated device: which granules exist, what stands behind which address, what each stream has still to do.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So many questions in a row, with no new mark, are a wait.
const PATIENCE: u32 = 300;

/// What another thread does.
pub(super) type Meanwhile = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct World {
    pub(super) real: u32,
    pub(super) created: BTreeSet<u32>,
    pub(super) ties: BTreeMap<u32, u32>, // first granule -> how many, in one piece
    pub(super) shown: BTreeMap<u32, u32>, // address granule -> physical granule
    pub(super) segments: BTreeMap<u64, u64>, // offset -> bytes
    pub(super) taken: u64,
    pub(super) capacity: u64,
    /// [B] the limit that the library was told; 0: none.
    pub(super) limit: u64,
    pub(super) streams: BTreeMap<u64, Stream>,
    pub(super) marks: HashMap<Point, (u64, u64, Waits)>, // stream, queued, what that work waits for
    pub(super) events: HashMap<u64, (u64, u64, Waits)>,  // the caller's
    pub(super) recording: BTreeSet<u64>,                 // captured streams
    pub(super) next_mark: Point,
    pub(super) asked: u32, // questions after marks since the last mark was made
    /// It loses patience sooner: who asks again and again does so slower and slower.
    pub(super) is_impatient: bool,
    pub(super) calls: u64,
    pub(super) fail_alias: bool,
    /// It never says that anything is done, and must be waited for: a plugin may be so.
    pub(super) mute: bool,
    pub(super) fail_create: bool,
    pub(super) fail_release: bool,
    /// No stream can be made to wait for another one.
    pub(super) fail_wait: bool,
    /// The nth call from now fails, once; 0: none does.
    pub(super) fail_nth: u32,
    /// It fails for lack of memory.
    pub(super) fail_full: bool,
    /// From then on all calls fail.
    pub(super) fail_on: bool,
    pub(super) failed: bool,
    /// Which call was the first one to fail so.
    pub(super) failed_in: &'static str,
    /// One call in so many fails, once; 0: none does.
    pub(super) fail_one_in: u64,
    pub(super) dice: u64,
    /// Several threads ask at once: a point may just have been given back.
    pub(super) threads: bool,
    pub(super) content: HashMap<u32, u64>, // by granule; 0 where there is none
    pub(super) saved: HashMap<u32, u64>,
    /// What another thread does while the device is waited for, the nth time from now.
    pub(super) meanwhile: VecDeque<(u32, Meanwhile)>,
    /// What another thread does in the midst of the next call of that name.
    pub(super) amid: Option<(&'static str, Meanwhile)>,
    /// What another thread does in the midst of the nth call from now. It has a moment for it, then the call goes on.
    pub(super) meeting: Option<(u32, Meanwhile)>,
    /// That long from the start of the other thread, instead of until it is done or 20 ms are over.
    pub(super) moment: Option<Duration>,
    /// It is over when this ends.
    pub(super) met: Option<std::thread::JoinHandle<()>>,
    /// Granules that work is on: with what was queued on stream 2 then.
    pub(super) in_flight: Vec<(u32, u64)>,
}
#[derive(Default)]
pub(super) struct Stream {
    pub(super) queued: u64,
    /// What was queued when the program queued something last: what came after it are waits.
    pub(super) work: u64,
    pub(super) done: u64,
    pub(super) waits: Waits,
}
pub(super) type Waits = BTreeMap<u64, u64>; // other stream -> queued there
impl World {
    /// Physical ranges behind an address range.
    pub(super) fn behind(&self, offset: u64, bytes: u64) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        if !self.segments.is_empty() {
            let (&o, &n) = self.segments.range(..=offset).next_back().expect("a segment");
            assert!(offset + bytes <= o + n, "block runs past its segment");
            return vec![(offset, bytes)];
        }
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let stop = end.min((at / G + 1) * G);
            let g = (at / G) as u32;
            let p = if g < self.real { g } else { *self.shown.get(&g).expect("address is mapped") };
            assert!(self.created.contains(&p), "granule {p} exists");
            out.push((u64::from(p) * G + at % G, stop - at));
            at = stop;
        }
        out
    }
    /// Whether all of a range of addresses has memory.
    pub(super) fn is_there(&self, offset: u64, bytes: u64) -> bool {
        if let Some((&o, &n)) = self.segments.range(..=offset).next_back() {
            return offset + bytes <= o + n;
        }
        let mut granules = (offset / G..(offset + bytes).div_ceil(G)).map(|g| g as u32);
        granules.all(|g| {
            let behind = if g < self.real { Some(&g) } else { self.shown.get(&g) };
            behind.is_some_and(|p| self.created.contains(p))
        })
    }
    fn is_known(&self, mark: Point) -> Result<()> {
        match self.threads && !self.marks.contains_key(&mark) {
            true => Err(Error::new(Code::Device, "the point was given back")),
            false => Ok(()),
        }
    }
    /// The tie of a granule.
    pub(super) fn tie_of(&self, granule: u32) -> Option<(u32, u32)> {
        let (&at, &n) = self.ties.range(..=granule).next_back()?;
        (granule < at + n).then_some((at, n))
    }
    /// A call on a stream that is captured, or on stream 0 while any is, would spoil the capture.
    pub(super) fn legal(&self, stream: u64) {
        assert!(!self.recording.contains(&stream), "a call on captured stream {stream}");
        assert!(stream != 0 || self.recording.is_empty(), "a call on stream 0 during a capture");
    }
    pub(super) fn rests(&self, granule: u32) {
        let busy = self.in_flight.iter().any(|&(g, q)| g == granule && !self.passed(2, q));
        assert!(!busy, "granule {granule} is taken away while work is on it");
    }
    /// The program queues something on the stream. Returns what is queued there.
    pub(super) fn work(&mut self, stream: u64) -> u64 {
        let st = self.streams.entry(stream).or_default();
        st.queued += 1;
        st.work = st.queued;
        st.work
    }
    pub(super) fn passed(&self, s: u64, q: u64) -> bool {
        self.streams.get(&s).is_none_or(|s| s.done >= q)
    }
    /// The stream runs up to `q`, and so does what it waits for.
    pub(super) fn complete(&mut self, s: u64, q: u64) {
        let Some(st) = self.streams.get_mut(&s) else { return };
        if st.done >= q {
            return;
        }
        st.done = q;
        for (t, v) in st.waits.clone() {
            self.complete(t, v);
        }
    }
}

pub(super) struct Sim(pub Arc<Mutex<World>>);
impl Sim {
    fn world(&self) -> std::sync::MutexGuard<'_, World> {
        check_unlocked(Called::Device);
        self.0.lock().unwrap()
    }
    /// Whether this call is the one in which another thread does something.
    fn meet(&self) {
        let mut w = self.world();
        w.meeting.iter_mut().for_each(|m| m.0 -= 1);
        let Some((_, f)) = w.meeting.take_if(|m| m.0 == 0) else { return };
        let moment = w.moment;
        drop(w);
        let (tell, told) = std::sync::mpsc::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let begins = begun.clone();
        let met = std::thread::spawn(move || {
            begins.store(true, Ordering::Relaxed);
            f();
            _ = tell.send(());
        });
        match moment {
            None => _ = told.recv_timeout(Duration::from_millis(20)), // it may have to wait for this thread
            Some(moment) => {
                while !begun.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let since = Instant::now();
                while since.elapsed() < moment {
                    std::hint::spin_loop(); // a sleep would take longer
                }
            }
        }
        self.world().met = Some(met);
    }
    /// Whether this call is the one that fails.
    fn fails(&self, call: &'static str) -> Result<()> {
        self.meet();
        let mut w = self.world();
        if w.fail_nth > 0 {
            w.fail_nth -= 1;
            if w.fail_nth == 0 {
                w.failed_in = if w.failed { w.failed_in } else { call };
                w.failed = true;
                w.fail_nth = u32::from(w.fail_on);
                let code = if w.fail_full { Code::OutOfMemory } else { Code::Device };
                return Err(Error::new(code, "simulated failure"));
            }
        }
        w.dice = w.dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (one_in, dice, threads) = (w.fail_one_in, w.dice >> 33, w.threads);
        drop(w);
        if threads {
            std::thread::yield_now(); // a call takes its time
        }
        if one_in > 0 && dice.is_multiple_of(one_in) {
            return Err(Error::new(Code::Device, "simulated failure, by chance"));
        }
        Ok(())
    }
    fn amid(&self, call: &str) {
        let due = self.world().amid.take_if(|a| a.0 == call);
        if let Some((_, f)) = due {
            std::thread::spawn(f).join().unwrap();
        }
    }
}
impl Points for Sim {
    fn passed(&self, mark: Point) -> Result<bool> {
        self.fails("passed")?;
        let mut w = self.world();
        w.is_known(mark)?;
        let &(s, q, _) = &w.marks[&mark];
        if w.mute {
            return Ok(false);
        }
        w.asked += 1;
        if w.asked > if w.is_impatient { PATIENCE / 20 } else { PATIENCE } {
            // Who does nothing but ask waits, and a device works meanwhile.
            w.asked = 0;
            w.complete(s, q);
        }
        Ok(w.passed(s, q))
    }
    fn wait(&self, stream: u64, mark: Point) -> Result<()> {
        self.fails("wait")?;
        let mut w = self.world();
        w.legal(stream);
        if w.fail_wait {
            return Err(Error::new(Code::Device, "simulated failure to wait"));
        }
        w.is_known(mark)?;
        let (s, q, mut all) = w.marks[&mark].clone();
        all.insert(s, q.max(all.get(&s).copied().unwrap_or(0)));
        let st = w.streams.entry(stream).or_default();
        st.queued += 1; // the wait itself is work, though not the program's
        let waits = &mut st.waits;
        for (s, q) in all {
            let e = waits.entry(s).or_default();
            *e = q.max(*e);
        }
        Ok(())
    }
    fn sync(&self, mark: Point) -> Result<()> {
        self.fails("sync")?;
        let mut w = self.world();
        w.is_known(mark)?;
        let &(s, q, _) = &w.marks[&mark];
        w.complete(s, q);
        Ok(())
    }
    fn forget(&self, mark: Point) {
        assert!(self.0.lock().unwrap().marks.remove(&mark).is_some(), "mark forgotten twice");
    }
}
impl Backing for Sim {
    fn create(&self, first: u32, count: u32) -> Result<()> {
        self.fails("create")?;
        let mut w = self.world();
        w.calls += 1;
        if w.fail_create || w.taken + u64::from(count) * G > w.capacity {
            return Err(Error::new(Code::OutOfMemory, "simulated device is full"));
        }
        w.taken += u64::from(count) * G;
        assert!(w.limit == 0 || w.taken <= w.limit, "{} B are taken, which are more than the limit", w.taken);
        for g in first..first + count {
            assert!(g < w.real && w.created.insert(g), "granule {g} made twice");
            w.content.remove(&g);
        }
        Ok(())
    }
    fn create_tied(&self, first: u32, count: u32, each: u32) -> Result<()> {
        self.create(first, count)?;
        for at in (first..first + count).step_by(each as usize) {
            assert_eq!(self.world().ties.insert(at, each.min(first + count - at)), None);
        }
        Ok(())
    }
    fn release(&self, first: u32, count: u32) -> Result<()> {
        self.fails("release")?;
        let mut w = self.world();
        w.calls += 1;
        for g in first..first + count {
            if let Some((at, n)) = w.tie_of(g) {
                assert!(first <= at && at + n <= first + count, "a part of tie {at} of {n} is released");
            }
        }
        if w.fail_release {
            return Err(Error::new(Code::Device, "simulated release failure"));
        }
        w.taken -= u64::from(count) * G;
        for g in first..first + count {
            assert!(w.created.remove(&g), "granule {g} released, but it is not there");
            w.rests(g);
            assert!(!w.shown.values().any(|&p| p == g), "granule {g} released while shown elsewhere");
            w.ties.remove(&g);
        }
        Ok(())
    }
    fn discard(&self, first: u32, count: u32) {
        // Tried again until it goes.
        let fails = std::mem::take(&mut self.world().fail_release);
        while self.release(first, count).is_err() {}
        self.world().fail_release = fails;
    }
    fn discard_view(&self, offset: u64, bytes: u64) {
        while self.unalias(offset, bytes).is_err() {}
    }
    fn alias(&self, offset: u64, first: u32, count: u32) -> Result<()> {
        self.fails("alias")?;
        let mut w = self.world();
        w.calls += 1;
        if w.fail_alias {
            return Err(Error::new(Code::Device, "simulated mapping failure"));
        }
        for i in 0..count {
            assert!(w.created.contains(&(first + i)));
            let (at, n) = w.tie_of(first + i).unwrap_or((first + i, 1));
            assert!(first <= at && at + n <= first + count, "a part of tie {at} of {n} is shown elsewhere");
            assert_eq!(w.shown.insert((offset / G) as u32 + i, first + i), None, "address mapped twice");
        }
        Ok(())
    }
    fn unalias(&self, offset: u64, bytes: u64) -> Result<()> {
        self.fails("unalias")?;
        let mut w = self.world();
        w.calls += 1;
        let edge = |at: u64| w.shown.get(&((at / G) as u32)).map(|&p| (p, w.tie_of(p).unwrap_or((p, 1))));
        let (first, last) = (edge(offset), edge(offset + bytes - G));
        assert!(first.is_none_or(|(p, (at, _))| p == at), "a part of a tie is hidden");
        assert!(last.is_none_or(|(p, (at, n))| p + 1 == at + n), "a part of a tie is hidden");
        for i in 0..bytes / G {
            let shown = w.shown.remove(&((offset / G + i) as u32));
            w.rests(shown.expect("unmapped what was not mapped"));
        }
        Ok(())
    }
    fn save(&self, first: u32, count: u32) -> Result<()> {
        self.fails("save")?;
        let w = &mut *self.world();
        for g in first..first + count {
            assert!(w.created.contains(&g));
            w.saved.insert(g, w.content.get(&g).copied().unwrap_or(0));
        }
        Ok(())
    }
    fn load(&self, first: u32, count: u32) -> Result<()> {
        self.fails("load")?;
        let w = &mut *self.world();
        (first..first + count).for_each(|g| _ = w.content.insert(g, w.saved[&g]));
        Ok(())
    }
    fn drop_saved(&self, first: u32, count: u32) {
        let w = &mut *self.world();
        (first..first + count).for_each(|g| assert!(w.saved.remove(&g).is_some(), "dropped twice"));
    }
    fn segment(&self, offset: u64, bytes: u64) -> Result<()> {
        self.fails("segment")?;
        let mut w = self.world();
        w.calls += 1;
        if w.fail_create || w.taken + bytes > w.capacity {
            return Err(Error::new(Code::OutOfMemory, "simulated device is full"));
        }
        w.taken += bytes;
        w.segments.insert(offset, bytes);
        Ok(())
    }
    fn segment_release(&self, offset: u64, bytes: u64) -> Result<()> {
        self.amid("segment_release");
        self.fails("segment_release")?;
        let mut w = self.world();
        w.calls += 1;
        if w.fail_release {
            return Err(Error::new(Code::Device, "simulated release failure"));
        }
        assert_eq!(w.segments.remove(&offset), Some(bytes));
        w.rests((offset / G) as u32);
        w.taken -= bytes;
        Ok(())
    }
    fn mark(&self, stream: u64, _: bool) -> Result<Option<Point>> {
        self.fails("mark")?;
        self.amid("mark");
        let mut w = self.world();
        w.legal(stream);
        let st = w.streams.entry(stream).or_default();
        let known = (stream, st.queued, st.waits.clone());
        w.next_mark += 1;
        w.asked = 0;
        let m = w.next_mark;
        w.marks.insert(m, known);
        Ok(Some(m))
    }
    fn borrow_event(&self, event: u64) -> Result<Option<Point>> {
        self.fails("borrow_event")?;
        let mut w = self.world();
        let known = w.events[&event].clone();
        w.next_mark += 1;
        let m = w.next_mark;
        w.marks.insert(m, known);
        Ok(Some(m))
    }
    fn capturing(&self, stream: u64) -> bool {
        self.world().recording.contains(&stream)
    }
    fn sync_all(&self) -> Result<()> {
        self.fails("sync_all")?;
        let mut w = self.world();
        assert!(w.recording.is_empty(), "the device is waited for during a capture");
        for s in w.streams.values_mut() {
            s.done = s.queued;
        }
        w.meanwhile.iter_mut().for_each(|m| m.0 -= 1);
        let due = if w.meanwhile.front().is_some_and(|m| m.0 == 0) { w.meanwhile.pop_front() } else { None };
        drop(w);
        if let Some((_, f)) = due {
            f();
        }
        Ok(())
    }
    fn sync_stream(&self, stream: u64) -> Result<()> {
        self.fails("sync_stream")?;
        let mut w = self.world();
        let q = w.streams.get(&stream).map_or(0, |s| s.queued);
        w.complete(stream, q);
        Ok(())
    }
    fn idle(&self) -> bool {
        let w = self.world();
        w.recording.is_empty() && w.streams.values().all(|s| s.done == s.queued)
    }
    fn knows(&self, _: u64) -> bool {
        self.amid("knows");
        true
    }
    fn streams(&self, each: &mut dyn FnMut(u64)) {
        let all: Vec<u64> = self.world().streams.keys().copied().collect();
        all.into_iter().for_each(each);
    }
}
