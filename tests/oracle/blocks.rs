//! A program's operations on blocks: it allocates, uses, records and frees them, itself and in stream callbacks.

use super::api::{self, Stream};
use super::model::{Block, Model};
use super::run::{IN_CALLBACK, MAIN, Run, after, remove, said};
use super::time;
use super::world::{self, Work, World, world};
use millpond::capi::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl Run {
    pub fn alloc(&self, slot: usize, pool: usize, stream: Option<u64>, bytes: u64, write: bool) {
        let (handle, asked, target, native) = {
            let mut m = self.m();
            let m = &mut *m;
            let Some(p) = m.pools[pool] else { return };
            if m.blocks[slot].is_some() || !m.making.insert(slot) {
                return;
            }
            let (mut target, mut native) = (None, 0);
            if let Some(s) = stream {
                let Some((line, handle)) = m.stream_of(&world(), s) else {
                    m.making.remove(&slot);
                    return;
                };
                if world().lines[line].device != 0 {
                    m.making.remove(&slot);
                    return;
                }
                // On a thread's own default stream it is memory without a stream.
                let thread = world().lines[line].thread;
                (target, native) = ((!thread).then_some(line), handle);
                m.using_lines.extend(target);
            }
            let asked = m.served_by(p.number, target, MAIN.get());
            // A graph's stream may get what its replays use: they come before.
            let disordered = m.disordered(&world(), asked, target);
            if m.own_pools.contains(&asked) || disordered {
                m.making.remove(&slot);
                if target.is_some() {
                    m.using_lines.pop();
                }
                return;
            }
            m.using_pools.push(asked);
            (p.pool, asked, target, native)
        };
        let slow = self.slow_before(bytes, target.is_none());
        let got = match stream {
            Some(_) => handle.alloc(bytes as usize, Stream(native as usize)),
            None => self.d.alloc(bytes as usize),
        };
        self.slow_after(slow);
        let mut m = self.m();
        let m = &mut *m;
        m.making.remove(&slot);
        if let Some(line) = target {
            remove(&mut m.using_lines, &line);
        }
        remove(&mut m.using_pools, &asked);
        let at = match got {
            Ok(at) => at,
            Err(e) => {
                let asleep = m.asleep.contains(&asked);
                m.granules.refused(target);
                if e.code == MILLPOND_E_OUT_OF_MEMORY && !asleep {
                    *m.refused.entry(asked).or_default() += 1;
                    let free = m.limited
                        || m.beside
                        || m.faulty
                        || m.options
                        || !self.kind.maps
                        || self.kind.tie > 0;
                    let kept = m.captures.iter().any(Option::is_some)
                        || !m.exports.is_empty()
                        || !m.asleep.is_empty()
                        || m.released;
                    // Where few pieces can be shown, there may be no place for those that are missing; and freed blocks
                    // that wait need numbers, too.
                    let numbers = self.kind.numbers.is_some_and(|most| {
                        let waiting = m.granules.waiting(&world()) as u64;
                        !e.message.contains("keep track") || waiting > most / 8
                    });
                    let kept = kept || numbers;
                    let need = m.footprint() + bytes.next_multiple_of(world::GRANULE);
                    if !free && !kept && !IN_CALLBACK.get() && need <= self.kind.capacity as u64 {
                        self.tell(format!(
                            "{bytes} bytes are refused although there is memory: {}",
                            e.message
                        ));
                    }
                    return;
                }
                let right: &[u32] = if asleep { &[MILLPOND_E_NOT_PERMITTED] } else { &[] };
                let right = right.to_vec();
                let explained = m.faulty && matches!(e.code, MILLPOND_E_DEVICE | MILLPOND_E_SYSTEM);
                let callback = IN_CALLBACK.get() && e.code == MILLPOND_E_NOT_PERMITTED;
                if !right.contains(&e.code) && !explained && !callback && !m.beside {
                    self.tell(format!("a request fails with code {}: {}", e.code, e.message));
                }
                return;
            }
        };
        let mut w = world();
        if m.asleep.contains(&asked) && !m.beside {
            w.violate("a pool that sleeps serves a request");
        }
        let tag = 0x7A6_0000_0000 + m.number();
        let capture = target.and_then(|l| m.recorded(l)).map(|c| c.number);
        let mut b = Block {
            line: target,
            born: target.map_or(Vec::new(), |l| w.now(l)),
            capture,
            ..Block::new(at, bytes as usize, asked, tag)
        };
        let unit = self.kind.plugin.map_or(512, |p| p.min_chunk.next_power_of_two());
        if at % unit != 0 {
            w.violate(format!("a block at {at:#x} is not aligned to {unit}"));
        }
        if let Some(text) = m.wrong_place(&w, &b) {
            w.violate(text);
        }
        m.granules.made(&w, &b);
        if w.trace {
            eprintln!("    -> {at:#x} of pool {asked}");
        }
        if w.violation.is_none() && write {
            match target {
                // Work of the NULL stream would wait for all; the host may write where no stream is named.
                Some(0) if self.kind.cuda.is_none() => {}
                Some(line) => self.queue(m, &mut w, &mut b, line),
                None if self.kind.cuda.is_some() => {}
                None => self.host_writes(&mut w, &mut b),
            }
            if let Some(line) = b.line {
                b.born = w.now(line);
            }
        }
        m.blocks[slot] = Some(b);
    }

    fn host_writes(&self, w: &mut World, b: &mut Block) {
        b.written = b.bytes >= 16;
        for place in [b.at, b.at + b.bytes.max(16) - 8] {
            if b.written {
                let p: *mut u64 = std::ptr::with_exposed_provenance_mut(place);
                unsafe { p.write_unaligned(b.tag) };
            }
        }
        let _ = w;
    }

    /// Work on a block, at the end of a stream; recorded into the graph, where one is captured.
    fn queue(&self, m: &mut Model, w: &mut World, b: &mut Block, line: usize) {
        if let Some(c) = m.captures.iter_mut().flatten().find(|c| !c.ended && c.line == line) {
            c.spans.push((b.at, b.bytes));
            c.places.extend(w.places(b.at, b.bytes));
            return;
        }
        let own = b.line.is_none_or(|l| l == line);
        let check = b.capture.is_none() && (b.written || own && b.line.is_some() && b.uses.is_empty());
        w.queue(line, Work::Use { at: b.at, bytes: b.bytes, tag: b.tag, look: b.written, check });
        if check && b.bytes >= 16 && !b.written {
            b.written = true;
            b.born = w.now(line);
        }
        b.uses.insert(line, w.lines[line].queued());
    }

    pub fn free(&self, slot: usize, on: Option<u64>, twice: bool) {
        let (b, stream) = {
            let mut m = self.m();
            let m = &mut *m;
            let w = world();
            let Some(b) = m.blocks[slot].clone().filter(|b| !b.busy && !m.own_pools.contains(&b.pool)) else {
                return;
            };
            let stream = match on {
                None => None,
                Some(s) => match m.stream_of(&w, s) {
                    Some(s) => Some(s),
                    None => return,
                },
            };
            let stream = stream.filter(|_| !b.pinned);
            if !self.tell_uses(m, w, slot, stream.map(|s| s.0)) {
                return;
            }
            m.using_pools.push(b.pool);
            m.using_lines.extend(stream.map(|s| s.0));
            // From here on its memory may be another's.
            m.making.insert(slot);
            let freed = m.blocks[slot].as_ref().filter(|b| !b.pinned).cloned();
            let now = world();
            freed.into_iter().for_each(|b| m.granules.freed(&now, &b, stream.map(|s| s.0)));
            drop(now);
            (m.blocks[slot].take().unwrap(), stream)
        };
        let done = match stream {
            _ if b.pinned => api::outcome(unsafe { millpond_host_free(api::ptr(self.d.0), api::ptr(b.at)) }),
            Some((_, handle)) => self.d_pool().free(b.at, Stream(handle as usize)),
            None => api::free(b.at),
        };
        if twice && !b.pinned && done.is_ok() && !self.m().beside {
            match api::free(b.at) {
                Ok(()) => self.tell("a second free of the same block succeeds"),
                Err(e) => {
                    self.refused("a second free", &e, &[MILLPOND_E_DOUBLE_FREE, MILLPOND_E_UNKNOWN_POINTER])
                }
            }
        }
        let mut m = self.m();
        m.making.remove(&slot);
        remove(&mut m.using_pools, &b.pool);
        if let Some((line, _)) = stream {
            remove(&mut m.using_lines, &line);
        }
        if let Err(e) = done {
            m.blocks[slot] = Some(b);
            drop(m);
            self.refused("a free", &e, &[]);
        }
    }

    fn d_pool(&self) -> api::Pool {
        self.m().pools[0].unwrap().pool
    }

    /// Tells the library of the uses of a block that it does not know. Whether the block may be freed then.
    fn tell_uses(&self, m: &mut Model, w: world::Held, slot: usize, on: Option<usize>) -> bool {
        let b = m.blocks[slot].as_ref().unwrap();
        let open = b.open_uses(&w, on);
        let handles: Vec<_> =
            open.iter().map(|&l| (w.meant(l), w.lines[l].alive, w.lines[l].handle)).collect();
        let (at, pinned) = (b.at, b.pinned);
        drop(w);
        for (lines, alive, handle) in handles {
            // On most devices this calls none.
            if !alive || self.tell_use(at, Stream(handle as usize), pinned).is_err() {
                return false;
            }
            let b = m.blocks[slot].as_mut().unwrap();
            for line in lines {
                b.open.insert(line);
                b.ended.remove(&line);
            }
        }
        true
    }

    pub fn use_block(self: &Arc<Run>, slot: usize, s: u64) {
        let (b, line, handle) = {
            let mut m = self.m();
            let m = &mut *m;
            let w = world();
            let Some(b) = m.blocks[slot].clone().filter(|b| !b.busy) else { return };
            let Some((line, handle)) = m.stream_of(&w, s) else { return };
            if m.asleep.contains(&b.pool) || m.own_pools.contains(&b.pool) {
                return;
            }
            if line == 0 && m.any_recorded() {
                return;
            }
            let recorded = m.recorded(line).map(|c| c.number);
            // A block of the capture's stream and pool may be older than the capture.
            let older = m.recorded(line).is_some_and(|c| b.line == Some(line) && b.pool == c.pool);
            let other = recorded.is_some() && b.capture != recorded && !older;
            if b.capture.is_some() && b.line != Some(line) || other {
                return;
            }
            m.blocks[slot].as_mut().unwrap().busy = true;
            m.using_lines.push(line);
            (b, line, handle)
        };
        let ready = self.order(&b, line, handle);
        let at_once = line == 0 && self.kind.cuda.is_none();
        if ready && at_once {
            time::run_all(true);
        }
        let mut m = self.m();
        let m = &mut *m;
        remove(&mut m.using_lines, &line);
        let mut b = m.blocks[slot].take().unwrap();
        b.busy = false;
        if ready {
            let mut w = world();
            self.queue(m, &mut w, &mut b, line);
        }
        m.blocks[slot] = Some(b);
        if ready && at_once {
            let count = world().lines[0].queued();
            time::run_to(0, count);
        }
    }

    /// Makes the stream wait for a block's own, unless it has; whether its next work comes after the block's birth.
    pub fn order(&self, b: &Block, line: usize, handle: u64) -> bool {
        let Some(own) = b.line.filter(|&l| l != line) else { return true };
        let (from, far) = {
            let m = self.m();
            let w = world();
            if after(&w, line, &b.born) {
                return true;
            }
            if m.recorded(own).is_some()
                || m.recorded(line).is_some()
                || m.any_recorded() && (own == 0 || line == 0)
            {
                return false;
            }
            if !w.lines[own].alive || m.beside {
                return false;
            }
            (w.lines[own].handle, w.lines[line].device != 0)
        };
        let at = if far { self.second.unwrap() } else { self.d };
        let done = self.d.event_record(Stream(from as usize), self.join);
        let done = done.and_then(|()| at.stream_wait(Stream(handle as usize), self.join));
        if let Err(e) = done {
            self.refused("an order of two streams", &e, &[MILLPOND_E_BUSY]);
            return false;
        }
        let mut w = world();
        let ordered = after(&w, line, &b.born);
        if !ordered && line != 0 {
            w.violate("a stream was made to wait for another, and does not");
        }
        ordered || line == 0 && self.kind.cuda.is_none()
    }

    pub fn host(&self, slot: usize) {
        let mut m = self.m();
        let asleep = m.asleep.clone();
        let Some(b) =
            m.blocks[slot].as_mut().filter(|b| !b.busy && b.line.is_none() && !asleep.contains(&b.pool))
        else {
            return;
        };
        if self.kind.cuda.is_some() {
            return;
        }
        let mut w = world();
        if b.written && b.bytes >= 16 {
            let p: *const u64 = std::ptr::with_exposed_provenance(b.at);
            let seen = unsafe { p.read_unaligned() };
            if seen != b.tag {
                w.violate(format!("the host finds {seen:#x} in the block of tag {:#x}", b.tag));
            }
        } else if b.uses.is_empty() {
            self.host_writes(&mut w, b);
        }
    }

    pub fn record(&self, slot: usize, s: u64, end: Option<Option<u64>>) {
        let pinned;
        let (at, stream, line, point, event) = {
            let mut m = self.m();
            let m = &mut *m;
            let w = world();
            let Some((line, handle)) = m.stream_of(&w, s) else { return };
            if m.beside || m.recorded(line).is_some() || m.any_recorded() && line == 0 {
                return;
            }
            let queued = w.lines[line].queued();
            let Some(b) = m.blocks[slot].as_mut().filter(|b| !b.busy && !m.own_pools.contains(&b.pool))
            else {
                return;
            };
            if b.pinned && end.is_some() {
                return;
            }
            let last = b.uses.get(&line).copied().unwrap_or(0);
            let (point, event) = match end {
                None => (None, None),
                Some(None) => (Some(queued), None),
                Some(Some(event)) => {
                    let Some(e) = m.events[event as usize].clone() else { return };
                    let there = e.clock.get(line).copied().unwrap_or(0);
                    if last > there && w.lines[line].done < last {
                        return;
                    }
                    (Some(there.max(last)), Some(e.event))
                }
            };
            b.busy = true;
            pinned = b.pinned;
            (b.at, Stream(handle as usize), line, point, event)
        };
        let done = match (point, event) {
            (None, _) => self.tell_use(at, stream, pinned),
            (_, None) => api::record_end(at, stream),
            (_, Some(event)) => api::record_end_at(at, stream, event),
        };
        if let Err(e) = &done {
            self.refused("a record", e, &[MILLPOND_E_BUSY]);
        }
        let mut m = self.m();
        let Some(b) = m.blocks[slot].as_mut() else { return };
        b.busy = false;
        let w = world();
        // A block without a stream waits for all of its device anyhow.
        let nothing = b.line.is_none() && !b.pinned && w.lines[line].device == 0;
        if done.is_err() || nothing || b.line == Some(line) {
            return;
        }
        for other in w.meant(line) {
            match point {
                None => {
                    b.open.insert(other);
                    b.ended.remove(&other);
                }
                Some(point) => {
                    b.open.remove(&other);
                    let thread = w.lines[line].thread;
                    b.ended.insert(other, if thread { w.lines[other].queued() } else { point });
                }
            }
        }
    }

    pub fn tell_use(&self, at: usize, stream: Stream, pinned: bool) -> api::Outcome<()> {
        if !pinned {
            return api::record_stream(at, stream);
        }
        api::outcome(unsafe {
            millpond_host_record_stream(api::ptr(self.d.0), api::ptr(at), api::ptr(stream.0))
        })
    }

    /// A stream calls the host, which frees the block of the slot, if it has no stream, or makes one.
    pub fn callback(self: &Arc<Run>, slot: usize, s: u64, bytes: u64) {
        let handle = {
            let m = self.m();
            let w = world();
            let Some((line, handle)) = m.stream_of(&w, s) else { return };
            if line == 0 || w.lines[line].device != 0 || m.recorded(line).is_some() || m.beside {
                return;
            }
            handle
        };
        let me = self.clone();
        let body = move || {
            IN_CALLBACK.set(true);
            world().asked = 0; // the callback before this one does not wait
            let there = me.m().blocks[slot].as_ref().map(|b| b.line.is_none() && !b.busy);
            let work = || match there {
                Some(true) => me.free(slot, None, false),
                Some(false) => {}
                None => me.alloc(slot, 0, None, bytes, true),
            };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
                world().violate(format!("a callback panics: {}", said(&*payload)));
            }
            IN_CALLBACK.set(false);
        };
        type Body = Box<dyn FnOnce() + Send>;
        unsafe extern "C-unwind" fn call(data: *mut std::ffi::c_void, _: C_Status) {
            let body = unsafe { Box::from_raw(data.cast::<Body>()) };
            body();
        }
        let data: *mut std::ffi::c_void = Box::into_raw(Box::new(Box::new(body) as Body)).cast();
        let status = unsafe {
            millpond_stream_add_callback(api::ptr(self.d.0), api::ptr(handle as usize), Some(call), data)
        };
        if let Err(e) = api::outcome(status) {
            self.refused("a callback", &e, &[MILLPOND_E_UNSUPPORTED]);
        }
    }
}
