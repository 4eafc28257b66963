//! A device type for tests: plain host memory, work that is done at once, and failures on demand.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

#[cfg(feature = "capi")]
pub mod capi;

use millpond::device::*;
use millpond::{Code, Error, Result};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a test can change about the device, and see of it.
#[derive(Default)]
pub struct Knobs {
    pub panic_on_synchronize: AtomicBool,
    pub fail_alloc: AtomicBool,
    pub fail_free: AtomicBool,
    /// The min chunk of devices that are opened from now on; 0: 256.
    pub min_chunk: AtomicU64,
    pub live_bytes: AtomicU64,
    pub initialized: AtomicU64,
    pub finalized: AtomicU64,
    /// How the last host memory was wanted.
    pub host_wish: Mutex<Option<HostWish>>,
    /// The most host memory at one time; 0: any.
    pub host_limit: AtomicU64,
    pub host_bytes: AtomicU64,
    /// The NUMA node of the device plus 1; 0: it tells none.
    pub node_plus_one: AtomicU64,
    /// What `initialize` does, beyond counting.
    pub on_initialize: Mutex<Option<Hook>>,
    /// What `synchronize` does.
    pub on_synchronize: Mutex<Option<Hook>>,
}

pub type Hook = Box<dyn Fn() -> Result<()> + Send>;

pub struct TestType {
    name: String,
    pub knobs: Arc<Knobs>,
}

pub struct TestDevice {
    ordinal: usize,
    knobs: Arc<Knobs>,
    streams: Mutex<HashSet<u64>>,
    next: AtomicU64,
}

pub fn test_type(name: &str) -> (Arc<TestType>, Arc<Knobs>) {
    let knobs = Arc::new(Knobs::default());
    (Arc::new(TestType { name: name.to_owned(), knobs: knobs.clone() }), knobs)
}

/// The turn to use the library, of which a process has one: a test that restarts it holds this meanwhile.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

impl DeviceType for TestType {
    fn name(&self) -> &str {
        &self.name
    }
    fn initialize(&self) -> Result<()> {
        self.knobs.initialized.fetch_add(1, SeqCst);
        self.knobs.on_initialize.lock().unwrap().as_ref().map_or(Ok(()), |f| f())
    }
    fn finalize(&self) -> Result<()> {
        self.knobs.finalized.fetch_add(1, SeqCst);
        Ok(())
    }
    fn device_count(&self) -> Result<usize> {
        Ok(2)
    }
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(TestDevice {
            ordinal,
            knobs: self.knobs.clone(),
            streams: Mutex::default(),
            next: AtomicU64::new(16),
        }))
    }
}

/// The first segment of a test device [bytes].
pub const INIT_ALLOC: u64 = 8 << 20;
/// Each later one [bytes].
pub const REALLOC: u64 = 4 << 20;

const ALIGN: usize = 256;

fn layout(bytes: u64) -> Result<Layout> {
    Layout::from_size_align(bytes as usize, ALIGN).map_err(|_| Error::new(Code::OutOfMemory, "too large"))
}

