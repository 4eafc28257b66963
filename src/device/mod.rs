//! The device seam: what a kind of memory must be able to do so that the rest of the library can
//! serve it. `host`, `cuda` and `paddle/foreign` implement it; nothing here knows pools or blocks.
//!
//! [`Device`] is what every device has: identity, memory, copies, streams. What only some devices have is a facet, a
//! trait of its own; a device that lacks the facet cannot do it: [`Mapping`], [`Unified`], [`Registration`],
//! [`ExternalStreams`], [`DriverPool`], [`Sharing`], [`Peers`].
//!
//! Addresses are `u64` device addresses and never dereferenced on this side of the seam. Streams and events are
//! `u64` too: the bits of the `C_Stream` or `C_Event` that the caller holds; 0 is the default stream. Every call may
//! come from any thread at any time.

mod copies;
pub mod cuda;
mod facts;
mod gate;
pub mod host;
mod ids;
mod mapping;
mod pool;
mod registration;
mod seam;
pub mod sharing;
mod streams;
mod unified;

pub use copies::{CopyKind, HostWish};
pub use facts::{Caps, Facts, Identity, MemoryInfo, Sizes, Versions};
pub(crate) use ids::as_ptr;
pub use ids::{EventId, MAX_TYPE_NAME, NO_STREAM, StreamId};
pub(crate) use mapping::slots_of;
pub use mapping::{GRANULE, Mapping, MapsTogether, Run, TieSizes};
pub use pool::{DriverPool, DriverPoolStats};
pub use registration::Registration;
pub use seam::{Device, DeviceType, Peers};
pub use sharing::Sharing;
pub use streams::{ExternalStreams, StreamCallback, StreamKind, Streams, Timing, Whose};
pub(crate) use streams::{no_stream, would_wait};
pub use unified::{Advice, Unified, UnifiedPlace};
