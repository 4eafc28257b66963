//! The facet of mapped memory.

use super::card::Card;
use super::granules::Granules;
use crate::base::error::Result;
use crate::device::{self, MapsTogether, Run, TieSizes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The granules of a device, as its ponds see them.
pub(super) struct Mapping {
    card: Arc<Card>,
    granules: Arc<Granules>,
    /// The sizes of handles while memory is plentiful.
    tie: TieSizes,
    /// The driver refused to reserve the window: the device offers segments instead.
    refused: AtomicBool,
}

impl Mapping {
    pub(super) fn new(card: Arc<Card>, granules: Arc<Granules>, tie: TieSizes) -> Mapping {
        Mapping { card, granules, tie, refused: AtomicBool::new(false) }
    }

    /// Whether the driver has not refused the window.
    pub(super) fn works(&self) -> bool {
        !self.refused.load(Relaxed)
    }
}

impl device::Mapping for Mapping {
    fn numbers(&self) -> u64 {
        self.granules.numbers()
    }

    fn most_mappings(&self) -> u64 {
        u64::MAX
    }

    fn open_window(&self, bytes: u64) -> Result<u64> {
        let _in = self.card.enter()?;
        let opened = self.granules.open_window(bytes);
        self.refused.store(opened.is_err(), Relaxed);
        opened
    }

    /// Waits for all work queued on the device, which may still use the memory. Completes on a failed
    /// device too.
    fn close_window(&self) -> Result<()> {
        let _in = self.card.enter()?;
        let _ = self.card.rest();
        self.granules.close_window()
    }

    fn create(&self, first: u64, count: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.granules.create(first, count, 1)
    }

    fn create_tied(&self, first: u64, count: u64, each: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.granules.create(first, count, each)
    }

    fn tie_sizes(&self) -> TieSizes {
        self.tie
    }

    fn release(&self, first: u64, count: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.granules.release(first, count)
    }

    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.granules.map(offset, &[Run { first, count }])
    }

    fn together(&self) -> Option<&dyn MapsTogether> {
        Some(self)
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.granules.unmap(offset, bytes)
    }
}

impl MapsTogether for Mapping {
    /// Access is given to all runs at once.
    fn map_runs(&self, offset: u64, runs: &[Run]) -> Result<()> {
        let _in = self.card.enter()?;
        self.granules.map(offset, runs)
    }
}
