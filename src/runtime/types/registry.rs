//! Device types by name, and the devices that were opened from them.
//!
//! The table is a leaked static: it outlives every destructor of the process. Everything that starts or ends a type
//! goes through the gate; looking up an open device takes only the table's lock.

use crate::base::error::{Code, Error, Result};
use crate::base::room::while_kept;
use crate::base::sync::system::Mutex;
use crate::base::sync::system::lock;
use crate::device::cuda::CudaOptions;
use crate::device::host::HostOptions;
use crate::device::{DeviceType, MAX_TYPE_NAME, MemoryInfo, Sizes, Versions};
use crate::fail;
use crate::locks;
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::reentry::may_block;
use crate::runtime::entry::{fork, usage};
use crate::runtime::history::{self, Wishes};
use crate::runtime::options;
use crate::runtime::tools::Tools;
use crate::runtime::types::builtin;
use crate::runtime::types::gate::{Gate, Turn};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Entry {
    name: String,
    kind: Arc<dyn DeviceType>,
    builtin: bool,
    /// Whether `initialize` has been called, and `finalize` has not been called since.
    initialized: bool,
    /// Open devices by ordinal.
    devices: Vec<Option<Arc<DeviceState>>>,
}

struct Registry {
    entries: Vec<Entry>,
    started: bool,
    /// The value of `fork::watch()` when it was started.
    born: u64,
    host: Option<HostOptions>,
    cuda: Option<CudaOptions>,
}

static GATE: Gate = Gate::new();
static REGISTRY: Mutex<Registry, locks::Registry> =
    Mutex::new(Registry { entries: Vec::new(), started: false, born: 0, host: None, cuda: None });

impl Registry {
    fn find(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.name == name)
    }
}

fn unknown_type<T>(name: &str) -> Result<T> {
    Err(Error::formatted(Code::UnknownDevice, format_args!("there is no device type {name:?}")))
}

/// Enters the gate, and makes sure that the built-in types are in the table.
fn enter() -> Result<Turn<'static>> {
    fork::check()?;
    may_block()?;
    usage::outside()?;
    let process = fork::watch();
    let pass = GATE.enter()?;
    let (host, cuda) = {
        let mut r = lock(&REGISTRY);
        if r.started && r.born == process {
            return Ok(pass);
        }
        // This is a forked child, whose parent had no device yet or had not come here. What the parent's types have
        // acquired from the system belongs to the parent.
        std::mem::forget(std::mem::take(&mut r.entries));
        (r.host, r.cuda.clone())
    };
    let kinds = builtin::types(host, cuda)?;
    let mut r = lock(&REGISTRY);
    for kind in kinds {
        let name = kind.name().to_owned();
        r.entries.push(Entry { name, kind, builtin: true, initialized: false, devices: Vec::new() });
    }
    r.started = true;
    r.born = process;
    Ok(pass)
}

/// The type of that name, initialised. The caller is inside the gate.
fn ready_type(name: &str) -> Result<Arc<dyn DeviceType>> {
    let kind = {
        let mut r = lock(&REGISTRY);
        let Some(e) = r.find(name) else { return unknown_type(name) };
        if e.initialized {
            return Ok(e.kind.clone());
        }
        e.kind.clone()
    };
    kind.initialize()?;
    if let Some(e) = lock(&REGISTRY).find(name) {
        e.initialized = true;
    }
    Ok(kind)
}

/// Configures the built-in device type `host`. `Busy` once the library was used.
pub fn configure_host(options: HostOptions) -> Result<()> {
    fork::check()?;
    let _pass = GATE.enter()?;
    let mut r = lock(&REGISTRY);
    if r.started {
        return Err(Error::new(Code::Busy, "the library was used before the host device was configured"));
    }
    builtin::check(&options)?;
    r.host = Some(options);
    Ok(())
}

/// Configures the built-in device type `cuda`. `Busy` once the library was used.
pub fn configure_cuda(options: CudaOptions) -> Result<()> {
    fork::check()?;
    let _pass = GATE.enter()?;
    let mut r = lock(&REGISTRY);
    if r.started {
        return Err(Error::new(Code::Busy, "the library was used before CUDA was configured"));
    }
    r.cuda = Some(options);
    Ok(())
}

