//! The order in which locks are taken and, in debug builds, the check of it.
//!
//! Each lock has a *level*, which is part of its type. A thread may take a lock only if all locks that it holds have
//! lower levels. Two locks of one level are never held together, unless the level says so: then by a thread that holds a
//! lock of the level before it, in ascending order of their numbers. While a device or a callback is called, a thread
//! holds no lock, unless the lock's level says so.
//!
//! A program lists its levels with [`levels!`](crate::levels); here is only [`Leaf`], the innermost one.

use std::fmt::Debug;

/// A level of locks: a type without values of its own.
pub trait Level: Debug + Default + 'static {
    /// Greater the further inside.
    const NUMBER: u8;
    /// The name that the check prints.
    const NAME: &'static str;
    /// Whether a thread may hold several locks of this level, if it holds one of the level before it.
    const SEVERAL: bool = false;
    /// Whether a thread may hold such a lock while it calls a device, which calls nobody back.
    const OVER_DEVICE: bool = false;
    /// Whether a thread may hold such a lock while it calls a callback, which may call this library.
    const OVER_CALLBACKS: bool = false;
}

/// The innermost level: no lock is taken while one of these is held.
#[derive(Debug, Default)]
pub struct Leaf;

impl Level for Leaf {
    const NUMBER: u8 = u8::MAX;
    const NAME: &'static str = "Leaf";
}

/// Declares levels as types, outermost first, and `ALL`: their names and what their comments say. In brackets after the
/// name stands what is true for the level besides (`SEVERAL`, `OVER_DEVICE`, `OVER_CALLBACKS`).
#[macro_export]
#[doc(hidden)]
macro_rules! levels {
    ($($(#[doc = $doc:literal])+ $name:ident $([$($flag:ident),+])?),+ $(,)?) => {
        enum Number { $($name),+ }
        $(
            $(#[doc = $doc])+
            #[derive(Debug, Default)]
            pub struct $name;

            impl $crate::base::sync::levels::Level for $name {
                const NUMBER: u8 = Number::$name as u8;
                const NAME: &'static str = stringify!($name);
                $($(const $flag: bool = true;)+)?
            }
        )+
        /// The levels, outermost first: each with its name and what its locks guard.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),+))),+];
    };
}

/// Records that the calling thread holds a lock, until dropped. Costs nothing in a release build.
#[derive(Debug)]
pub(crate) struct HeldLock {
    #[cfg(all(debug_assertions, not(loom)))]
    what: (u8, u32),
}

#[cfg(all(debug_assertions, not(loom)))]
mod check {
    use super::{Called, Level};
    use std::cell::RefCell;
    use std::panic::Location;

    #[derive(Clone, Copy)]
    struct Held {
        /// The number of the level, and the lock's own within it.
        what: (u8, u32),
        level: &'static str,
        over: [bool; 2],
        taken_at: &'static Location<'static>,
    }

    thread_local! {
        /// The locks that this thread holds.
        static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
    }

    #[track_caller]
    #[allow(clippy::panic, reason = "debug builds only")]
    pub(super) fn take<L: Level>(number: u32) {
        let here = Location::caller();
        let wrong =
            |h: &Held| h.what.0 > L::NUMBER || h.what.0 == L::NUMBER && (!L::SEVERAL || h.what.1 >= number);
        // A thread that is ending has no list any more.
        let _ = HELD.try_with(|all| {
            let worst = all.borrow().iter().copied().filter(wrong).max_by_key(|h| h.what);
            if let Some(Held { what, level, taken_at, .. }) = worst {
                panic!(
                    "{here}: {} {number} is locked while {level} {} is held since {taken_at}",
                    L::NAME,
                    what.1
                );
            }
            let holds = |level: u8| all.borrow().iter().any(|h| h.what.0 == level);
            if holds(L::NUMBER) && !holds(L::NUMBER.wrapping_sub(1)) {
                panic!("{here}: a second {} is locked without a lock of the level before it", L::NAME);
            }
            let what = (L::NUMBER, number);
            let mut all = all.borrow_mut();
            if all.capacity() == 0 {
                all.reserve(64); // at once: a test takes the host's memory away later
            }
            all.push(Held {
                what,
                level: L::NAME,
                over: [L::OVER_DEVICE, L::OVER_CALLBACKS],
                taken_at: here,
            });
        });
    }

    pub(super) fn leave(what: (u8, u32)) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|h| h.what == what) {
                held.remove(at);
            }
        });
    }

    #[track_caller]
    #[allow(clippy::panic, reason = "debug builds only")]
    pub(super) fn unlocked(called: Called) {
        let here = Location::caller();
        let _ = HELD.try_with(|held| {
            if let Some(h) = held.borrow().iter().copied().find(|h| !h.over[called as usize]) {
                panic!(
                    "{here}: a {called:?} is called while {} {} is held since {}",
                    h.level, h.what.1, h.taken_at
                );
            }
        });
    }
}

impl HeldLock {
    /// Records that the calling thread is about to take lock `number` of a level.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn new<L: Level>(number: u32) -> HeldLock {
        #[cfg(all(debug_assertions, not(loom)))]
        {
            check::take::<L>(number);
            HeldLock { what: (L::NUMBER, number) }
        }
        #[cfg(not(all(debug_assertions, not(loom))))]
        {
            let _ = number;
            HeldLock {}
        }
    }
}

#[cfg(all(debug_assertions, not(loom)))]
impl Drop for HeldLock {
    fn drop(&mut self) {
        check::leave(self.what);
    }
}

/// Whose code is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Called {
    /// A driver, a plugin or another implementation of a device, which calls nobody back.
    Device,
    /// A function of the program, which may call this library.
    Callback,
}

/// In a debug build, checks that the calling thread holds no lock but those that may be held while such code is called.
#[inline(always)]
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn check_unlocked(called: Called) {
    #[cfg(all(debug_assertions, not(loom)))]
    check::unlocked(called);
    #[cfg(not(all(debug_assertions, not(loom))))]
    let _ = called;
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    #![allow(unreachable_pub, reason = "the levels of a program are public")]
    use super::*;

    levels! {
        /// The turn to call.
        Turn [OVER_CALLBACKS],
        /// A plain lock.
        Plain,
        /// One of many.
        Many [SEVERAL],
    }

    #[test]
    fn what_is_locked_out_of_order_is_found() {
        let caught = |f: fn()| std::panic::catch_unwind(f).is_err();
        assert!(!caught(|| {
            let _plain = HeldLock::new::<Plain>(0);
            let _many = (HeldLock::new::<Many>(3), HeldLock::new::<Many>(7));
            let _leaf = HeldLock::new::<Leaf>(0);
        }));
        assert!(caught(|| {
            let _one = HeldLock::new::<Many>(3);
            let _plain = HeldLock::new::<Plain>(0);
        }));
        assert!(caught(|| {
            let _many = (HeldLock::new::<Many>(7), HeldLock::new::<Many>(3));
        }));
        assert!(caught(|| {
            let _two = (HeldLock::new::<Leaf>(0), HeldLock::new::<Leaf>(0));
        }));
        assert!(caught(|| {
            let _plain = HeldLock::new::<Plain>(0);
            check_unlocked(Called::Device);
        }));
        assert!(!caught(|| {
            let _turn = HeldLock::new::<Turn>(0);
            check_unlocked(Called::Callback);
        }));
        assert!(caught(|| {
            let _turn = HeldLock::new::<Turn>(0);
            check_unlocked(Called::Device);
        }));
        check_unlocked(Called::Device); // what was held was given back
        assert_eq!(ALL[0], ("Turn", " The turn to call."));
    }
}
