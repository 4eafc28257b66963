//! A program's operations on streams, events, pools, scopes and limits.

use super::api::{self, Event, Stream};
use super::gpu;
use super::model::{EventOf, PoolOf};
use super::program::{OPTIONS, Op, What};
use super::run::{MAIN, Run, after, remove};
use super::world::{Clock, world};
use millpond::Code;
use millpond::capi::*;
use millpond::runtime::{self, EventKind, History, HistoryOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

const BUSY: &[u32] = &[MILLPOND_E_BUSY];
/// After so many entries a thread owns the heap that it has entered, and has a fast path there.
const WARM: usize = 36;

impl Run {
    pub fn other(self: &Arc<Run>, op: Op) {
        // These are a thread's own.
        let own =
            [What::ScopeBegin, What::ScopeEnd, What::CaptureBegin, What::CaptureEnd, What::CaptureRelease];
        if own.contains(&op.what) && self.kind.cuda.is_some() && !MAIN.get() {
            return;
        }
        let [a, b, c, ..] = op.n;
        let slot = a as usize;
        match op.what {
            What::StreamNew if slot > 0 => self.stream_new(slot),
            What::StreamEnd if slot > 0 => self.stream_end(slot, true),
            What::StreamSync => self.stream_sync(a),
            What::StreamQuery => self.stream_query(a),
            What::EventNew => self.event_new(slot),
            What::EventRecord => self.event_record(slot, b),
            What::EventWait => self.event_wait(slot, b),
            What::EventSync => self.event_sync(slot),
            What::EventEnd => self.event_end(slot),
            What::DeviceSync => self.device_sync(),
            What::EmptyCache => self.empty(None, 0),
            What::EmptyPool => self.empty(Some(slot), 0),
            What::TrimTo => self.empty(Some(slot).filter(|_| c == 0), b as usize),
            What::PoolNew if slot > 0 => self.pool_new(slot),
            What::PoolEnd if slot > 0 => self.pool_end(slot, false),
            What::PoolRelease if slot > 0 => self.pool_end(slot, true),
            What::PoolLimit => self.limit(Some(slot), b),
            What::Limit => self.limit(None, a),
            What::SetOption => {
                self.m().options = true;
                if let Err(e) = self.d.set_options(OPTIONS[slot]) {
                    self.refused("an option", &e, BUSY);
                }
            }
            What::ScopeBegin => self.scope(Some(slot)),
            What::ScopeEnd => self.scope(None),
            What::CaptureBegin if b > 0 && c > 0 => self.capture(slot, b as usize, c),
            What::CaptureEnd => self.capture_end(slot),
            What::Replay => self.replay(slot, None),
            What::ReplayOn => self.replay(slot, Some(b)),
            What::CaptureRelease => self.capture_release(slot),
            What::CheckpointNew => self.checkpoint(slot, b as usize),
            What::Restore => self.restore(slot),
            What::CheckpointEnd => {
                if let Some(k) = self.m().checkpoints[slot].take() {
                    let _ = api::outcome(unsafe { millpond_checkpoint_destroy(api::ptr(k.checkpoint.0)) });
                }
            }
            What::Sleep => self.sleep(slot, b > 0),
            What::Wake => self.wake(slot),
            What::Stats => self.stats(),
            What::Foreign if slot > 0 => self.foreign(slot, b, c == 0),
            What::ThreadStream if slot > 0 => self.thread_stream(slot),
            What::Vanish if slot > 0 => self.stream_end(slot, false),
            _ => {}
        }
    }

    pub fn warm(&self, slot: usize, pool: usize, stream: u64, bytes: u64) {
        for _ in 0..WARM {
            {
                let m = self.m();
                if m.blocks[slot].is_some() || m.making.contains(&slot) {
                    return;
                }
            }
            self.alloc(slot, pool, Some(stream), bytes, false);
            if self.m().blocks[slot].is_none() {
                return;
            }
            self.free(slot, Some(stream), false);
        }
    }

    pub fn history(&self, few: bool) {
        let device = runtime::by_id(self.d.0 as u32).unwrap();
        let was = self.m().history.take();
        let Some(alone) = was else {
            let options = HistoryOptions { events: if few { 16 } else { 1 << 12 }, ..Default::default() };
            match device.history_start(&options) {
                Ok(()) => {
                    let mut m = self.m();
                    m.history = Some(!m.beside);
                }
                // Another operation was beside this one.
                Err(e) if e.code() == Code::Busy => {}
                Err(e) => self.tell(format!("a history does not begin: {e}")),
            }
            return;
        };
        let told = match device.history() {
            Ok(told) => told,
            Err(e) => return self.tell(format!("a history is not there: {e}")),
        };
        // What was under way as it began, or is now, may be left out.
        if alone && !self.m().beside && told.dropped == 0 {
            self.check_history(&told);
        }
        if let Err(e) = device.history_stop() {
            self.tell(format!("a history does not end: {e}"));
        }
    }

    /// At each address, blocks come and go in turn.
    fn check_history(&self, told: &History) {
        let mut lives = BTreeMap::new();
        for e in told.events.iter().map(|e| e.event).filter(|e| !e.host) {
            let now = match e.kind {
                EventKind::Alloc | EventKind::FreeRefused => true,
                EventKind::FreeRequested => false,
                _ => continue,
            };
            if lives.insert(e.address, now) == Some(now) {
                self.tell(format!("what a history tells does not come in turn: {e:?}"));
            }
        }
    }

    fn stream_new(&self, slot: usize) {
        if self.m().streams[slot].is_some() {
            return;
        }
        match self.d.try_stream() {
            Ok(s) => {
                let mut m = self.m();
                let cuda = self.kind.cuda.is_some();
                let known = cuda.then(|| gpu::key(0, s.0 as u64));
                let made = known.map(|key| world().adopt(s.0 as u64, 0, key, false));
                let line = made.or_else(|| world().line_of(s.0 as u64));
                if line.is_none() {
                    world().violate("a stream is made that the device does not know");
                }
                if m.streams[slot].is_none() {
                    m.streams[slot] = line;
                }
            }
            Err(e) => self.refused("a new stream", &e, &[]),
        }
    }

    fn stream_end(&self, slot: usize, told: bool) {
        let (line, handle) = {
            let mut m = self.m();
            let m = &mut *m;
            let w = world();
            let Some((line, handle)) = m.stream_of(&w, slot as u64) else { return };
            if m.using_lines.contains(&line) || m.recorded(line).is_some() || !told && !w.lines[line].foreign
            {
                return;
            }
            if w.lines[line].thread {
                m.streams[slot] = None;
                return;
            }
            let mut tell = Vec::new();
            for b in m.blocks.iter().flatten() {
                if b.line != Some(line) && b.open_uses(&w, None).contains(&line) {
                    if b.busy {
                        return;
                    }
                    tell.push((b.at, b.pinned));
                }
            }
            drop(w);
            for (at, pinned) in tell {
                if self.tell_use(at, Stream(handle as usize), pinned).is_err() {
                    return;
                }
                let b = m.blocks.iter_mut().flatten().find(|b| b.at == at).unwrap();
                b.open.insert(line);
                b.ended.remove(&line);
            }
            m.streams[slot] = None;
            (line, handle)
        };
        let foreign = world().lines[line].foreign;
        let done = match foreign {
            true => self.end_foreign(line, handle, told),
            false => self.d.end_stream(Stream(handle as usize)),
        };
        if let Err(e) = &done {
            self.refused("the end of a stream", e, &[]);
        }
        if self.kind.cuda.is_some() {
            let mut w = world();
            (w.lines[line].ended, w.lines[line].vanished) = (done.is_ok(), foreign && !told);
        }
        let mut m = self.m();
        // A device that fails may have ended it or not.
        if world().lines[line].alive {
            if m.streams[slot].is_none() && done.is_err() {
                m.streams[slot] = Some(line);
            } else if done.is_ok() && !crate::time::meanwhile() {
                self.violate("a stream was ended, and the device has it still");
            }
            return;
        }
        for b in m.blocks.iter_mut().flatten() {
            if b.open.remove(&line) {
                b.sure.insert(line);
            }
        }
    }

    pub fn violate(&self, what: impl Into<String>) {
        world().violate(what);
    }

    /// A stream of a slot, not to be ended meanwhile; none where a capture forbids it.
    pub fn stream(&self, s: u64) -> Option<(usize, Stream)> {
        let mut m = self.m();
        let (line, handle) = m.stream_of(&world(), s)?;
        if world().lines[line].device != 0 || m.recorded(line).is_some() || m.any_recorded() && line == 0 {
            return None;
        }
        m.using_lines.push(line);
        Some((line, Stream(handle as usize)))
    }

    pub fn done_with(&self, line: usize) {
        remove(&mut self.m().using_lines, &line);
    }

    fn stream_sync(&self, s: u64) {
        let Some((line, stream)) = self.stream(s) else { return };
        let before = world().lines[line].queued();
        match self.d.stream_synchronize(stream) {
            Ok(()) if world().lines[line].done < before => {
                self.violate("a stream was waited for, and is not done")
            }
            Ok(()) => {}
            Err(e) => self.refused("a wait for a stream", &e, &[]),
        }
        self.done_with(line);
    }

    fn stream_query(&self, s: u64) {
        let Some((line, stream)) = self.stream(s) else { return };
        let mut done = false;
        let status = unsafe { millpond_stream_query(api::ptr(self.d.0), api::ptr(stream.0), &mut done) };
        match api::outcome(status) {
            Ok(()) => {
                let w = world();
                let truth = w.lines[line].done == w.lines[line].queued();
                drop(w);
                if done && !truth && line != 0 {
                    self.violate("a stream is said to be done, and is not");
                }
            }
            Err(e) => self.refused("a query", &e, &[]),
        }
        self.done_with(line);
    }

    fn event_new(&self, slot: usize) {
        if self.m().events[slot].is_some() {
            return;
        }
        let mut e: C_Event = std::ptr::null_mut();
        match api::outcome(unsafe { millpond_event_create(api::ptr(self.d.0), &mut e) }) {
            Ok(()) => {
                let made = EventOf { event: Event(e.expose_provenance()), clock: Clock::new() };
                self.m().events[slot].get_or_insert(made);
            }
            Err(e) => self.refused("a new event", &e, &[]),
        }
    }

    fn event_record(&self, slot: usize, s: u64) {
        // Its clock has to be known just where it is recorded.
        let Some(e) = self.m().events[slot].clone() else { return };
        if self.m().beside {
            return;
        }
        let Some((line, stream)) = self.stream(s) else { return };
        let clock = world().now(line);
        match self.d.event_record(stream, e.event) {
            Ok(()) => {
                if let Some(e) = &mut self.m().events[slot] {
                    e.clock = clock;
                }
            }
            Err(e) => self.refused("a record of an event", &e, BUSY),
        }
        self.done_with(line);
    }

    fn event_wait(&self, slot: usize, s: u64) {
        let Some(e) = self.m().events[slot].clone() else { return };
        if self.m().beside {
            return;
        }
        let Some((line, stream)) = self.stream(s) else { return };
        match self.d.stream_wait(stream, e.event) {
            Ok(()) if line != 0 && !after(&world(), line, &e.clock) => {
                self.violate("a stream was made to wait for an event, and does not");
            }
            Ok(()) => {}
            Err(e) => self.refused("a wait for an event", &e, &[]),
        }
        self.done_with(line);
    }

    fn event_sync(&self, slot: usize) {
        let Some(e) = self.m().events[slot].clone() else { return };
        if self.m().beside {
            return;
        }
        match self.d.event_synchronize(e.event) {
            Ok(()) if !world().is_over(&e.clock) => {
                self.violate("an event was waited for, and is not passed")
            }
            Ok(()) => {}
            Err(e) => self.refused("a wait for an event", &e, &[]),
        }
    }

    fn event_end(&self, slot: usize) {
        if self.m().beside {
            return;
        }
        let Some(e) = self.m().events[slot].take() else { return };
        if let Err(e) = self.d.end_event(e.event) {
            self.refused("the end of an event", &e, &[]);
        }
    }

    fn device_sync(&self) {
        if self.m().any_recorded() {
            return;
        }
        let all = world().all();
        match self.d.synchronize() {
            Ok(()) if !world().is_over(&all) => self.violate("the device was waited for, and is not done"),
            Ok(()) => {}
            Err(e) => self.refused("a wait for the device", &e, &[]),
        }
    }

    /// Down to so many bytes; 0: by the call that keeps none.
    fn empty(&self, slot: Option<usize>, keep: usize) {
        let recorded = self.m().any_recorded();
        let done = match slot {
            None if keep > 0 => self.d.trim_to(keep),
            None => self.d.empty_cache(),
            Some(slot) => {
                let Some(p) = self.pool(slot) else { return };
                let done = if keep > 0 { p.pool.trim_to(keep) } else { p.pool.empty_cache() };
                self.pool_done(p);
                done
            }
        };
        if let Err(e) = done {
            let right: &[u32] = if recorded || self.m().beside { BUSY } else { &[] };
            self.refused("emptying the cache", &e, right);
        }
    }

    /// A pool of a slot, not to be ended meanwhile.
    pub fn pool(&self, slot: usize) -> Option<PoolOf> {
        let mut m = self.m();
        let p = m.pools[slot]?;
        if m.own_pools.contains(&p.number) {
            return None;
        }
        m.using_pools.push(p.number);
        Some(p)
    }

    pub fn pool_done(&self, p: PoolOf) {
        remove(&mut self.m().using_pools, &p.number);
    }

    fn pool_new(&self, slot: usize) {
        // The slot may be that of a pool that another thread is about to end, and cannot.
        if self.m().pools[slot].is_some() || self.m().beside {
            return;
        }
        let pool = self.d.pool(0);
        let mut m = self.m();
        let number = m.number();
        m.pools[slot].get_or_insert(PoolOf { pool, number, bound: u64::MAX });
    }

    fn pool_end(&self, slot: usize, release: bool) {
        let (p, live, excused) = {
            let mut m = self.m();
            let Some(p) = m.pools[slot] else { return };
            if m.using_pools.contains(&p.number) || m.own_pools.contains(&p.number) {
                return;
            }
            let scoped = m.scopes.iter().any(|s| s.1 == p.number);
            let excused =
                scoped || !m.exports.is_empty() || m.keeps(p.number) || m.any_recorded() || m.beside;
            if release && (m.beside || scoped || m.keeps(p.number)) {
                return;
            }
            m.pools[slot] = None;
            (p, m.live().any(|b| b.pool == p.number), excused)
        };
        let done = if release { p.pool.release() } else { p.pool.destroy() };
        let mut m = self.m();
        match done {
            Ok(()) => {
                // Another thread may have freed them meanwhile.
                let live = live && m.live().any(|b| b.pool == p.number);
                if live && !release {
                    self.violate("a pool with live blocks was destroyed");
                }
                m.released |= release;
                if !live {
                    m.asleep.remove(&p.number);
                }
            }
            Err(e) => {
                if m.pools[slot].is_none() {
                    m.pools[slot] = Some(p);
                }
                drop(m);
                self.refused("the end of a pool", &e, if live || excused { BUSY } else { &[] });
            }
        }
    }

    fn limit(&self, slot: Option<usize>, bytes: u64) {
        if self.m().beside {
            return;
        }
        let bound = |reserved: u64| if bytes == 0 { u64::MAX } else { bytes.max(reserved) };
        match slot {
            None => {
                self.d.set_limit(bytes as usize).unwrap();
                self.m().bound = bound(self.d.stats().reserved_bytes.current);
            }
            Some(slot) => {
                let Some(p) = self.pool(slot) else { return };
                p.pool.set_limit(bytes as usize).unwrap();
                let bound = bound(p.pool.stats().reserved_bytes.current);
                self.m().pools[slot].as_mut().unwrap().bound = bound;
                self.pool_done(p);
            }
        }
        self.m().limited |= bytes > 0;
    }

    fn scope(&self, slot: Option<usize>) {
        if self.m().beside {
            return;
        }
        match slot {
            Some(slot) => {
                let Some(p) = self.pool(slot) else { return };
                if api::outcome(unsafe { millpond_scope_begin(api::ptr(p.pool.0)) }).is_ok() {
                    self.m().scopes.push((p.pool, p.number));
                }
                self.pool_done(p);
            }
            None => {
                let Some((pool, _)) = self.m().scopes.pop() else { return };
                if let Err(e) = api::outcome(unsafe { millpond_scope_end(api::ptr(pool.0)) }) {
                    self.refused("the end of a scope", &e, &[]);
                }
            }
        }
    }
}
