//! A world that has been used before, and its model: the live blocks, the contents of their memory, and everything
//! else. An operation changes both; `check` compares them, `end` gives everything back.
//!
//! Work on stream B is held for a moment, so that blocks that it uses wait after their free. It writes into them when
//! it continues, so a block that is handed out too early has wrong contents.

use crate::api::*;
use crate::heap;
use crate::kinds::{Kind, MAX_CHUNK, Opened};
use crate::places::{self, PLACE};
use millpond::capi::*;
use std::ffi::CString;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long B is held up at most: who waits for it waits no longer.
const HELD: Duration = Duration::from_millis(2);

/// A live block.
#[derive(Clone, Debug)]
pub struct Block {
    pub name: &'static str,
    pub at: usize,
    pub bytes: usize,
    /// What it was, or will be, filled with; nothing where its contents do not count.
    pub tag: Option<u8>,
    /// The block is new: it is filled as soon as the device is well.
    pub fill_on: Option<Stream>,
}

type Wrongs = Vec<String>;

pub struct World {
    pub kind: &'static Kind,
    pub o: Opened,
    pub d: Device,
    pub pool: Pool,
    pub own: Pool,
    pub a: Stream,
    pub b: Stream,
    /// An event that A has recorded.
    pub e: Event,
    pub streams: Vec<Stream>,
    pub events: Vec<Event>,
    pub pools: Vec<Pool>,
    pub blocks: Vec<Block>,
    /// Blocks of device 1.
    pub others: Vec<usize>,
    pub host: Vec<(usize, Option<u8>)>,
    pub unified: Vec<usize>,
    pub captures: Vec<Capture>,
    pub checkpoints: Vec<Checkpoint>,
    pub imports: Vec<usize>,
    pub exported: (Vec<u8>, Vec<i32>),
    pub asleep: Vec<Pool>,
    pub has_ended: bool,
    /// The device fails until it is healed.
    pub is_ill: bool,
    /// What has been freed may go later than the call.
    pub frees_later: bool,
    pub scratch: Vec<u8>,
    gate: Arc<(Mutex<bool>, Condvar)>,
    tags: u8,
}

/// The named pool's name.
pub const POOL_NAME: &std::ffi::CStr = c"own";

impl World {
    pub fn new(kind: &'static Kind) -> World {
        let o = (kind.open)();
        let d = o.device;
        let stream = || d.try_stream().unwrap_or(NULL);
        let (a, b, c) = (stream(), stream(), stream());
        let (e, pool) = (d.event(), d.default_pool());
        let options = millpond_pool_options {
            struct_size: size_of::<millpond_pool_options>(),
            limit_bytes: 0,
            name: POOL_NAME.as_ptr(),
            flags: 0,
        };
        let mut own = std::ptr::null_mut();
        outcome(unsafe { millpond_pool_create(ptr(d.0), &options, &mut own) }).unwrap();
        let own = Pool(own.expose_provenance());
        let mut streams = Vec::with_capacity(16);
        streams.extend([a, b].into_iter().filter(|s| *s != NULL));
        let (mut events, mut pools) = (Vec::with_capacity(16), Vec::with_capacity(16));
        events.push(e);
        pools.push(own);
        let mut w = World {
            kind,
            o,
            d,
            pool,
            own,
            a,
            b,
            e,
            streams,
            events,
            pools,
            blocks: Vec::with_capacity(64),
            others: Vec::with_capacity(16),
            host: Vec::with_capacity(16),
            unified: Vec::with_capacity(16),
            captures: Vec::with_capacity(16),
            checkpoints: Vec::with_capacity(16),
            imports: Vec::with_capacity(16),
            exported: (Vec::new(), Vec::new()),
            asleep: Vec::with_capacity(16),
            has_ended: false,
            is_ill: false,
            frees_later: false,
            scratch: vec![7; 1 << 16],
            gate: Arc::default(),
            tags: 0,
        };
        w.use_it(c);
        w
    }

