//! A program's operations that only CUDA has: streams that others create and destroy, pinned memory and copies,
//! exports.

use super::api;
use super::gpu;
use super::model::Block;
use super::run::Run;
use super::world::world;
use millpond::capi::*;
use std::os::fd::{FromRawFd, OwnedFd};

/// In place of a pool, of pinned memory.
const HOST: u64 = u64::MAX;

impl Run {
    /// A framework's stream.
    pub fn foreign(&self, slot: usize, flags: u64, far: bool) {
        if self.m().streams[slot].is_some() {
            return;
        }
        let device = i32::from(far && self.second.is_some());
        let handle = gpu::stream_create(device, flags as u32);
        let key = gpu::key(device, handle);
        let line = world().adopt(handle, device, key, true);
        self.m().streams[slot] = Some(line);
    }

    pub fn thread_stream(&self, slot: usize) {
        let line = world().lines.iter().position(|l| l.thread);
        let mut m = self.m();
        m.streams[slot] = m.streams[slot].or(line);
    }

    /// The end of a stream that Millpond did not make.
    pub fn end_foreign(&self, line: usize, handle: u64, tell: bool) -> api::Outcome<()> {
        let device = world().lines[line].device;
        let at = if device == 0 { self.d } else { self.second.unwrap() };
        if tell {
            let status = unsafe { millpond_stream_forget(api::ptr(at.0), api::ptr(handle as usize)) };
            api::outcome(status)?;
        }
        gpu::stream_destroy(device, handle, tell);
        Ok(())
    }

    // ---- pinned memory and copies ------------------------------------------------------------------------------

    pub fn alloc_host(&self, slot: usize, bytes: u64) {
        {
            let mut m = self.m();
            if m.blocks[slot].is_some() || !m.making.insert(slot) {
                return;
            }
        }
        let mut p = std::ptr::null_mut();
        let status = unsafe { millpond_host_alloc(api::ptr(self.d.0), bytes as usize, &mut p) };
        let got = api::outcome(status);
        let mut m = self.m();
        m.making.remove(&slot);
        if let Err(e) = got {
            drop(m);
            return self.refused("a request for pinned memory", &e, &[]);
        }
        let tag = 0x7A6_0000_0000 + m.number();
        let mut w = world();
        let b = Block { pinned: true, ..Block::new(p.expose_provenance(), bytes as usize, HOST, tag) };
        if let Some(text) = m.wrong_place(&w, &b) {
            w.violate(format!("pinned memory: {text}"));
        }
        m.blocks[slot] = Some(b);
    }

    pub fn copy(&self, to: usize, from: usize, s: u64) {
        if to == from || self.m().beside {
            return;
        }
        let Some((line, stream)) = self.stream(s) else { return };
        let two = {
            let m = self.m();
            let fit = |slot: usize| {
                m.blocks[slot].clone().filter(|b| {
                    !b.busy
                        && b.capture.is_none()
                        && !m.asleep.contains(&b.pool)
                        && !m.own_pools.contains(&b.pool)
                })
            };
            fit(to).zip(fit(from))
        };
        let handle = stream.0 as u64;
        // All uses of the memory that is written now must be done before.
        let alone = |b: &Block| {
            let w = world();
            let now = w.now(line);
            b.uses.iter().all(|(&l, &last)| l == line || w.lines[l].done >= last || now[l] >= last)
        };
        let ready =
            |a: &Block, b: &Block| self.order(a, line, handle) && self.order(b, line, handle) && alone(a);
        if let Some((a, b)) = two.filter(|(a, b)| ready(a, b)) {
            let kind = match (a.pinned, b.pinned) {
                (true, true) => return self.done_with(line),
                (true, false) => MILLPOND_COPY_D2H,
                (false, true) => MILLPOND_COPY_H2D,
                (false, false) => MILLPOND_COPY_D2D,
            };
            let bytes = a.bytes.min(b.bytes);
            let status = unsafe {
                millpond_copy_async(
                    api::ptr(self.d.0),
                    api::ptr(stream.0),
                    kind,
                    api::ptr(a.at),
                    api::ptr(b.at),
                    bytes,
                )
            };
            if let Err(e) = api::outcome(status) {
                let blocking = self.m().any_recorded();
                let right: &[u32] = if blocking { &[MILLPOND_E_NOT_PERMITTED] } else { &[] };
                self.refused("a copy", &e, right);
            } else {
                let mut m = self.m();
                let mut w = world();
                w.queued(line, vec![(a.at, bytes), (b.at, bytes)]);
                let last = w.lines[line].queued();
                let meant = w.meant(line);
                for slot in [to, from] {
                    let Some(b) = m.blocks[slot].as_mut() else { continue };
                    b.uses.insert(line, last);
                    // The library knows.
                    b.open.extend(meant.iter().filter(|_| b.pinned));
                }
                m.blocks[to].as_mut().unwrap().written = false;
            }
        }
        self.done_with(line);
    }

    // ---- exports -----------------------------------------------------------------------------------------------

    /// Others get the block: while the ticket is open they have it.
    pub fn export(&self, slot: usize) {
        let Some(b) = self.m().blocks[slot].clone().filter(|b| !b.busy && !b.pinned) else { return };
        if self.m().beside || self.m().asleep.contains(&b.pool) || self.m().own_pools.contains(&b.pool) {
            return;
        }
        let (mut bytes, mut count) = (0, 0);
        let size = unsafe { millpond_export_get_size(api::ptr(b.at), &mut bytes, &mut count) };
        let (mut info, mut fds) = (vec![0_u8; bytes], vec![-1; count]);
        let done = api::outcome(size).and_then(|()| {
            api::outcome(unsafe {
                millpond_export(api::ptr(b.at), info.as_mut_ptr().cast(), bytes, fds.as_mut_ptr(), count)
            })
        });
        if let Err(e) = done {
            return self.refused("an export", &e, &[MILLPOND_E_UNSUPPORTED]);
        }
        let mut fds: Vec<OwnedFd> = fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
        let ticket = fds.swap_remove(0);
        let line = world().import(b.at, b.bytes);
        self.m().exports.push((line, ticket));
    }

    pub fn export_end(&self) {
        let mut m = self.m();
        if m.beside || m.exports.is_empty() {
            return;
        }
        let (line, ticket) = m.exports.remove(0);
        drop(ticket);
        world().let_go(line);
    }

    /// What the cache of pinned memory has at the end: nothing.
    pub fn no_pinned_left(&self) {
        let status = unsafe { millpond_device_empty_host_cache(api::ptr(self.d.0)) };
        let mut s: millpond_host_stats = unsafe { std::mem::zeroed() };
        s.struct_size = size_of::<millpond_host_stats>();
        let asked = unsafe { millpond_device_get_host_stats(api::ptr(self.d.0), &mut s) };
        let done = api::outcome(status).and_then(|()| api::outcome(asked));
        if let Err(e) = done {
            return self.refused("emptying the cache of pinned memory", &e, &[]);
        }
        if s.reserved_bytes.current != 0 || s.pending_bytes != 0 {
            self.violate(format!("when everything is freed, the account of pinned memory is {s:?}"));
        }
    }
}
