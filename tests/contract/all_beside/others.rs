//! What goes on beside the workers: sleep, captures, checkpoints, settings. Each is a thread.

use super::*;

impl Shared {
    /// A pool that sleeps and wakes; some of its blocks are freed by others meanwhile.
    pub(super) fn sleeper(&self, seed: u64) {
        let (d, mut r) = (self.d, Random(seed | 1));
        let (pool, stream) = (d.pool(0), d.stream());
        let mut all: Vec<Block> = Vec::new();
        let mut pinned = None;
        while !self.stop.load(SeqCst) {
            for _ in 0..r.below(8) {
                let stamp = 1 + r.below(250) as u8;
                all.extend(self.alloc(pool, stream, Self::size(&mut r).min(4 * MIB), stamp));
            }
            self.sure(|| d.stream_synchronize(stream));
            if r.below(5) == 0 && pinned.is_none() {
                let mut c = null_mut();
                self.may(outcome(unsafe { millpond_capture_keep(ptr(pool.0), &mut c) }), &[]);
                pinned = Some(Capture(c.expose_provenance()));
            } else if r.below(3) == 0 {
                pinned.take().into_iter().for_each(|c: Capture| self.sure(|| c.release()));
            }
            let keep = r.below(2) == 0;
            let codes = [MILLPOND_E_BUSY, MILLPOND_E_OUT_OF_MEMORY];
            let slept = self.may(pool.sleep(keep), &codes);
            // After a refusal a part may sleep.
            if slept || self.moody {
                self.did[SLEPT].fetch_add(u64::from(slept), SeqCst);
                if r.below(2) == 0 && !all.is_empty() {
                    let b = all.swap_remove(r.below(all.len()));
                    self.sure(|| free(b.at));
                }
                std::thread::sleep(Duration::from_micros(r.below(2000) as u64));
                while let Err(e) = pool.wake() {
                    if !slept && e.code == MILLPOND_E_NOT_PERMITTED {
                        break;
                    }
                    self.may(Err(e), &codes);
                    // Blocks may be freed, so that there is memory for it one day.
                    let posted = self.post.lock().unwrap().pop();
                    posted.into_iter().for_each(|b| self.free(&mut r, b, false));
                    if let Some(b) = all.pop() {
                        self.sure(|| free(b.at));
                    }
                    std::thread::yield_now();
                }
                self.did[WOKE].fetch_add(1, SeqCst);
                if !keep {
                    for b in &all {
                        places(b.at, b.bytes).iter().for_each(|&(at, n)| d.fill(stream, at, b.stamp, n));
                    }
                    self.sure(|| d.stream_synchronize(stream));
                }
            }
            all.iter().for_each(|b| self.look(b));
            while all.len() > 12 || !all.is_empty() && r.below(3) != 0 {
                let b = all.swap_remove(r.below(all.len()));
                self.free(&mut r, b, true);
            }
        }
        pinned.into_iter().for_each(|c: Capture| self.sure(|| c.release()));
        all.into_iter().for_each(|b| self.free(&mut r, b, true));
        self.release(pool);
        self.sure(|| d.end_stream(stream));
    }

    /// Captures, and replays: what the graph has written lies where nobody else has memory.
    pub(super) fn capturer(&self, seed: u64) {
        let (d, mut r) = (self.d, Random(seed | 1));
        while !self.stop.load(SeqCst) {
            let (pool, stream) = (d.pool(0), d.stream());
            let mut graphs = Vec::new();
            for _ in 0..1 + r.below(3) {
                let capture = self.sure(|| pool.capture(stream));
                let (mut live, mut freed) = (Vec::new(), Vec::new());
                for _ in 0..1 + r.below(10) {
                    let bytes = Self::size(&mut r);
                    let named = [pool, d.default_pool()][r.below(2)];
                    match named.alloc(bytes, stream) {
                        Ok(at) => live.push((at, bytes)),
                        Err(e) => _ = self.may(Err(e), &[MILLPOND_E_OUT_OF_MEMORY]),
                    }
                    if r.below(2) == 0 && !live.is_empty() {
                        let (at, bytes) = live.swap_remove(r.below(live.len()));
                        self.sure(|| pool.free(at, stream));
                        freed.push((at, bytes));
                    }
                }
                self.sure(|| capture.end());
                self.did[CAPTURED].fetch_add(1, SeqCst);
                graphs.push((capture, live, freed));
            }
            for _ in 0..r.below(4) {
                // A replay writes into all that any of them has had; live blocks keep what is written last.
                for (n, (_, live, freed)) in graphs.iter().enumerate() {
                    for &(at, bytes) in freed.iter().chain(live) {
                        // A fill would refuse what is free.
                        d.call(stream, move || {
                            places(at, bytes).iter().for_each(|&(at, n)| poke(at, 251, n))
                        });
                    }
                    let stamp = 252 + n as u8;
                    for &(at, bytes) in live {
                        places(at, bytes).iter().for_each(|&(at, n)| d.fill(stream, at, stamp, n));
                    }
                }
                std::thread::sleep(Duration::from_micros(r.below(500) as u64));
            }
            self.sure(|| d.stream_synchronize(stream));
            for (capture, live, _) in graphs {
                live.iter().for_each(|&(at, _)| self.sure(|| free(at)));
                match r.below(2) {
                    0 => self.sure(|| capture.release()),
                    _ => self.sure(|| outcome(unsafe { millpond_capture_release_async(ptr(capture.0)) })),
                }
            }
            self.release(pool);
            self.sure(|| d.end_stream(stream));
        }
    }