    /// What has been before.
    fn use_it(&mut self, c: Stream) {
        let (d, pool, own, a, b) = (self.d, self.pool, self.own, self.a, self.b);
        for (s, bytes) in [(a, 3000), (a, 3 * MIB), (b, 100_000)] {
            let p = pool.alloc(bytes, s).unwrap();
            pool.free(p, s).unwrap();
        }
        self.took("small", 1000, a, pool.alloc(1000, a)).unwrap();
        self.took("large", 2 * MIB + 5000, a, pool.alloc(2 * MIB + 5000, a)).unwrap();
        self.took("huge", MAX_CHUNK + MIB, a, pool.alloc(MAX_CHUNK + MIB, a)).unwrap();
        self.took("any", MIB + 100, a, d.alloc(MIB + 100)).unwrap();
        self.took("used", MIB, b, pool.alloc(MIB, a)).unwrap();
        self.took("was used", MIB, b, pool.alloc(MIB, a)).unwrap();
        self.took("of c", MIB, c, pool.alloc(MIB, c)).unwrap();
        let of_c = self.blocks.last_mut().unwrap();
        of_c.fill_on = None;
        places::fill(d, c, of_c.at, of_c.tag.unwrap(), MIB);
        self.took("own", MIB + MIB / 2, a, own.alloc(MIB + MIB / 2, a)).unwrap();
        let [u, v] = ["used", "was used"].map(|n| self.at(n));
        record_stream(u, b).unwrap();
        let waiting: Vec<usize> = [MIB, 5000]
            .into_iter()
            .map(|n| pool.alloc(n, a).unwrap())
            .chain([d.alloc(MIB).unwrap()])
            .collect();
        let of_c = pool.alloc(MIB, c).unwrap();
        self.hold_b();
        let (fill_v, fill_u) = (0xA1, 0xA2);
        places::fill(d, b, v, fill_v, MIB);
        record_end(v, b).unwrap();
        for (&p, bytes) in waiting.iter().zip([MIB, 5000, MIB]) {
            places::fill(d, b, p, 0xEE, bytes);
        }
        places::fill(d, b, u, fill_u, MIB);
        for (name, tag) in [("was used", fill_v), ("used", fill_u)] {
            let x = self.blocks.iter_mut().find(|x| x.name == name).unwrap();
            (x.tag, x.fill_on) = (Some(tag), None);
        }
        record_stream(waiting[0], b).unwrap();
        record_stream(waiting[1], b).unwrap();
        pool.free(waiting[0], a).unwrap();
        pool.free(waiting[1], a).unwrap();
        free(waiting[2]).unwrap();
        self.fill_new();
        // A stream that ends with work queued.
        if c != NULL {
            d.event_record(b, self.e).unwrap();
            d.stream_wait(c, self.e).unwrap();
            places::fill(d, c, of_c, 0xED, MIB);
            pool.free(of_c, c).unwrap();
            d.end_stream(c).unwrap();
        } else {
            free(of_c).unwrap();
        }
        d.event_record(a, self.e).unwrap();
        for bytes in [300, 100_000] {
            let h = self.host_alloc(bytes).unwrap();
            let h2 = self.host_alloc(bytes).unwrap();
            poke(h2, 9, bytes);
            self.host.push((h2, Some(9)));
            let recorded = unsafe { millpond_host_record_stream(ptr(d.0), ptr(h), ptr(b.0)) };
            outcome(recorded).unwrap();
            outcome(unsafe { millpond_host_free(ptr(d.0), ptr(h)) }).unwrap();
        }
    }

    /// B stands still, for a moment.
    fn hold_b(&self) {
        let gate = self.gate.clone();
        if self.b != NULL {
            self.d.call(self.b, move || {
                let open = gate.0.lock().unwrap();
                drop(gate.1.wait_timeout_while(open, HELD, |open| !*open).unwrap());
            });
        }
    }

