//! What a freed block of host memory waits for: what was queued on the streams that used it, perhaps of other devices
//! than the one it was taken from.

use super::cache::Use;
use crate::core::Waits;
use crate::runtime::by_id;
use crate::runtime::device::DeviceState;

impl DeviceState {
    /// Everything that is queued now on streams that have used a block, by device; nothing where all of it is over.
    pub(super) fn waits_of(&self, uses: &[Use]) -> Vec<(u32, Waits)> {
        let mut all: Vec<(u32, Waits)> = Vec::new();
        for by in uses {
            // All work of a device that has ended is over.
            let Some(device) = by_id(by.device) else { continue };
            let mut waits = Waits::default();
            device.memory().order().add(&by.stream, &mut waits);
            if waits.is_over() {
                continue;
            }
            match all.iter_mut().find(|w| w.0 == by.device) {
                Some(w) => w.1.append(waits),
                None => all.push((by.device, waits)),
            }
        }
        all
    }

    /// Whether what a block waits for on a device is over; with `wait`, waits for it on the host.
    pub(super) fn is_over(&self, device: u32, waits: &mut Waits, wait: bool) -> bool {
        let Some(device) = by_id(device) else { return true };
        let order = device.memory().order();
        order.settle(waits) || wait && order.sync_waits(waits).is_ok()
    }
}
