//! Compares the account with the model and with what the device has given, and checks that everything comes back at the
//! end of a program.

use super::gpu;
use super::model::PoolOf;
use super::program::{Op, What};
use super::run::Run;
use super::world::world;
use millpond::capi::*;
use std::sync::Arc;

impl Run {
    pub fn stats(&self) {
        let device = self.d.stats();
        let mut m = self.m();
        if m.beside {
            return;
        }
        let pools: Vec<PoolOf> = m.pools.iter().flatten().copied().collect();
        drop(m);
        let each: Vec<_> = pools.iter().map(|p| (*p, p.pool.stats())).collect();
        let device_again = self.d.stats();
        m = self.m();
        let w = world();
        let (taken, trace) = (w.taken, w.trace);
        drop(w);
        let live = |pool: Option<u64>| m.live().filter(move |b| pool.is_none_or(|p| b.pool == p));
        let mut say = |what: String| {
            if trace {
                eprintln!("    device {device:?}\n    pools {each:?}");
            }
            self.violate(what);
        };
        let check = |of: &str, s: &millpond_stats, pool: Option<u64>, say: &mut dyn FnMut(String)| {
            let bytes: u64 = live(pool).map(|b| b.bytes as u64).sum();
            let count = live(pool).count() as u64;
            if (s.requested_bytes.current, s.blocks.current) != (bytes, count) {
                let seen = (s.requested_bytes.current, s.blocks.current);
                say(format!(
                    "{of}: (requested bytes, blocks) are {seen:?} and should be {:?}",
                    (bytes, count)
                ));
            }
            let least = s.requested_bytes.current <= s.allocated_bytes.current
                && s.allocated_bytes.current <= s.active_bytes.current
                && s.active_bytes.current <= s.reserved_bytes.current + s.sleeping_bytes.current;
            if !least {
                say(format!("{of}: requested, allocated, active, reserved do not rise: {s:?}"));
            }
            for c in [s.requested_bytes, s.allocated_bytes, s.active_bytes, s.reserved_bytes, s.blocks] {
                let theirs = self.kind.backend() && c == s.reserved_bytes;
                if !theirs && (c.current > c.peak || c.total < c.peak) {
                    say(format!("{of}: a counter is {c:?}"));
                }
            }
        };
        check("the device's account", &device, None, &mut say);
        for (p, s) in &each {
            check("a pool's account", s, Some(p.number), &mut say);
            if !self.kind.backend() && s.reserved_bytes.current > p.bound {
                say(format!(
                    "a pool has {} bytes of the device, past its limit of {}",
                    s.reserved_bytes.current, p.bound
                ));
            }
        }
        // What a device neither maps nor takes back is lost.
        // The driver's own segments have no round sizes where larger ones were refused.
        let two = world().failed > 1 || self.kind.cuda.is_some() && !self.kind.maps && m.faulty;
        if self.kind.exact && !two && device_again.reserved_bytes.current != taken {
            let reserved = device_again.reserved_bytes.current;
            say(format!("{reserved} bytes are reserved, and the device has given {taken}"));
        }
        // What the driver keeps beyond the blocks is its own.
        if !self.kind.backend() && device.reserved_bytes.current > m.bound {
            say(format!(
                "{} bytes are reserved, past the limit of {}",
                device.reserved_bytes.current, m.bound
            ));
        }
        let all =
            |f: fn(&millpond_stats) -> u64| (f(&device_again), each.iter().map(|(_, s)| f(s)).sum::<u64>());
        for (what, (whole, sum)) in [
            ("requested", all(|s| s.requested_bytes.current)),
            ("allocated", all(|s| s.allocated_bytes.current)),
            ("active", all(|s| s.active_bytes.current)),
            ("reserved", all(|s| s.reserved_bytes.current)),
            ("sleeping", all(|s| s.sleeping_bytes.current)),
        ] {
            // A statistic looks for what has come back, and may bring some.
            let moved = device.active_bytes.current != device_again.active_bytes.current
                || device.reserved_bytes.current != device_again.reserved_bytes.current;
            // Parts of segments that a pool has left behind are nobody's.
            let left = m.released || what == "reserved" && !self.kind.maps;
            if !moved && (sum > whole || !left && sum != whole) {
                say(format!("{what}: the device has {whole}, its pools together {sum}"));
            }
        }
        let refused: u64 = m.refused.values().sum();
        if !m.faulty && device.out_of_memory_count != refused {
            say(format!(
                "{refused} requests found no memory, and {} are counted",
                device.out_of_memory_count
            ));
        }
        for (p, s) in &each {
            let refused = m.refused.get(&p.number).copied().unwrap_or(0);
            if !m.faulty && s.out_of_memory_count != refused {
                say(format!(
                    "{refused} requests to a pool found no memory, and {} are counted",
                    s.out_of_memory_count
                ));
            }
        }
    }

