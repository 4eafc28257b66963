//! Where a heap's memory comes from when it has none that fits: its own scattered granules, the free memory of other
//! heaps, the device, and under pressure whatever costs least.
//!
//! The promise on a device that maps: no request fails while the free granules of the device and of all heaps together
//! suffice; of granules in ties (`ties.rs`), those of ties that are wholly free. Before it fails, a request waits for
//! memory that other threads have in transit.
//!
//! All of this is off the hot path. [`Serving`] serves a request from its heap, `Search` everywhere else. What may be done
//! under the growth lock are methods of `Growing` (`limits.rs`, `taken.rs`); the lock is held for moments only, and never
//! while the device is called.

mod aligned;
mod collect;
mod device;
mod grow;
mod limits;
mod parts;
mod pressure;
mod ranges;
mod request;
mod scarcity;
mod search;
mod segments;
mod serve;
mod steal;
mod step;
mod swap;
mod taken;
mod ties;
mod trials;
mod trim;

pub(crate) use limits::too_large;
pub(crate) use ranges::Ranges;
pub(crate) use request::Request;
pub(crate) use serve::Serving;
pub(crate) use steal::{Giver, wait_for_giver};
pub(crate) use step::Terms;
pub(crate) use trials::Trials;
pub(crate) use trim::Trim;
