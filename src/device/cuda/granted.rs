//! What physical memory a card really grants: its attributes promise, and the driver, the machine or a container may
//! refuse all the same. So one granule is created with everything that is wanted when the device is opened, and what is
//! refused is given up with its reason: access from the bus (RDMA) first, then file descriptors, then mapping.
//!
//! A card that is full refuses nothing: then its attributes are believed.

use super::driver::{About, Driver, Physical, status};
use crate::device::GRANULE;

/// The kind of memory that can be created, and why not more.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub physical: Physical,
    /// Why none at all; empty: it can.
    pub no_mapping: String,
    /// Why without file descriptors, where it is.
    pub no_export: String,
    /// Why without access from the bus, where it is.
    pub no_rdma: String,
    /// The handle of a granule that was tried, which the driver did not take back.
    pub left: Option<u64>,
}

impl Granted {
    /// What the attributes say.
    pub(super) fn promised(physical: Physical, no_mapping: &str) -> Granted {
        let of =
            |has: bool, what: &str| if has { String::new() } else { format!("the device has no {what}") };
        Granted {
            physical,
            no_mapping: no_mapping.to_owned(),
            no_export: of(physical.exportable, "file descriptors for mapped memory"),
            no_rdma: of(physical.rdma, "GPUDirect RDMA for mapped memory"),
            left: None,
        }
    }

    /// What a granule shows. The device's context is current.
    pub(super) fn tried(mut self, driver: Driver) -> Granted {
        if self.no_mapping.is_empty()
            && let Err(why) = self.narrow(driver)
        {
            self.no_mapping = why;
        }
        self
    }

    /// Gives up what the driver refuses; an error says that nothing is left.
    fn narrow(&mut self, driver: Driver) -> std::result::Result<(), String> {
        let all = self.physical;
        // With everything; then, where that says something else, without one of them, or without both.
        let kinds = [(true, true), (true, false), (false, true), (false, false)];
        let wanted = kinds.map(|(fd, rdma)| (fd && all.exportable, rdma && all.rdma));
        let mut tried: Vec<((bool, bool), String)> = Vec::new();
        for (exportable, rdma) in wanted {
            if tried.iter().any(|t| t.0 == (exportable, rdma)) {
                continue;
            }
            let kind = Physical { exportable, rdma, ..all };
            match attempt(driver, &kind) {
                Ok(left) => {
                    self.left = left;
                    let failed = |kind: (bool, bool)| tried.iter().find(|t| t.0 == kind).map(|t| &t.1);
                    if all.rdma && !rdma {
                        self.no_rdma = refused(failed((exportable, true)), "GPUDirect RDMA");
                    }
                    if all.exportable && !exportable {
                        self.no_export = refused(failed((true, rdma)), "file descriptors");
                    }
                    self.physical = kind;
                    return Ok(());
                }
                Err(why) => tried.push(((exportable, rdma), why)),
            }
        }
        let why = tried.pop().map(|t| t.1).unwrap_or_default();
        Err(format!("the driver refused a granule of 2 MiB: {why}"))
    }
}

fn refused(why: Option<&String>, what: &str) -> String {
    format!("the driver refused memory with {what}: {}", why.map_or("", String::as_str))
}

/// Whether mapped memory of this kind comes in pieces that fit.
fn granular(driver: Driver, kind: &Physical) -> std::result::Result<(), String> {
    match driver.granularity(kind) {
        Ok(g) if g != 0 && GRANULE.is_multiple_of(g) => Ok(()),
        Ok(g) => Err(format!("the device's granules of {g} bytes do not divide 2 MiB")),
        Err(e) => Err(e.message().to_owned()),
    }
}

/// Creates a granule and gives it back; returns its handle if the driver does not take it.
fn attempt(driver: Driver, kind: &Physical) -> std::result::Result<Option<u64>, String> {
    granular(driver, kind)?;
    match driver.physical_create(GRANULE, kind) {
        Ok(handle) => Ok(driver.physical_release(handle).is_err().then_some(handle)),
        Err(f) if f.status == status::OUT_OF_MEMORY => Ok(None),
        Err(f) => Err(driver.error(f, About::Other).message().to_owned()),
    }
}
