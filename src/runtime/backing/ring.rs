//! Copies between device memory and pageable memory of the host by way of two pinned buffers: while the device fills one,
//! the processor empties the other. The driver's own copy of pageable memory does both in turn. For what sleeps and wakes,
//! where nothing else uses either side.

use crate::base::error::Result;
use crate::device::{Caps, CopyKind, Device, HostWish, StreamId, StreamKind};

/// \[B\] of each of the two buffers.
const PART: u64 = 8 << 20;
/// \[B\] Less is copied at once by the driver: taking the buffers and giving them back costs more than they bring then. A
/// guess, until a card was seen.
const LEAST: u64 = 32 << 20;

/// The two buffers, and a stream of their own.
struct Ring<'a> {
    device: &'a dyn Device,
    buffers: Vec<u64>,
    stream: StreamId,
}

impl Ring<'_> {
    /// `None`: the device has no use for it, or no pinned memory at the moment.
    fn new(device: &dyn Device) -> Option<Ring<'_>> {
        let caps = device.caps();
        if caps.contains(Caps::HOST_ACCESS) || !caps.contains(Caps::PINNED | Caps::STREAMS) {
            return None;
        }
        let kind = StreamKind { priority: 0, non_blocking: true };
        let stream = device.streams().create_with(kind).ok()?;
        let mut ring = Ring { device, buffers: Vec::new(), stream };
        for _ in 0..2 {
            ring.buffers.push(device.host_alloc(PART, HostWish::default()).ok()?);
        }
        Some(ring)
    }

    /// Waits for what was queued last.
    fn rest(&self) -> Result<()> {
        self.device.streams().synchronize(self.stream)
    }

    /// The buffer for a part.
    fn buffer(&self, part: u64) -> u64 {
        self.buffers[(part % 2) as usize]
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        // Nothing may be using the buffers. What the device refuses to take back it takes at its end.
        let _ = self.rest();
        for &at in &self.buffers {
            let _ = self.device.host_free(at, PART);
        }
        let _ = self.device.streams().destroy(self.stream);
    }
}

/// Copies bytes within the host's memory.
fn move_bytes(to: u64, from: u64, bytes: u64) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: one side is a part of a buffer of `PART` bytes that `Ring` owns and no copy of the device uses at the moment,
    // the other a part of the caller's memory, which `copy`'s caller vouches for.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) };
}

/// Copies `bytes` from `src` to `dst`; returns when they have arrived. The host's side is pageable memory that the caller
/// owns, the device's side is used by nobody.
pub(super) fn copy(device: &dyn Device, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
    let ring = if bytes >= LEAST { Ring::new(device) } else { None };
    let Some(ring) = ring else { return device.copy(kind, dst, src, bytes) };
    let parts = bytes.div_ceil(PART);
    let length = |i: u64| PART.min(bytes - i * PART);
    let queue = |i: u64| match kind {
        CopyKind::DeviceToHost => {
            device.copy_async(ring.stream, kind, ring.buffer(i), src + i * PART, length(i))
        }
        _ => device.copy_async(ring.stream, kind, dst + i * PART, ring.buffer(i), length(i)),
    };
    for i in 0..parts {
        if kind == CopyKind::DeviceToHost {
            if i == 0 {
                queue(0)?;
            }
            ring.rest()?;
            if i + 1 < parts {
                queue(i + 1)?;
            }
            move_bytes(dst + i * PART, ring.buffer(i), length(i));
        } else {
            // The part before the last has arrived: its buffer is free.
            move_bytes(ring.buffer(i), src + i * PART, length(i));
            ring.rest()?;
            queue(i)?;
        }
    }
    ring.rest()
}
