//! Everything that the driver knows: devices, contexts, address ranges, memory, streams, events. Handles are numbers
//! that are never used twice, so a stale handle is found out instead of meaning something new; only those of streams and
//! events come again (`names.rs`). The pointers that the driver API declares for them point nowhere.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::alias::Present;
use crate::capture::Captures;
use crate::clock::Clock;
use crate::config::Config;
use crate::context::Context;
use crate::control::Control;
use crate::device::Device;
use crate::event::Event;
use crate::exec::Executors;
use crate::graph::{Destructor, Executable, Farewell, Graph, UserObject};
use crate::mapping::Handle;
use crate::names::Names;
use crate::physical::{Block, Spare};
use crate::pool::Pool;
use crate::space::Range;
use crate::stream::Stream;

/// What an export's body returns: the code of its failure.
pub(crate) type Answer = Result<(), u32>;

/// The process that called `cuInit`; 0: none.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// True in a process that was forked off the one that initialised the driver: nothing works there.
pub(crate) fn forked() -> bool {
    // Relaxed: written before the fork by a thread of the parent, read in the child.
    let owner = OWNER.load(Ordering::Relaxed);
    // SAFETY: getpid has no preconditions.
    owner != 0 && owner != unsafe { libc::getpid() }
}

pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) control: Control,
    pub(crate) clock: Clock,
    pub(crate) initialised: bool,
    pub(crate) deinitialised: bool,
    pub(crate) sticky: Option<u32>,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: HashMap<u64, Context>,
    pub(crate) spare: Spare, // files that held memory, for the next block or device
    pub(crate) blocks: HashMap<u64, Block>,
    pub(crate) handles: HashMap<u64, Handle>,
    pub(crate) ranges: BTreeMap<u64, Range>,   // by their first address
    pub(crate) streams: BTreeMap<u64, Stream>, // by number
    pub(crate) events: HashMap<u64, Event>,    // by number
    pub(crate) stream_names: Names,
    pub(crate) event_names: Names,
    pub(crate) defaults: HashMap<(u64, u64), u64>, // (context, thread or 0 for legacy) to stream
    pub(crate) captures: Captures,
    pub(crate) executors: Executors,
    pub(crate) present: Vec<Present>, // grids that stay
    pub(crate) graphs: HashMap<u64, Graph>,
    pub(crate) executables: HashMap<u64, Executable>,
    pub(crate) objects: HashMap<u64, UserObject>,
    pub(crate) farewells: Vec<Farewell>,
    pub(crate) destructors: VecDeque<Destructor>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    pub(crate) opened: HashMap<u64, u32>, // memory of other processes, with how often it was opened
    pub(crate) open_mappings: u64,        // that some device has access to
    pub(crate) handed_out: u64,           // descriptors of handles and dma-bufs
    next: u64,
}

impl World {
    pub(crate) fn new() -> World {
        let (config, rest) = Config::from_environment();
        let mut control = Control::new(config.log.as_deref());
        let mut clock = Clock::new();
        for (name, value) in rest {
            match name.as_str() {
                "fail" => _ = control.faults_from_text(&value),
                "costs" => _ = clock.set(&value),
                _ => {}
            }
        }
        World {
            config,
            control,
            clock,
            initialised: false,
            deinitialised: false,
            sticky: None,
            devices: Vec::new(),
            contexts: HashMap::new(),
            spare: Spare::default(),
            blocks: HashMap::new(),
            handles: HashMap::new(),
            ranges: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: HashMap::new(),
            stream_names: Names::default(),
            event_names: Names::default(),
            defaults: HashMap::new(),
            captures: Captures::default(),
            executors: Executors::default(),
            present: Vec::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            objects: HashMap::new(),
            farewells: Vec::new(),
            destructors: VecDeque::new(),
            pools: BTreeMap::new(),
            opened: HashMap::new(),
            open_mappings: 0,
            handed_out: 0,
            next: 1,
        }
    }

    /// Becomes `fresh`, but that no handle is used again and the threads stay, as do files that can serve again.
    pub(crate) fn replace(&mut self, fresh: World, executors: Executors) {
        let next = self.next;
        let spare = std::mem::take(&mut self.spare);
        *self = fresh;
        self.next = next;
        self.spare = spare;
        self.executors = executors;
    }

    /// A new handle. The numbers lie where no pointer of a process can be, and are multiples of 64; or, where that is
    /// wanted, they are as low as can be.
    pub(crate) fn new_handle(&mut self) -> u64 {
        self.next += 1;
        if self.config.low_handles {
            return self.next + 1;
        }
        (0xfa << 52) | (self.next << 6)
    }

    pub(crate) fn claim_process(&mut self) {
        // SAFETY: getpid has no preconditions.
        OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    }

    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device, u32> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or(crate::code::INVALID_DEVICE)
    }

    pub(crate) fn device_mut(&mut self, ordinal: i32) -> Result<&mut Device, u32> {
        self.device_and_spare(ordinal).map(|found| found.0)
    }

    /// The device, and the files for new memory of any.
    pub(crate) fn device_and_spare(&mut self, ordinal: i32) -> Result<(&mut Device, &mut Spare), u32> {
        let device = usize::try_from(ordinal).ok().and_then(|i| self.devices.get_mut(i));
        Ok((device.ok_or(crate::code::INVALID_DEVICE)?, &mut self.spare))
    }
}
