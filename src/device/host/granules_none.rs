//! Stands in for `granules.rs` where the system has no `memfd_create`. No device can map there: the type has no values,
//! and the host device offers segments only.

use super::memory::Budget;
use crate::base::error::{Code, Error, Result};
use crate::device::Run;
use crate::device::sharing::{Exported, Imported};

pub(super) enum Granules {}

impl Granules {
    pub(super) fn new(_capacity: u64) -> Result<Granules> {
        Err(Error::new(Code::Unsupported, "this system has no memory files"))
    }
    pub(super) fn committed(&self) -> u64 {
        match *self {}
    }
    pub(super) fn numbers(&self) -> u64 {
        match *self {}
    }
    pub(super) fn open_window(&self, _bytes: u64) -> Result<u64> {
        match *self {}
    }
    pub(super) fn close_window(&self, _budget: &Budget) -> Result<()> {
        match *self {}
    }
    pub(super) fn end(&self) {
        match *self {}
    }
    pub(super) fn create(&self, _budget: &Budget, _first: u64, _count: u64) -> Result<()> {
        match *self {}
    }
    pub(super) fn release(&self, _budget: &Budget, _first: u64, _count: u64) -> Result<()> {
        match *self {}
    }
    pub(super) fn share(&self, _granules: &[Run]) -> Result<Exported> {
        match *self {}
    }
    pub(super) fn open(&self, _memory: &Imported<'_>) -> Result<u64> {
        match *self {}
    }
    pub(super) fn close(&self, _addr: u64) -> Result<()> {
        match *self {}
    }
    pub(super) fn map(&self, _offset: u64, _first: u64, _count: u64) -> Result<()> {
        match *self {}
    }
    pub(super) fn unmap(&self, _offset: u64, _bytes: u64) -> Result<()> {
        match *self {}
    }
}
