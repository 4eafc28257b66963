//! An observer that writes events into a ring, and the thread that copies them from there to a file, if there is one.
//!
//! A thread that allocates or frees only writes into the ring. Events that the file's thread cannot keep up with are
//! overwritten, and counted when that thread gets there. A *patient* tape, such as a recording, must not lose any: when
//! its ring is half full, the threads that deliver events wait for the file's thread, with no lock held.

use super::format::HistoryEvent;
use super::output::Pace;
use super::stack;
use crate::base::clock::{self, Moment, Span};
use crate::base::error::{Code, Error, Result};
use crate::base::inline::s;
use crate::base::ring::{Lent, Ring, Seen};
use crate::base::room::{CALL_BYTES, check_room};
use crate::base::signals::without_signals;
use crate::base::sync::system::lock;
use crate::base::sync::{pause, system::Mutex};
use crate::base::{fork, loaded};
use crate::runtime::watch::event::{Event, EventKind, Told, WORDS};
use crate::runtime::watch::observe::Observer;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The most callers of an event.
pub(crate) const MOST_FRAMES: usize = 64;

/// How often the thread looks for events.
const LOOK: Duration = Duration::from_millis(5);
/// Buffered events go to the file after this time, or when there are so many bytes.
const FLUSH: Duration = Duration::from_millis(50);
const FLUSH_BYTES: usize = 1 << 18;
/// How long the thread waits for an event that another thread has begun to write, before it counts it as dropped, if
/// later events may be overwritten meanwhile or a caller waits for the file. Otherwise it waits for `PATIENCE`: a thread
/// may not be scheduled for many times this.
const GRACE: Duration = Duration::from_millis(20);
/// The longest wait of a thread that delivers an event to a patient tape, and of the end of the process for each file.
const PATIENCE: Duration = Duration::from_secs(2);
/// At the end of a tape: a file is cancelled that accepts nothing for `STALLED`, or is not done after `LONGEST`.
const STALLED: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);
/// The longest wait of a request that has found no memory for the file.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// How long the thread may take to notice that.
const LEAVING: Duration = Duration::from_secs(1);

/// The format of a file: takes events, and writes them.
pub(crate) trait Sink: Send {
    fn event(&mut self, event: &Event, frames: &[u64]);
    /// So many events are missing at this place.
    fn dropped(&mut self, count: u64);
    /// [B] that are not in the file yet.
    fn waiting(&self) -> usize;
    fn flush(&mut self) -> io::Result<()>;
    /// A request has found no memory: the process may end without a word, and what is written now be the end of the file.
    fn fails(&mut self) {}
    /// The process exits. What its last functions still do may come, and be the end of the file.
    fn exits(&mut self);
    /// Nothing comes after this.
    fn finish(&mut self) -> io::Result<()>;
}

/// See the file's head.
pub(crate) struct Tape {
    ring: Lent,
    depth: usize,
    patient: bool,
    begun: Moment,
    /// The thread is behind this position.
    taken: AtomicU64,
    /// Events that it has not got.
    lost: AtomicU64,
    stop: AtomicBool,
    /// Requests to bring everything to the file, and how many of them are served.
    asked: AtomicU64,
    served: AtomicU64,
    /// The same, of requests that have found no memory.
    failed: AtomicU64,
    heard: AtomicU64,
    /// The thread has ended, or there is none.
    over: AtomicBool,
    /// Shared with the file, which says when it takes something.
    pace: Arc<Pace>,
    /// How far the file had come when somebody had waited in vain.
    stuck: AtomicU64,
    /// The position behind the last event in the file, less those that it lacks.
    filed: AtomicU64,
    failure: Mutex<Option<String>>,
    thread: OnceLock<Thread>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// Where the number of callers stands among the words: bits 16 to 23 of the second.
const FRAMES_SHIFT: u32 = 16;

impl Observer for Tape {
    fn saw(&self, told: &Told) {
        let mut frames = [0; MOST_FRAMES];
        let count = match told.kind() {
            Some(EventKind::Alloc | EventKind::FreeRequested | EventKind::Oom | EventKind::Annotate) => {
                stack::callers(&mut frames[..self.depth])
            }
            _ => 0,
        };
        let mut words = told.0;
        words[1] |= (count as u64) << FRAMES_SHIFT;
        self.ring.push(&words, &frames[..count]);
    }