/// The names of all device types: `cpu`, `host`, `cuda`, then the registered ones.
pub fn type_names() -> Result<Vec<String>> {
    let _pass = enter()?;
    Ok(lock(&REGISTRY).entries.iter().map(|e| e.name.clone()).collect())
}

/// Adds a device type and initialises it. `Busy` if its name is taken, `InvalidArgument` if the name is empty or longer
/// than 31 bytes; otherwise what its `initialize` returns.
pub fn register_type(kind: Arc<dyn DeviceType>) -> Result<()> {
    let _pass = enter()?;
    let name = kind.name().to_owned();
    if name.is_empty() || name.len() > MAX_TYPE_NAME || name.contains('\0') {
        fail!(Code::InvalidArgument, "{name:?} cannot name a device type: 1 to {MAX_TYPE_NAME} bytes");
    }
    if lock(&REGISTRY).find(&name).is_some() {
        fail!(Code::Busy, "the device type {name:?} exists already");
    }
    fork::used();
    kind.initialize()?;
    let entry = Entry { name, kind, builtin: false, initialized: true, devices: Vec::new() };
    lock(&REGISTRY).entries.push(entry);
    Ok(())
}

/// Ends a registered device type and removes it. `Busy` while it has live blocks; `NotPermitted` for a built-in type.
pub fn unregister_type(name: &str) -> Result<()> {
    let _pass = enter()?;
    let states: Vec<_> = {
        let mut r = lock(&REGISTRY);
        let Some(e) = r.find(name) else { return unknown_type(name) };
        if e.builtin {
            fail!(Code::NotPermitted, "the device type {name:?} is built in");
        }
        e.devices.iter().flatten().cloned().collect()
    };
    shut_unless_used(&states, name)?;
    let taken = {
        let mut r = lock(&REGISTRY);
        let at = r.entries.iter().position(|e| e.name == name);
        at.map(|i| r.entries.remove(i))
    };
    note_ended(states.into_iter());
    taken.map_or(Ok(()), end)
}

/// How long the doors of devices are held at most until everybody has left, and how long they are open in between.
const HELD: Duration = Duration::from_millis(1);
const OPEN: Duration = Duration::from_millis(4);

/// Shuts the doors of a type's devices, with nobody inside. `Busy` while they have live blocks: then the devices do not
/// end, and no other thread's call was refused. What the threads inside do meanwhile decides between the two.
fn shut_unless_used(states: &[Arc<DeviceState>], name: &str) -> Result<()> {
    // Must not call the device: while the doors are held, that would wait for this thread itself.
    let live = || -> Result<()> {
        match states.iter().map(|s| s.live()).sum::<u64>() {
            0 => Ok(()),
            n => fail!(Code::Busy, "live blocks of {name:?}: {n}"),
        }
    };
    loop {
        states.iter().for_each(|s| s.memory().free_deferred());
        live()?;
        states.iter().for_each(|s| s.door().hold());
        let moment = Instant::now() + HELD;
        if states.iter().all(|s| s.door().is_left_by(moment)) {
            // Nobody enters now, except requests that are served from a heap's own free memory, which need no pass.
            let unused = live();
            match &unused {
                Ok(()) => states.iter().for_each(|s| s.door().shut()),
                Err(_) => states.iter().for_each(|s| s.door().reopen()),
            }
            return unused;
        }
        states.iter().for_each(|s| s.door().reopen());
        std::thread::sleep(OPEN);
    }
}

/// Devices that have ended but still have their tables: a thread may be in a call that began before.
static ENDED: Mutex<Vec<Arc<DeviceState>>> = Mutex::new(Vec::new());

/// Notes the devices of a type that has ended. Their tables are released when the next types end, which is long after
/// any call that began before; so a program that ends and starts the library repeatedly does not grow.
fn note_ended(states: impl Iterator<Item = Arc<DeviceState>>) {
    let before = std::mem::replace(&mut *lock(&ENDED), states.collect());
    before.iter().for_each(|s| s.memory().discard());
}

/// Ends a device that is at rest, as all others of its type are: gives its memory back. Continues after an error
/// and returns the first.
fn close(state: &DeviceState) -> Result<()> {
    history::end(state);
    let pinned = state.host_memory().close();
    let memory = state.memory().close();
    state.shared_memory().close();
    pinned.and(memory)
}