    /// A pool that goes back to what it was; nobody else uses it.
    pub(super) fn keeper(&self, seed: u64) {
        let (d, mut r) = (self.d, Random(seed | 1));
        while !self.stop.load(SeqCst) {
            let (pool, stream) = (d.pool(0), d.stream());
            let mut all: Vec<Block> = Vec::new();
            for _ in 0..1 + r.below(12) {
                let stamp = 1 + r.below(250) as u8;
                all.extend(self.alloc(pool, stream, Self::size(&mut r).min(4 * MIB), stamp));
            }
            for _ in 0..r.below(4) {
                if all.len() > 1 {
                    let b = all.swap_remove(r.below(all.len()));
                    self.free(&mut r, b, true);
                }
            }
            let then = pool.checkpoint();
            for _ in 0..1 + r.below(3) {
                // From here on: some go, and some come.
                let mut gone: Vec<usize> = Vec::new();
                let mut now = all.clone();
                let mut came: Vec<Block> = Vec::new();
                for _ in 0..r.below(10) {
                    if r.below(2) == 0 && !now.is_empty() {
                        let b = now.swap_remove(r.below(now.len()));
                        gone.push(b.at);
                        self.free(&mut r, b, true);
                    } else {
                        let stamp = 1 + r.below(250) as u8;
                        came.extend(self.alloc(pool, stream, Self::size(&mut r).min(4 * MIB), stamp));
                    }
                }
                std::thread::sleep(Duration::from_micros(r.below(500) as u64));
                self.sure(|| d.stream_synchronize(stream));
                let restored = pool.restore(then);
                match restored {
                    Ok(live) => {
                        self.did[RESTORED].fetch_add(1, SeqCst);
                        assert!(live.iter().all(|at| gone.contains(at)), "seed {}", self.seed);
                        now.iter().for_each(|b| self.look(b));
                        for b in &all {
                            assert_eq!(block(b.at).unwrap(), (b.at, b.bytes), "seed {}", self.seed);
                            places(b.at, b.bytes).iter().for_each(|&(at, n)| d.fill(stream, at, b.stamp, n));
                        }
                        let is = pool.stats();
                        let sum: usize = all.iter().map(|b| b.bytes).sum();
                        assert_eq!(is.requested_bytes.current, sum as u64, "seed {}", self.seed);
                    }
                    Err(e) => {
                        // Others have its memory, or there is none for what it needs.
                        let may = [MILLPOND_E_NOT_PERMITTED, MILLPOND_E_OUT_OF_MEMORY, MILLPOND_E_BUSY];
                        self.may(Err(e), &may);
                        now.extend(came);
                        all = now;
                        break;
                    }
                }
            }
            self.sure(|| outcome(unsafe { millpond_checkpoint_destroy(ptr(then.0)) }));
            all.into_iter().for_each(|b| self.free(&mut r, b, true));
            self.release(pool);
            self.sure(|| d.end_stream(stream));
        }
    }

    /// Limits and options change, and a history comes and goes.
    pub(super) fn setter(&self, seed: u64, other: Device) {
        let (d, mut r) = (self.d, Random(seed | 1));
        let mut tells = false;
        while !self.stop.load(SeqCst) {
            match r.below(11) {
                8.. => {
                    let (new, n) = (d.stream(), r.below(3));
                    let old = std::mem::replace(&mut self.common.lock().unwrap()[n], new);
                    let micros = r.below(900) as u64;
                    d.call(old, move || std::thread::sleep(Duration::from_micros(micros)));
                    std::thread::sleep(Duration::from_micros(r.below(300) as u64));
                    self.sure(|| d.end_stream(old));
                }
                0 => {
                    let to = [0, 40, 56, 72][r.below(4)] * MIB;
                    self.sure(|| d.set_limit(to))
                }
                1 => {
                    let to = [0, 30, 50][r.below(3)] * MIB;
                    self.sure(|| d.default_pool().set_limit(to))
                }
                2 => {
                    let to = "garbage_collection_threshold:0.5";
                    self.sure(|| d.set_options(to))
                }
                3 => {
                    let to = "garbage_collection_threshold:0.9,max_split_size_mb:21";
                    self.sure(|| d.set_options(to))
                }
                4 => {
                    let to = ["", "roundup_power2_divisions:4"][r.below(2)];
                    self.sure(|| d.set_options(to))
                }
                5 if !tells && self.seed % 4 == 2 => {
                    self.sure(|| outcome(unsafe { millpond_device_history_start(ptr(d.0), null()) }));
                    tells = true;
                }
                6 if tells => {
                    self.sure(|| outcome(unsafe { millpond_device_history_stop(ptr(d.0), null_mut()) }));
                    tells = false;
                }
                // A copy of another device uses a block of this one, and the other way round.
                7 => {
                    let s = other.stream();
                    if let Ok(p) = d.alloc(5000) {
                        let q = self.sure(|| other.alloc(5000));
                        poke(p, 7, 5000);
                        poke(q, 7, 5000);
                        other.call(s, || std::thread::sleep(Duration::from_micros(300)));
                        other.fill(s, q, 7, 5000);
                        let copied = unsafe {
                            millpond_copy_peer_async(ptr(d.0), ptr(p), ptr(other.0), ptr(s.0), ptr(q), 5000)
                        };
                        self.sure(|| outcome(copied));
                        self.sure(|| free(p));
                        self.sure(|| other.default_pool().free(q, s));
                    }
                    self.sure(|| other.end_stream(s));
                }
                _ => {}
            }
            self.did[SET].fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_micros(r.below(1500) as u64));
        }
        if tells {
            self.sure(|| outcome(unsafe { millpond_device_history_stop(ptr(d.0), null_mut()) }));
        }
        self.sure(|| d.set_limit(0));
        self.sure(|| d.default_pool().set_limit(0));
    }
}