impl Device for TestDevice {
    fn ordinal(&self) -> usize {
        self.ordinal
    }
    fn facts(&self) -> Facts {
        let node = self.knobs.node_plus_one.load(SeqCst).checked_sub(1);
        Facts { host_access: true, numa_node: node.map(|n| n as u32), ..Facts::default() }
    }
    fn sizes(&self) -> Sizes {
        Sizes {
            min_chunk: match self.knobs.min_chunk.load(SeqCst) {
                0 => 256,
                n => n,
            },
            max_chunk: 64 << 20,
            max_alloc: 1 << 30,
            padding: 0,
            init_alloc: INIT_ALLOC,
            realloc: REALLOC,
        }
    }
    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { total: 1 << 30, free: (1 << 30) - self.knobs.live_bytes.load(SeqCst) })
    }
    fn versions(&self) -> Versions {
        Versions { compute_capability: 75, runtime: 1, driver: 2 }
    }
    fn synchronize(&self) -> Result<()> {
        if self.knobs.panic_on_synchronize.load(SeqCst) {
            panic!("a device that panics: \0 inside");
        }
        self.knobs.on_synchronize.lock().unwrap().as_ref().map_or(Ok(()), |f| f())
    }
    fn alloc(&self, bytes: u64) -> Result<u64> {
        if self.knobs.fail_alloc.load(SeqCst) {
            return Err(Error::new(Code::OutOfMemory, "the test wants this to fail"));
        }
        // SAFETY: `bytes` is not 0: callers round up to `min_chunk`.
        let p = unsafe { alloc(layout(bytes)?) };
        if p.is_null() {
            return Err(Error::new(Code::OutOfMemory, "no memory"));
        }
        self.knobs.live_bytes.fetch_add(bytes, SeqCst);
        Ok(p.expose_provenance() as u64)
    }
    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        if self.knobs.fail_free.load(SeqCst) {
            return Err(Error::new(Code::Device, "the test wants this to fail"));
        }
        self.knobs.live_bytes.fetch_sub(bytes, SeqCst);
        // SAFETY: from `alloc` with the same size, which the caller keeps.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(addr as usize), layout(bytes)?) };
        Ok(())
    }
    fn host_alloc(&self, bytes: u64, wish: HostWish) -> Result<u64> {
        *self.knobs.host_wish.lock().unwrap() = Some(wish);
        let limit = self.knobs.host_limit.load(SeqCst);
        if limit != 0 && self.knobs.host_bytes.load(SeqCst) + bytes > limit {
            return Err(Error::new(Code::OutOfMemory, "the test has no more host memory"));
        }
        let addr = Device::alloc(self, bytes)?;
        self.knobs.host_bytes.fetch_add(bytes, SeqCst);
        Ok(addr)
    }
    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        Device::free(self, addr, bytes)?;
        self.knobs.host_bytes.fetch_sub(bytes, SeqCst);
        Ok(())
    }
    fn copy(&self, _: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let (d, s) = (std::ptr::with_exposed_provenance_mut::<u8>(dst as usize), src as usize);
        // SAFETY: the runtime checked the device ends; the tests give valid host ends.
        unsafe { std::ptr::copy(std::ptr::with_exposed_provenance(s), d, bytes as usize) };
        Ok(())
    }
    fn copy_async(&self, _: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        Device::copy(self, kind, dst, src, bytes)
    }
    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        // SAFETY: the runtime checked the range.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(dst as usize).write_bytes(value, bytes as usize)
        };
        Ok(())
    }
    fn memset_async(&self, _: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        self.memset(dst, value, bytes)
    }
    fn streams(&self) -> &dyn Streams {
        self
    }
    fn unified(&self) -> Option<&dyn Unified> {
        Some(self)
    }
    fn peers(&self) -> Option<&dyn Peers> {
        Some(self)
    }
}

impl Streams for TestDevice {
    fn create(&self) -> Result<StreamId> {
        let s = self.next.fetch_add(16, SeqCst);
        self.streams.lock().unwrap().insert(s);
        Ok(s)
    }
    fn destroy(&self, stream: StreamId) -> Result<()> {
        self.streams.lock().unwrap().remove(&stream);
        Ok(())
    }
    fn exists(&self, stream: StreamId) -> bool {
        self.streams.lock().unwrap().contains(&stream)
    }

    done_at_once!();
}

impl Unified for TestDevice {
    fn alloc(&self, bytes: u64) -> Result<u64> {
        Device::alloc(self, bytes)
    }
    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        Device::free(self, addr, bytes)
    }
    fn prefetch(&self, _: StreamId, _: u64, _: u64, _: UnifiedPlace) -> Result<()> {
        Ok(())
    }
    fn advise(&self, _: u64, _: u64, _: Advice, _: UnifiedPlace) -> Result<()> {
        Ok(())
    }
}

reaches_itself!(TestDevice);
