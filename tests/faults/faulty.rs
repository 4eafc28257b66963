//! A layer in front of a device: it makes calls fail as `fault.rs` decides, and records what the library has from the
//! device. A call that is made to fail never reaches the device.

use crate::fault::{self, Way};
use crate::heap;
use crate::seam::{Hook, SeamType};
use millpond::device::*;
use millpond::{Error, Result, runtime};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// What the library has from the devices of the type.
#[derive(Default)]
pub struct Book {
    /// [B] device memory of device 0.
    pub bytes: u64,
    /// [B] host and unified memory.
    pub host: u64,
    pub streams: BTreeSet<StreamId>,
    pub events: BTreeSet<EventId>,
}

pub type Shared = Arc<Mutex<Book>>;

pub fn look(book: &Shared) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(|e| e.into_inner())
}

/// The type's name.
pub const NAME: &str = "faulty";

/// [B] of the host's memory that a device may keep which refuses a call, and which refuses to take pinned memory back.
const KEPT: usize = 2000;
const KEPT_OF_ALL: usize = isize::MAX as usize;

/// Lets calls fail, and writes down what has come of them.
pub struct Faulty {
    pub book: Shared,
    /// Instead of the device's own.
    pub sizes: Option<fn(Sizes) -> Sizes>,
}

impl Hook for Faulty {
    fn pass<T>(&self, name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        match fault::refused(name).filter(|_| name != "finalize") {
            Some(Way::Greedy) => {
                let done = call();
                // This layer itself makes a device of what is opened.
                if name != "open" {
                    heap::keep(KEPT_OF_ALL);
                }
                done
            }
            Some(Way::Grasping) => {
                let done = call();
                heap::others_take_all();
                done
            }
            Some(way) => {
                heap::keep(if name == "host_free" { KEPT_OF_ALL } else { KEPT });
                Err(heap::own(|| Error::new(way.code(), format!("the test wants {name} to fail"))))
            }
            None => call(),
        }
    }

    fn done(&self, ordinal: usize, name: &'static str, what: u64) {
        let mut book = look(&self.book);
        heap::own(|| match name {
            "host_alloc" | "unified_alloc" => book.host += what,
            "host_free" | "unified_free" => book.host -= what,
            "stream_create" => drop(book.streams.insert(what)),
            "stream_destroy" => drop(book.streams.remove(&what)),
            "event_create" => drop(book.events.insert(what)),
            "event_destroy" => drop(book.events.remove(&what)),
            _ if ordinal != 0 => {}
            "alloc" | "granules_create" => book.bytes += what,
            "free" | "granules_release" => book.bytes -= what,
            "map_close" => book.bytes = 0,
            _ => {}
        });
    }

    fn sizes(&self, own: Sizes) -> Sizes {
        self.sizes.map_or(own, |change| change(own))
    }
}

/// Registers the type in front of another one.
pub fn register(inner: Arc<dyn DeviceType>, sizes: Option<fn(Sizes) -> Sizes>) -> Shared {
    let book = Shared::default();
    let hook = Arc::new(Faulty { book: book.clone(), sizes });
    runtime::register_type(Arc::new(SeamType { name: NAME, inner, hook })).unwrap();
    book
}
