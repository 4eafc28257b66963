//! What any library could use: it knows no pond, no device and no interface. Every room may name `base`, which names none.
//!
//! | what for | files |
//! | --- | --- |
//! | failures | `error`: the one error type. Its codes are this library's, and all that is: see there |
//! | locks and atomics | `sync`, the only door to both, with the check of the order of locks; `biased`: a lock that is nearly free for the thread that takes it again and again |
//! | lists and tables that threads share | `changed`: what has changed since a reader last looked; `published`: a value that is read without a lock; `range_map`: ranges of numbers that lead to others, read without a lock; `remote`: a list to which any thread pushes; `ring`: the newest records of many threads; `slots`: values that never move and are found by number |
//! | memory of our own | `mapped_array`: arrays of the greatest length they may have, whose pages cost memory when they are touched; `pages`: whole pages, huge ones where the system has them; `boxed`: values on the heap that say when it has no room; `room`: who looks for room before it begins; `inline`: texts and lists that need no heap; `ordered`: maps and sets of which all types share their code |
//! | numbers | `histogram`: how often which duration came; `sort`: a sort of little code |
//! | the process and its system | `clock`, `descriptor`: file descriptors that a program may have closed; `fork`; `loaded`: the shared object that this code is in; `numa`; `signals` |
//!
//! The public ones are so for the models of `tests/loom.rs`.

pub mod biased;
pub(crate) mod boxed;
pub mod changed;
pub(crate) mod clock;
pub(crate) mod descriptor;
pub mod error;
pub(crate) mod fork;
pub mod histogram;
pub(crate) mod inline;
pub(crate) mod loaded;
pub mod mapped_array;
pub mod masked;
pub(crate) mod numa;
pub(crate) mod ordered;
pub(crate) mod pages;
pub(crate) mod published;
pub mod range_map;
pub mod remote;
pub mod ring;
pub(crate) mod room;
pub(crate) mod signals;
pub mod slots;
pub(crate) mod sort;
pub mod sync;