/// Ends one type that is no longer in the table. Continues after an error and returns the first.
fn end(entry: Entry) -> Result<()> {
    let mut first = Ok(());
    let open: Vec<_> = entry.devices.iter().flatten().collect();
    open.iter().for_each(|state| state.door().shut());
    // For all of them before any memory is released: work on one may use memory of another.
    for state in &open {
        first = first.and(state.device().synchronize());
    }
    for state in open {
        first = first.and(close(state));
    }
    if entry.initialized {
        first = first.and(entry.kind.finalize());
    }
    first
}

/// How many devices the type has.
pub fn device_count(name: &str) -> Result<usize> {
    let _pass = enter()?;
    ready_type(name)?.device_count()
}

/// Why the type has no devices; `None` if it has some, or none without a particular reason.
pub fn absence(name: &str) -> Result<Option<String>> {
    let _pass = enter()?;
    Ok(ready_type(name)?.absence())
}

/// What the device reports about itself, without creating its memory.
pub(crate) fn device_facts(name: &str, ordinal: usize) -> Result<(Sizes, Versions, MemoryInfo)> {
    let _pass = enter()?;
    fork::used();
    let device = ready_type(name)?.open(ordinal)?;
    Ok((device.sizes(), device.versions(), device.memory_info()?))
}

/// The device, opened on first use; the same state each time until the type ends.
pub fn device(name: &str, ordinal: usize) -> Result<Arc<DeviceState>> {
    if let Some(d) = fork::enter().map(|_busy| opened(name, ordinal))? {
        return Ok(d);
    }
    let _pass = enter()?;
    // Another thread may have opened it while this one waited.
    if let Some(d) = opened(name, ordinal) {
        return Ok(d);
    }
    let kind = ready_type(name)?;
    kind.wake();
    let count = while_kept(|| kind.device_count())?;
    if ordinal >= count {
        let why = kind.absence().map_or(String::new(), |w| format!(": {w}"));
        fail!(Code::UnknownDevice, "{name:?} has no device {ordinal} (device count: {count}){why}");
    }
    fork::used();
    let chosen = options::for_device(name, ordinal)?;
    let wishes = Wishes::from_environment(&format!("{name}:{ordinal}"))?;
    let tools = Tools::from_environment()?;
    let state =
        Arc::new(DeviceState::new(table::next_id()?, name, while_kept(|| kind.open(ordinal))?, chosen)?);
    if let Err(e) = tools.show(&state).and_then(|()| wishes.grant(&state)) {
        let _ = close(&state); // nobody else knows it
        return Err(e);
    }
    table::keep(&state);
    // Before anybody can have it: whoever gets the device may rely on its access. This thread alone opens devices now.
    let siblings: Vec<_> = match lock(&REGISTRY).find(name) {
        Some(e) => e.devices.iter().flatten().cloned().collect(),
        None => return unknown_type(name),
    };
    siblings.iter().for_each(|sibling| state.peer_access().share_with(sibling));
    let mut r = lock(&REGISTRY);
    let Some(e) = r.find(name) else { return unknown_type(name) };
    if e.devices.len() <= ordinal {
        e.devices.resize(ordinal + 1, None);
    }
    e.devices[ordinal] = Some(state.clone());
    Ok(state)
}

fn opened(name: &str, ordinal: usize) -> Option<Arc<DeviceState>> {
    lock(&REGISTRY).find(name)?.devices.get(ordinal)?.clone()
}

/// Ends every device type; live blocks are lost. Registered types are forgotten; the next use starts anew. Continues
/// after an error and returns the first. `NotInitialized` if nothing was started.
pub fn finalize() -> Result<()> {
    fork::check()?;
    may_block()?;
    usage::outside()?;
    let _pass = GATE.enter()?;
    let entries = {
        let mut r = lock(&REGISTRY);
        if !r.started {
            return Err(not_started());
        }
        r.started = false;
        r.host = None;
        options::forget();
        r.cuda = None;
        std::mem::take(&mut r.entries)
    };
    table::all_end();
    entries.iter().flat_map(|e| e.devices.iter().flatten()).for_each(|s| s.door().shut());
    table::all_ended();
    note_ended(entries.iter().flat_map(|e| e.devices.iter().flatten()).cloned());
    let mut first = Ok(());
    for e in entries {
        first = first.and(end(e));
    }
    first
}

fn not_started() -> Error {
    Error::new(Code::NotInitialized, "no device is open")
}
