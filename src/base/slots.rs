//! Values that are made once, never move, and live as long as the process: reading one is a single load, from any
//! thread, with no lock. They are leaked on purpose; users reuse them and make only as many as they need at one time.

use crate::base::boxed::try_box;
use crate::base::error::Result;
use crate::base::mapped_array::{MappedArray, Zeroable};
use crate::base::sync::{Ordering, static_atomics::AtomicPtr};
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64 as StaticU64;

// SAFETY: a null pointer is all zero bits on every target of this library.
unsafe impl<T: Sync> Zeroable for AtomicPtr<T> {
    #[cfg(loom)]
    fn zero() -> Self {
        AtomicPtr::default()
    }
}

/// A reference that may be absent and can be set from any thread.
#[derive(Debug)]
pub struct AtomicRef<T: Sync + 'static>(AtomicPtr<T>);

impl<T: Sync + 'static> Default for AtomicRef<T> {
    fn default() -> Self {
        AtomicRef::none()
    }
}

impl<T: Sync + 'static> AtomicRef<T> {
    /// No reference yet.
    pub const fn none() -> Self {
        AtomicRef(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// A reference that is set from the start.
    pub const fn to(it: &'static T) -> Self {
        AtomicRef(AtomicPtr::new(std::ptr::from_ref(it).cast_mut()))
    }

    /// The reference, if there is one.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // Acquire pairs with the Release in `set` and `get_or_make`: the referenced value is fully initialised.
        let p = self.0.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null leads to what is never freed: `to` and `set` had a `&'static T`, and `get_or_make`
        // stored that of a box which nobody frees.
        unsafe { p.as_ref() }
    }

    /// The reference; what `make` returns if there is none yet. Of threads that make one at the same time, all get the first.
    pub fn get_or_make(&self, make: impl FnOnce() -> Box<T>) -> &'static T {
        if let Some(it) = self.get() {
            return it;
        }
        let made = Box::into_raw(make());
        // Release: as in `set`. Acquire: as in `get`.
        match self.0.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it came from a box, which nobody frees from here on.
            Ok(_) => unsafe { &*made },
            Err(first) => {
                // SAFETY: it came from the box above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: it is not null, so that it leads to what is never freed, as in `get`.
                unsafe { &*first }
            }
        }
    }

    /// Sets or clears it.
    pub fn set(&self, to: Option<&'static T>) {
        let p = to.map_or(std::ptr::null_mut(), |t| std::ptr::from_ref(t).cast_mut());
        self.0.store(p, Ordering::Release);
    }
}

/// A value that begins with a number by which it is found in a [`ByNumber`].
///
/// # Safety
/// The implementor guarantees that the type is `repr(C)` and that its first field is the number, an `AtomicU64`.
pub unsafe trait Numbered: Sync + 'static {}

/// The numbers of what stands in empty slots of a [`ByNumber`]: one that no search looks for there.
static NOTHING: [StaticU64; 2] = [StaticU64::new(0), StaticU64::new(1)];

/// A table of `N` references (a power of two, at least 2), each in the slot that the low bits of its number say. A search
/// is a load and a comparison: an empty slot leads to a number too, but to one that belongs in another slot.
#[derive(Debug)]
pub struct ByNumber<T: Numbered, const N: usize> {
    /// The number of an entry, with the right to all of it; or one of `NOTHING`.
    slots: [AtomicPtr<StaticU64>; N],
    _of: PhantomData<&'static T>,
}

impl<T: Numbered, const N: usize> ByNumber<T, N> {
    /// A table of empty slots.
    pub const fn new() -> Self {
        assert!(N.is_power_of_two() && N > 1);
        let mut slots = [const { AtomicPtr::new(std::ptr::null_mut()) }; N];
        let mut slot = 0;
        while slot < N {
            slots[slot] = AtomicPtr::new(Self::nothing(slot));
            slot += 1;
        }
        ByNumber { slots, _of: PhantomData }
    }

    /// What stands in an empty slot: 0, but in slot 0 a 1.
    const fn nothing(slot: usize) -> *mut StaticU64 {
        (&raw const NOTHING[if slot == 0 { 1 } else { 0 }]).cast_mut()
    }

    /// The entry that has this number now, if its slot leads to it.
    #[inline(always)]
    pub fn find(&self, number: u64) -> Option<&'static T> {
        // Acquire pairs with the Release in `set`: the entry is fully initialised.
        let at = self.slots[number as usize % N].load(Ordering::Acquire);
        // SAFETY: only `new` and `set` store here, pointers to atomics that live as long as the process.
        let found = unsafe { &*at }.load(Ordering::Relaxed) == number;
        // SAFETY: what stands for an empty slot has a number that leads to another slot, so this is an entry: `set` had a
        // reference to all of it, which begins with its number, as `Numbered` says.
        found.then(|| unsafe { &*at.cast_const().cast::<T>() })
    }

    /// Makes the slot of this number lead to the entry, or to nothing.
    pub fn set(&self, number: u64, to: Option<&'static T>) {
        let slot = number as usize % N;
        let at = to.map_or(Self::nothing(slot), |t| std::ptr::from_ref(t).cast_mut().cast());
        self.slots[slot].store(at, Ordering::Release);
    }

    /// Empties all slots.
    pub fn clear(&self) {
        (0..N as u64).for_each(|slot| self.set(slot, None));
    }
}