    /// Everything ends, and all memory must be there again.
    pub fn finish(self: &Arc<Run>) {
        let body = || {
            let op = |what, n| self.go(Op { what, n });
            op(What::Mend, [0; 5]);
            while !self.m().exports.is_empty() {
                op(What::ExportEnd, [0; 5]);
            }
            world().take_hook();
            while !self.m().scopes.is_empty() {
                op(What::ScopeEnd, [0; 5]);
            }
            (0..2).for_each(|c| op(What::CaptureRelease, [c; 5]));
            (0..3).for_each(|p| op(What::PoolLimit, [p, 0, 0, 0, 0]));
            op(What::Limit, [0; 5]);
            for p in 0..3 {
                let sleeper = {
                    let m = self.m();
                    m.pools[p as usize].map(|x| x.number).filter(|n| m.asleep.contains(n))
                };
                let Some(number) = sleeper else { continue };
                // What others have taken meanwhile may be needed: they go first.
                let slots = self.m().blocks.len();
                for slot in 0..slots {
                    let other = self.m().blocks[slot].as_ref().is_some_and(|b| b.pool != number);
                    if other {
                        op(What::Free, [slot as u64, 0, 0, 0, 0]);
                    }
                }
                op(What::StepAll, [0; 5]);
                op(What::Wake, [p, 0, 0, 0, 0]);
            }
            op(What::StepAll, [0; 5]); // callbacks may make blocks
            op(What::Stats, [0; 5]);
            let slots = self.m().blocks.len();
            (0..slots as u64).for_each(|b| op(What::Free, [b, 0, 0, 0, 0]));
            op(What::StepAll, [0; 5]);
            op(What::DeviceSync, [0; 5]);
            (1..3).for_each(|p| op(What::PoolEnd, [p, 0, 0, 0, 0]));
            op(What::EmptyCache, [0; 5]);
            if self.kind.cuda.is_some() {
                self.no_pinned_left();
                if gpu::aliases() != 0 {
                    self.violate("memory was used at two addresses where CUDA allows only one");
                }
            }
            let mut w = world();
            if w.violation.is_some() {
                return;
            }
            let taken = w.taken;
            if taken != 0 && w.failed < 2 {
                w.violate(format!(
                    "{taken} bytes do not come back when everything is freed and the cache emptied"
                ));
            }
            drop(w);
            let s = self.d.stats();
            let left = [
                s.requested_bytes,
                s.allocated_bytes,
                s.active_bytes,
                s.reserved_bytes,
                s.blocks,
                s.sleeping_bytes,
            ];
            if left.iter().any(|c| c.current != 0) {
                self.violate(format!("when everything is freed, the account is {s:?}"));
            }
            if self.kind.maps && !self.m().options && world().failed < 2 {
                let room = self.d.room_for(2 << 20);
                if room != self.kind.capacity >> 21 {
                    self.violate(format!("when everything is freed, only {room} granules can be had"));
                }
            }
        };
        if world().violation.is_some() {
            return;
        }
        if let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
            let text = payload.downcast_ref::<String>().cloned().unwrap_or_default();
            world().violate(format!("the end panics: {text}"));
        }
    }
}