    pub fn open_gate(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    // ---- what operations do --------------------------------------------------------------------------------

    pub fn block(&self, name: &str) -> &Block {
        self.blocks.iter().find(|b| b.name == name).unwrap_or_else(|| panic!("no block is called {name:?}"))
    }

    pub fn at(&self, name: &str) -> usize {
        self.block(name).at
    }

    /// A request has been answered.
    pub fn took(
        &mut self,
        name: &'static str,
        bytes: usize,
        on: Stream,
        answer: Outcome<usize>,
    ) -> Outcome<()> {
        let at = answer?;
        assert_ne!(at, 0, "success without an address");
        self.tags = self.tags % 100 + 1;
        self.blocks.push(Block { name, at, bytes, tag: Some(self.tags), fill_on: Some(on) });
        Ok(())
    }

    /// A free has been answered.
    pub fn freed(&mut self, name: &'static str, answer: Outcome<()>) -> Outcome<()> {
        answer?;
        self.blocks.retain(|b| b.name != name);
        Ok(())
    }

    /// The contents of a block do not count any more.
    pub fn wild(&mut self, name: &'static str) {
        self.blocks.iter_mut().filter(|b| b.name == name).for_each(|b| b.tag = None);
    }

    pub fn host_alloc(&self, bytes: usize) -> Outcome<usize> {
        let mut p = std::ptr::null_mut();
        outcome(unsafe { millpond_host_alloc(ptr(self.d.0), bytes, &mut p) })?;
        assert!(!p.is_null(), "success without an address");
        Ok(p.expose_provenance())
    }

    pub fn ended_pool(&mut self, pool: Pool, answer: Outcome<()>) -> Outcome<()> {
        answer?;
        self.pools.retain(|p| *p != pool);
        Ok(())
    }

    pub fn ended_stream(&mut self, stream: Stream, answer: Outcome<()>) -> Outcome<()> {
        answer?;
        self.streams.retain(|s| *s != stream);
        Ok(())
    }

    pub fn other_device(&self) -> Outcome<Device> {
        heap::own(|| Device::get(self.o.type_name, 1))
    }

    /// New blocks are filled where they will be used.
    fn fill_new(&mut self) {
        let d = self.d;
        for x in self.blocks.iter_mut() {
            let Some(on) = x.fill_on.take() else { continue };
            if let Some(tag) = x.tag {
                let on = if self.streams.contains(&on) { on } else { NULL };
                places::fill(d, on, x.at, tag, x.bytes);
            }
        }
    }

    // ---- the model -----------------------------------------------------------------------------------------

    /// Whether the account is that of the model. With `idle` nothing waits.
    fn account(&self, when: &str, idle: bool, wrong: &mut Wrongs) {
        let s = self.d.stats();
        let mut say = |what: &str, is: u64, should: u64| {
            if is != should {
                wrong.push(format!("{when}: {what} is {is}, should be {should}"));
            }
        };
        let requested: usize = self.blocks.iter().map(|b| b.bytes).sum();
        say("requested", s.requested_bytes.current, requested as u64);
        say("blocks", s.blocks.current, self.blocks.len() as u64);
        let mut allocated = 0;
        for b in &self.blocks {
            let mut i: millpond_block_info = unsafe { std::mem::zeroed() };
            i.struct_size = size_of::<millpond_block_info>();
            match outcome(unsafe { millpond_get_block(ptr(b.at), &mut i) }) {
                Ok(()) => {
                    say(&format!("the size of {:?}", b.name), i.requested_bytes as u64, b.bytes as u64);
                    allocated += i.size_bytes as u64;
                }
                Err(e) => say(&format!("{:?} ({})", b.name, e.message), 0, 1),
            }
        }
        say("allocated", s.allocated_bytes.current, allocated);
        if idle {
            say("active", s.active_bytes.current, allocated);
        }
        // What a device that still fails has not taken back is not in the account.
        let bytes = self.o.bytes();
        if self.kind.pooled && !(self.is_ill && s.reserved_bytes.current < bytes) {
            say("reserved", s.reserved_bytes.current, bytes);
        }
        if s.active_bytes.current < allocated {
            wrong.push(format!("{when}: active {} is less than allocated", s.active_bytes.current));
        }
        if s.reserved_bytes.current < s.allocated_bytes.current && s.sleeping_bytes.current == 0 {
            wrong.push(format!("{when}: reserved {} is less than allocated", s.reserved_bytes.current));
        }
    }

    fn contents(&self, when: &str, wrong: &mut Wrongs) {
        for (i, x) in self.blocks.iter().enumerate() {
            for y in &self.blocks[..i] {
                if overlap((x.at, x.bytes), (y.at, y.bytes)) {
                    wrong.push(format!("{when}: {:?} and {:?} overlap", x.name, y.name));
                }
            }
            let Some(tag) = x.tag else { continue };
            for at in places::looks(x.at, x.bytes) {
                let mut bytes = [!tag; PLACE];
                let to = bytes.as_mut_ptr().cast();
                let done =
                    outcome(unsafe { millpond_copy(ptr(self.d.0), MILLPOND_COPY_D2H, to, ptr(at), PLACE) });
                if let Err(e) = done {
                    wrong.push(format!("{when}: {:?} cannot be read: {}", x.name, e.message));
                } else if bytes != [tag; PLACE] {
                    let (what, at) = (bytes[0], at - x.at);
                    wrong.push(format!("{when}: {:?} holds {what:#x} at {at:#x}, not {tag:#x}", x.name));
                }
            }
        }
        for &(h, tag) in &self.host {
            if tag.is_some_and(|tag| filled(h, 300) != Some(tag)) {
                wrong.push(format!("{when}: host memory has changed"));
            }
        }
    }

    /// What must hold while the device still fails: the account can be asked for.
    pub fn check_ill(&self, wrong: &mut Wrongs) {
        if !self.frees_later {
            self.account("while the device fails", false, wrong);
        }
    }

    /// What must hold when it is well again.
    pub fn check_well(&mut self, wrong: &mut Wrongs) {
        if !self.frees_later {
            self.account("then", false, wrong);
        }
        if self.asleep.is_empty() {
            self.fill_new();
        }
        self.open_gate();
        if let Err(e) = self.d.synchronize() {
            wrong.push(format!("synchronize: {}", e.message));
        }
        if self.asleep.is_empty() {
            self.contents("then", wrong);
        }
    }

    /// Everything goes back. `room`: how many blocks the whole device gives then.
    pub fn end(mut self, room: &mut Option<usize>, wrong: &mut Wrongs) {
        self.open_gate();
        if !self.has_ended {
            self.give_back(room, wrong);
        }
        let faults = self.o.faults(false);
        let ended = outcome(millpond_finalize());
        let left = self.o.faults(true);
        let (streams, events) = self.o.handles();
        if self.has_ended {
            return;
        }
        if let Err(e) = ended {
            wrong.push(format!("finalize: {}", e.message));
        }
        for (what, is) in [("device", self.o.bytes()), ("host", self.o.host_bytes())] {
            if is != 0 {
                wrong.push(format!("finalize leaves {is} bytes of the {what}"));
            }
        }
        if (streams, events) != (0, 0) {
            wrong.push(format!("finalize leaves {streams} streams and {events} events"));
        }
        for fault in [faults, left] {
            if !fault.is_empty() {
                wrong.push(format!("the device says: {fault}"));
            }
        }
    }

    fn give_back(&mut self, room: &mut Option<usize>, wrong: &mut Wrongs) {
        let d = self.d;
        let mut see = |what: &str, done: Outcome<()>| {
            if let Err(e) = done {
                wrong.push(format!("{what}: {} ({})", e.message, e.code));
            }
        };
        for c in std::mem::take(&mut self.captures) {
            see("release of a capture", c.release());
        }
        for c in std::mem::take(&mut self.checkpoints) {
            see("end of a checkpoint", outcome(unsafe { millpond_checkpoint_destroy(ptr(c.0)) }));
        }
        for p in std::mem::take(&mut self.imports) {
            see("end of an import", outcome(unsafe { millpond_import_close(ptr(p)) }));
        }
        for fd in self.exported.1.drain(..).filter(|fd| *fd >= 0) {
            drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) });
        }
        for b in std::mem::take(&mut self.blocks) {
            see(&format!("free of {:?}", b.name), free(b.at));
        }
        for p in std::mem::take(&mut self.asleep) {
            if d.stats().sleeping_bytes.current != 0 {
                see("wake", p.wake());
            } else {
                let _ = p.wake(); // a pool may sleep with nothing in it
            }
        }
        for p in std::mem::take(&mut self.others) {
            see("free on device 1", free(p));
        }
        for (h, _) in std::mem::take(&mut self.host) {
            see("free of host memory", outcome(unsafe { millpond_host_free(ptr(d.0), ptr(h)) }));
        }
        for p in std::mem::take(&mut self.unified) {
            see("free of unified memory", outcome(unsafe { millpond_unified_free(ptr(d.0), ptr(p)) }));
        }
        see("limit", d.set_limit(0));
        see("synchronize", d.synchronize());
        self.nothing_is_left("after everything was freed", wrong);
        let all = d.room_for(MIB);
        if *room.get_or_insert(all) != all {
            wrong.push(format!("the device has room for {all} blocks, should be {room:?}"));
        }
        let mut see = |what: &str, done: Outcome<()>| {
            if let Err(e) = done {
                wrong.push(format!("{what}: {} ({})", e.message, e.code));
            }
        };
        see("synchronize", d.synchronize());
        for p in std::mem::take(&mut self.pools) {
            see("end of a pool", p.destroy());
        }
        for s in std::mem::take(&mut self.streams) {
            see("end of a stream", d.end_stream(s));
        }
        for e in std::mem::take(&mut self.events) {
            see("end of an event", d.end_event(e));
        }
        self.nothing_is_left("at the end", wrong);
    }

    fn nothing_is_left(&self, when: &str, wrong: &mut Wrongs) {
        let d = self.d;
        let mut see = |what: &str, done: Outcome<()>| {
            if let Err(e) = done {
                wrong.push(format!("{when}: {what}: {} ({})", e.message, e.code));
            }
        };
        see("empty_cache", d.empty_cache());
        see("empty_host_cache", outcome(unsafe { millpond_device_empty_host_cache(ptr(d.0)) }));
        let s = d.stats();
        for (what, is) in [
            ("requested", s.requested_bytes.current),
            ("allocated", s.allocated_bytes.current),
            ("active", s.active_bytes.current),
            ("reserved", s.reserved_bytes.current),
            ("sleeping", s.sleeping_bytes.current),
            ("blocks", s.blocks.current),
            ("segments", s.segments.current),
            ("bytes of the device", self.o.bytes()),
            ("bytes of the host", self.o.host_bytes()),
        ] {
            if is != 0 {
                wrong.push(format!("{when}: {what} is {is}, should be 0"));
            }
        }
    }

    /// A name as C wants it.
    pub fn name_of_type(&self) -> CString {
        heap::own(|| CString::new(self.o.type_name).unwrap())
    }
}