impl<T: Numbered, const N: usize> Default for ByNumber<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

/// A node in the chain of all leaked values.
struct Leaked {
    _value: *const (),
    next: *mut Leaked,
}

/// The chain of all values in all tables. Only leak checkers (LeakSanitizer) read it: they look for pointers in static
/// data and on the heap, but not in the mappings that hold the tables.
static LEAKED: AtomicPtr<Leaked> = AtomicPtr::new(std::ptr::null_mut());

/// Adds a value that is never freed to the chain.
fn keep_reachable(node: Box<Leaked>) {
    let node = Box::into_raw(node);
    let mut head = LEAKED.load(Ordering::Relaxed);
    loop {
        // SAFETY: the box was just leaked, and nobody else sees it before the exchange.
        unsafe { (*node).next = head };
        // Release: a reader of the chain finds complete nodes.
        match LEAKED.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Why a value is in no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unput {
    /// The slot is taken or does not exist.
    NoSlot,
    /// The host has no memory for the value.
    NoMemory,
}

/// A table of `N` slots, each of which is filled at most once.
#[derive(Debug)]
pub struct Slots<T: Sync + 'static, const N: usize> {
    slot: MappedArray<AtomicPtr<T>>,
}

impl<T: Sync + Send + 'static, const N: usize> Slots<T, N> {
    /// A table of empty slots.
    pub fn new() -> Result<Self> {
        Ok(Slots { slot: MappedArray::new(N)? })
    }

    /// How many slots there are.
    pub const fn count(&self) -> usize {
        N
    }

    /// A slot, if there is one of that number. The number of slots is a constant, so that a number which is known to be
    /// smaller needs no check.
    #[inline(always)]
    fn at(&self, index: usize) -> Option<&AtomicPtr<T>> {
        #[cfg(not(loom))]
        {
            // SAFETY: `new` has made `N` slots.
            (index < N).then(|| unsafe { self.slot.get_unchecked(index) })
        }
        #[cfg(loom)]
        self.slot.get(index)
    }

    /// The value in a slot, if there is one.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&'static T> {
        // Acquire pairs with the Release exchange in `put`.
        let p = self.at(index)?.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null came from the box that `put` leaked.
        unsafe { p.as_ref() }
    }

    /// Puts a value into an empty slot; drops it where that does not work.
    pub fn put(&self, index: usize, value: T) -> std::result::Result<&'static T, Unput> {
        let slot = self.at(index).ok_or(Unput::NoSlot)?;
        let boxes =
            try_box(value).zip(try_box(Leaked { _value: std::ptr::null(), next: std::ptr::null_mut() }));
        let (value, mut leaked) = boxes.ok_or(Unput::NoMemory)?;
        let p = Box::into_raw(value);
        match slot.compare_exchange(std::ptr::null_mut(), p, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                leaked._value = p.cast_const().cast();
                keep_reachable(leaked);
                // SAFETY: the box was just leaked into the slot; nobody frees it.
                Ok(unsafe { &*p })
            }
            Err(_) => {
                // SAFETY: nobody has seen the pointer; it is still this call's own.
                drop(unsafe { Box::from_raw(p) });
                Err(Unput::NoSlot)
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(C)]
    struct Entry(StaticU64, u32);
    // SAFETY: `repr(C)`, the number first.
    unsafe impl Numbered for Entry {}

    #[test]
    fn an_empty_slot_is_found_by_no_number() {
        let table = ByNumber::<Entry, 64>::new();
        let all = || (0..256).chain(u64::MAX - 256..=u64::MAX);
        assert!(all().all(|n| table.find(n).is_none()));
        for number in all() {
            let entry: &'static Entry = Box::leak(Box::new(Entry(StaticU64::new(number), 7)));
            table.set(number, Some(entry));
            assert_eq!(table.find(number).map(|e| e.1), Some(7));
            assert!(all().all(|n| n == number || table.find(n).is_none()));
            entry.0.store(!number, Ordering::Relaxed);
            assert!(table.find(number).is_none(), "the entry has another number by now");
            table.set(number, None);
        }
        assert!(all().all(|n| table.find(n).is_none()));
    }

    #[test]
    fn puts_once_and_reads() {
        let s = Slots::<u32, 100>::new().unwrap();
        assert!(s.get(3).is_none());
        assert_eq!(s.put(0, 7u32), Ok(&7));
        assert_eq!(s.put(0, 8u32), Err(Unput::NoSlot));
        assert_eq!(s.put(100, 9u32), Err(Unput::NoSlot));
        assert_eq!(s.get(0), Some(&7));
        assert_eq!(s.get(1000), None);
    }
}