    fn ring(&self) -> Option<&'static Ring> {
        (self.depth == 0).then_some(self.ring.ring())
    }

    fn breathes(&self) -> bool {
        self.patient
    }

    fn breathe(&self) {
        if self.behind() > self.ring.capacity() / 2 {
            self.wait_for_room();
        }
    }

    fn failed(&self) {
        if self.over.load(SeqCst) || self.stuck.load(Relaxed) == self.progress() {
            return; // there is no file, or nothing has come of an earlier wait
        }
        let from = self.progress();
        let ask = self.failed.fetch_add(1, SeqCst) + 1;
        let until = Instant::now() + LAST_WORDS;
        while self.heard.load(SeqCst) < ask && !self.over.load(SeqCst) {
            if Instant::now() >= until {
                if self.progress() == from {
                    self.stuck.store(from, Relaxed);
                }
                return;
            }
            self.wake();
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Tape {
    pub(crate) fn new(capacity: usize, depth: usize, patient: bool) -> Result<Arc<Tape>> {
        let depth = depth.min(MOST_FRAMES);
        if depth > 0 {
            stack::callers(&mut [0; 2]); // what the unwinder does only once may allocate
        }
        let ring = Lent::new(capacity, WORDS + depth).map_err(|e| {
            Error::formatted(
                Code::OutOfMemory,
                format_args!("no memory for {capacity} events: {}", e.message()),
            )
        })?;
        clock::start();
        let begun = Moment::now();
        Ok(Arc::new(Tape {
            taken: AtomicU64::new(ring.first()),
            filed: AtomicU64::new(ring.first()),
            ring,
            depth,
            patient,
            begun,
            lost: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            served: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            over: AtomicBool::new(true),
            pace: Arc::default(),
            stuck: AtomicU64::new(u64::MAX),
            failure: Mutex::default(),
            thread: OnceLock::new(),
            handle: Mutex::default(),
        }))
    }

    fn behind(&self) -> u64 {
        self.ring.head().saturating_sub(self.taken.load(Relaxed))
    }

    #[cold]
    fn wait_for_room(&self) {
        let until = Instant::now() + PATIENCE;
        let from = self.progress();
        let mut round = 0;
        while self.behind() > self.ring.capacity() / 4 && !self.over.load(Relaxed) {
            if self.stuck.load(Relaxed) == self.progress() {
                return; // nothing has come of an earlier wait, and nothing has changed
            }
            if Instant::now() >= until {
                if self.progress() == from {
                    self.stuck.store(from, Relaxed);
                }
                return;
            }
            self.wake();
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// Grows whenever the thread or the file comes on.
    fn progress(&self) -> u64 {
        self.taken.load(Relaxed) + self.pace.count()
    }

    fn wake(&self) {
        if let Some(t) = self.thread.get() {
            t.unpark();
        }
    }

    /// The event at a position, whole or not.
    fn event_at(
        &self,
        position: u64,
        times: &Span,
        record: &mut [u64],
    ) -> std::result::Result<(Event, usize), Seen> {
        match self.ring.read(position, record) {
            Seen::Whole => match record.first_chunk().and_then(|words| Told(*words).event_in(times)) {
                Some(e) => {
                    let frames = (record[1] >> FRAMES_SHIFT & 0xFF) as usize;
                    Ok((e, frames.min(record.len() - WORDS)))
                }
                None => Err(Seen::Gone),
            },
            other => Err(other),
        }
    }

    /// What is in the ring up to this moment, the oldest first, and how many events that began earlier are not.
    /// `OutOfMemory` if the host has no memory for the list.
    pub(crate) fn read(&self, text: impl Fn(u64) -> Option<String>) -> Result<(Vec<HistoryEvent>, u64)> {
        let head = self.ring.head();
        let from = head.saturating_sub(self.ring.capacity()).max(self.ring.first());
        let count = (head - from) as usize;
        check_room(
            CALL_BYTES + count * (2 * size_of::<HistoryEvent>() + (self.depth + WORDS) * size_of::<u64>()),
        )?;
        let mut events = Vec::with_capacity(count);
        let mut record = vec![0; WORDS + self.depth];
        let until = Instant::now() + GRACE;
        let times = Span::new(self.begun, Moment::now());
        for position in from..head {
            let mut round = 0;
            let seen = loop {
                match self.event_at(position, &times, &mut record) {
                    Err(Seen::NotYet) if Instant::now() < until => pause(round),
                    other => break other.ok(),
                }
                round += 1;
            };
            if let Some((event, frames)) = seen {
                let frames = record[WORDS..WORDS + frames].to_vec();
                let text = if event.kind == EventKind::Annotate { text(event.address) } else { None };
                events.push(HistoryEvent { event, stamp: record[0], frames, text });
            }
        }
        let dropped = head - self.ring.first() - events.len() as u64;
        Ok((events, dropped))
    }

    /// Starts the thread that brings events to `sink`.
    pub(crate) fn stream_to(self: &Arc<Tape>, mut sink: Box<dyn Sink>) -> Result<()> {
        self.over.store(false, SeqCst);
        flush_at_exit(self);
        loaded::keep();
        let tape = self.clone();
        let builder = std::thread::Builder::new().name("millpond-history".to_owned());
        let handle = without_signals(|| builder.spawn(move || tape.run(&mut *sink))).map_err(|e| {
            self.over.store(true, SeqCst);
            Error::formatted(Code::System, format_args!("no thread to write the history: {e}"))
        })?;
        let _ = self.thread.set(handle.thread().clone());
        *lock(&self.handle) = Some(handle);
        Ok(())
    }

    fn run(&self, sink: &mut dyn Sink) {
        let done = self.write_all(sink);
        if let Err(e) = done {
            lock(&self.failure).get_or_insert(e.to_string());
        }
        self.over.store(true, SeqCst);
    }

    fn write_all(&self, sink: &mut dyn Sink) -> io::Result<()> {
        let mut record = vec![0; WORDS + self.depth];
        let mut flushed = Instant::now();
        let mut since = self.begun;
        self.flush(sink)?; // whose file this is stands in it from the start
        loop {
            let (stop, asked) = (self.stop.load(SeqCst), self.asked.load(SeqCst));
            let failed = self.failed.load(SeqCst);
            let head = self.ring.head();
            let now = Moment::now();
            self.take_until(head, &Span::new(since, now), &mut record, sink)?;
            since = now;
            if stop {
                sink.finish()?;
                self.note_filed();
                return Ok(());
            }
            let exits = asked != self.served.load(Relaxed);
            let fails = failed != self.heard.load(Relaxed);
            if exits || fails || flushed.elapsed() >= FLUSH {
                match exits {
                    true => sink.exits(),
                    false if fails => sink.fails(),
                    false => {}
                }
                self.flush(sink)?;
                flushed = Instant::now();
                self.served.store(asked, SeqCst);
                self.heard.store(failed, SeqCst);
            }
            if self.behind() < self.ring.capacity() / 8 {
                std::thread::park_timeout(LOOK);
            }
        }
    }

    fn take_until(&self, head: u64, times: &Span, record: &mut [u64], sink: &mut dyn Sink) -> io::Result<()> {
        let mut at = self.taken.load(Relaxed);
        let mut missed = 0;
        let mut waits: Option<Instant> = None;
        let mut round = 0;
        while at < head {
            match self.event_at(at, times, record) {
                Ok((event, frames)) => {
                    self.lose(&mut missed, sink);
                    sink.event(&event, &record[WORDS..WORDS + frames]);
                }
                Err(Seen::NotYet) if waits.get_or_insert_with(Instant::now).elapsed() < self.grace(at) => {
                    // What came before it does not wait for it.
                    let for_long = waits.is_some_and(|began| began.elapsed() >= FLUSH);
                    if for_long && self.taken.load(Relaxed) != at {
                        self.lose(&mut missed, sink);
                        self.taken.store(at, Relaxed);
                        self.flush(sink)?;
                    }
                    pause(round);
                    round = round.saturating_add(1);
                    continue;
                }
                Err(_) => missed += 1,
            }
            (waits, round) = (None, 0);
            at += 1;
            if at & 1023 == 0 {
                self.taken.store(at, Relaxed);
                if sink.waiting() >= FLUSH_BYTES {
                    self.lose(&mut missed, sink);
                    self.flush(sink)?;
                }
            }
        }
        self.lose(&mut missed, sink);
        self.taken.store(at, Relaxed);
        Ok(())
    }

    /// How long the event at a position is waited for, which somebody has begun to write. A thread may be stopped for long
    /// between the two steps of a write.
    fn grace(&self, at: u64) -> Duration {
        // Who has stopped it waits, and nobody writes any more.
        let is_asked = || self.stop.load(Relaxed) || self.asked.load(Relaxed) != self.served.load(Relaxed);
        let has_failed = || self.failed.load(Relaxed) != self.heard.load(Relaxed);
        let is_half_full = || self.ring.head().saturating_sub(at) > self.ring.capacity() / 2;
        match !self.patient && (is_half_full() || is_asked() || has_failed()) {
            true => GRACE,
            false => PATIENCE,
        }
    }

    fn flush(&self, sink: &mut dyn Sink) -> io::Result<()> {
        sink.flush()?;
        self.note_filed();
        Ok(())
    }

    fn note_filed(&self) {
        self.filed.store(self.taken.load(Relaxed) - self.lost.load(Relaxed), Relaxed);
    }

    fn lose(&self, missed: &mut u64, sink: &mut dyn Sink) {
        if *missed > 0 {
            self.lost.fetch_add(*missed, Relaxed);
            sink.dropped(std::mem::take(missed));
        }
    }

    /// Ends the thread, once it has everything. Nobody tells the tape any more. How many events the file lacks; `System`
    /// where it could not be written, also since it took nothing for `STALLED`.
    pub(crate) fn stop(&self) -> Result<u64> {
        self.stop.store(true, SeqCst);
        self.wake();
        let handle = lock(&self.handle).take();
        if let Some(h) = handle {
            if !self.ends_in_time() {
                self.pace.give_up();
                let until = Instant::now() + LEAVING;
                self.ends(|| Instant::now() < until);
                let lacks = self.ring.head() - self.filed.load(Relaxed);
                if lacks > 0 {
                    let why = "the file takes nothing, or very little, and was given up";
                    *lock(&self.failure) = Some(format!("{why}: it lacks {lacks} event{}", s(lacks)));
                }
            }
            if self.over.load(SeqCst) {
                let _ = h.join(); // it does not panic
            } // else a file system stands still: the thread has only what is its own, and ends when that goes on
        }
        self.failed()?;
        Ok(self.lost.load(Relaxed))
    }

    /// Waits until the thread ends, but not for a file that takes nothing.
    fn ends_in_time(&self) -> bool {
        let latest = Instant::now() + LONGEST;
        let (mut count, mut since) = (self.progress(), Instant::now());
        self.ends(|| {
            let now = Instant::now();
            if self.progress() != count {
                (count, since) = (self.progress(), now);
            }
            now < latest && now < since + STALLED
        })
    }

    /// Waits until the thread ends, as long as that is worth it.
    fn ends(&self, mut is_worth_it: impl FnMut() -> bool) -> bool {
        let mut round = 0;
        while !self.over.load(SeqCst) && is_worth_it() {
            pause(round);
            round = round.saturating_add(1);
        }
        self.over.load(SeqCst)
    }

    /// Shared with the file.
    pub(crate) fn pace(&self) -> Arc<Pace> {
        self.pace.clone()
    }

    /// Fails where the file could not be written.
    pub(super) fn failed(&self) -> Result<()> {
        match &*lock(&self.failure) {
            Some(why) => Err(Error::new(Code::System, why.clone())),
            None => Ok(()),
        }
    }

    /// The process exits: waits until the file has everything that was told, but not for long.
    fn flush_at_exit(&self) {
        let ask = self.asked.fetch_add(1, SeqCst) + 1;
        let until = Instant::now() + PATIENCE;
        while self.served.load(SeqCst) < ask && !self.over.load(SeqCst) && Instant::now() < until {
            self.wake();
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Tapes with a thread.
static LIVE: Mutex<Vec<Weak<Tape>>> = Mutex::new(Vec::new());
/// In which process, counted in forks.
static BORN: AtomicU64 = AtomicU64::new(0);

/// A program that ends without a word has its files all the same.
fn flush_at_exit(tape: &Arc<Tape>) {
    static ONCE: Once = Once::new();
    BORN.store(fork::count(), Relaxed);
    ONCE.call_once(|| {
        // SAFETY: a plain function of this library, which stays loaded (`loaded::keep` comes before any thread).
        unsafe { libc::atexit(at_exit) };
    });
    let mut live = lock(&LIVE);
    live.retain(|t| t.strong_count() > 0);
    live.push(Arc::downgrade(tape));
}

extern "C" fn at_exit() {
    // A forked child has no such thread, and the file is its parent's.
    if fork::count() != BORN.load(Relaxed) {
        return;
    }
    let live: Vec<_> = lock(&LIVE).iter().filter_map(Weak::upgrade).collect();
    live.iter().for_each(|t| t.flush_at_exit());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what it gets, and what it does not.
    struct Counts(Counted);

    type Counted = Arc<(AtomicU64, AtomicU64)>;

    impl Sink for Counts {
        fn event(&mut self, _: &Event, _: &[u64]) {
            self.0.0.fetch_add(1, SeqCst);
        }
        fn dropped(&mut self, count: u64) {
            self.0.1.fetch_add(count, SeqCst);
        }
        fn waiting(&self) -> usize {
            0
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn exits(&mut self) {}
        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn tape(events: usize) -> Result<(Arc<Tape>, Counted)> {
        let (tape, counts) = (Tape::new(events, 0, false)?, Arc::default());
        tape.stream_to(Box::new(Counts(Arc::clone(&counts))))?;
        Ok((tape, counts))
    }

    fn record() -> [u64; WORDS] {
        Told::new(&Event { bytes: 512, ..Event::new(EventKind::Alloc) }).0
    }

    /// Longer than a thread of a busy machine is usually stopped, and than `GRACE`.
    const STOPPED: Duration = Duration::from_millis(300);

    #[test]
    fn a_thread_that_is_stopped_while_it_writes_loses_no_event() {
        let (tape, counts) = tape(64).unwrap();
        let position = tape.ring.claim();
        tape.ring.push(&record(), &[]);
        std::thread::sleep(STOPPED);
        assert_eq!(counts.0.load(SeqCst), 0, "in order");
        tape.ring.put(position, &record(), &[]);
        assert_eq!(tape.stop().unwrap(), 0);
        assert_eq!((counts.0.load(SeqCst), counts.1.load(SeqCst)), (2, 0));
    }

    /// What others write is not overwritten on account of one that does not come.
    #[test]
    fn a_thread_that_never_writes_takes_no_event_of_others() {
        let (tape, counts) = tape(64).unwrap();
        tape.ring.claim();
        (0..40).for_each(|_| tape.ring.push(&record(), &[]));
        let until = Instant::now() + Duration::from_secs(20);
        while counts.0.load(SeqCst) < 40 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        (0..40).for_each(|_| tape.ring.push(&record(), &[]));
        assert_eq!(tape.stop().unwrap(), 1);
        assert_eq!((counts.0.load(SeqCst), counts.1.load(SeqCst)), (80, 1));
    }

    #[test]
    fn who_waits_for_the_file_does_not_wait_for_a_stopped_thread() {
        let (tape, counts) = tape(64).unwrap();
        tape.ring.claim();
        tape.ring.push(&record(), &[]);
        let begun = Instant::now();
        tape.flush_at_exit();
        assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
        assert_eq!((counts.0.load(SeqCst), counts.1.load(SeqCst)), (1, 1));
        assert_eq!(tape.stop().unwrap(), 1);
    }
}
