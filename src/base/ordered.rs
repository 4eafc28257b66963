//! Ordered maps and sets that share the code of one tree. The tree leads from numbers to positions in a list, and the list has
//! the entries. The standard library's maps have 5 to 10 KB of code for each type of entry; these have a tenth of that. In
//! return, a search reads the list after the tree. Where a map is searched often, use the standard one.

use super::boxed::has_room;
use std::collections::btree_map::{BTreeMap, Range};
use std::ops::{Bound, RangeBounds};

/// A key that a number stands for: of two keys, the one with the smaller number comes first.
pub trait Key: Copy {
    /// The number; different keys have different ones.
    fn number(self) -> u64;
    /// The key of a number that `number` has returned.
    fn of(number: u64) -> Self;
}

macro_rules! key {
    ($($number:ty),*) => {$(
        impl Key for $number {
            fn number(self) -> u64 {
                self as u64
            }
            fn of(number: u64) -> Self {
                number as $number
            }
        }
    )*};
}
key!(u16, u32, u64, usize);

impl Key for (u32, u32) {
    fn number(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.1)
    }
    fn of(number: u64) -> Self {
        ((number >> 32) as u32, number as u32)
    }
}

/// From numbers to positions. Its functions are not inlined, so that there is one of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Index(BTreeMap<u64, u32>);

impl Index {
    #[inline(never)]
    fn find(&self, number: u64) -> Option<u32> {
        self.0.get(&number).copied()
    }
    #[inline(never)]
    fn insert(&mut self, number: u64, at: u32) -> Option<u32> {
        self.0.insert(number, at)
    }
    #[inline(never)]
    fn remove(&mut self, number: u64) -> Option<u32> {
        self.0.remove(&number)
    }
    /// Changes the position of a number that is there.
    #[inline(never)]
    fn moved(&mut self, number: u64, to: u32) {
        if let Some(at) = self.0.get_mut(&number) {
            *at = to;
        }
    }
    #[inline(never)]
    fn between(&self, from: Bound<u64>, to: Bound<u64>) -> Steps<'_> {
        Steps(self.0.range((from, to)))
    }
    fn range<K: Key>(&self, range: impl RangeBounds<K>) -> Steps<'_> {
        let number = |k: Bound<&K>| k.map(|k| k.number());
        self.between(number(range.start_bound()), number(range.end_bound()))
    }
    fn all(&self) -> Steps<'_> {
        self.between(Bound::Unbounded, Bound::Unbounded)
    }
}

/// The numbers and positions in a range, in order.
#[derive(Clone, Debug)]
struct Steps<'a>(Range<'a, u64, u32>);

impl Iterator for Steps<'_> {
    type Item = (u64, u32);
    #[inline(never)]
    fn next(&mut self) -> Option<(u64, u32)> {
        self.0.next().map(|(&number, &at)| (number, at))
    }
}

impl DoubleEndedIterator for Steps<'_> {
    #[inline(never)]
    fn next_back(&mut self) -> Option<(u64, u32)> {
        self.0.next_back().map(|(&number, &at)| (number, at))
    }
}

/// \[B\] the most that one more number needs in a tree: a node on each of its levels, which have six numbers or more.
const NODES: usize = 16 * 256;

/// A list of no more slots than this is not made smaller.
const FEW: usize = 64;

/// An ordered map; its functions do what those of [`BTreeMap`] do that have their names. The memory of its list goes back as
/// entries are removed, down to that of a few.
#[derive(Clone, Debug)]
pub struct Map<K, V> {
    index: Index,
    entries: Vec<(K, V)>, // without gaps, where the index says
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Map::new()
    }
}

impl<K, V> Map<K, V> {
    /// An empty map; it has no memory yet.
    pub const fn new() -> Self {
        Map { index: Index(BTreeMap::new()), entries: Vec::new() }
    }
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.index.0.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All entries, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(k, v)| (&*k, v))
    }
    /// All values, in no particular order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|e| &mut e.1)
    }
    fn at(&self, at: u32) -> Option<&(K, V)> {
        self.entries.get(at as usize)
    }
}

impl<K: Key, V> Map<K, V> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        Some(&self.at(self.index.find(key.number())?)?.1)
    }
    /// The same, to change.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.index.find(key.number())?;
        Some(&mut self.entries.get_mut(at as usize)?.1)
    }
    /// Whether a key has a value.
    pub fn contains_key(&self, key: &K) -> bool {
        self.index.find(key.number()).is_some()
    }
    /// Gives a key a value; returns the one that it had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(had) = self.get_mut(&key) {
            return Some(std::mem::replace(had, value));
        }
        self.enter(key, value);
        None
    }
    /// Makes room for one more entry. `false`: the host has no memory for it.
    pub fn make_room(&mut self) -> bool {
        self.entries.try_reserve(1).is_ok() && has_room(NODES)
    }
    /// Enters a key that has no value.
    fn enter(&mut self, key: K, value: V) -> &mut V {
        let at = self.entries.len();
        self.entries.push((key, value));
        self.index.insert(key.number(), at as u32);
        &mut self.entries[at].1
    }
    /// Takes the value of a key.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.index.remove(key.number())?;
        let value = self.take(at);
        self.fit();
        Some(value)
    }
    /// Takes the entry at a position that the index no longer has. The last entry moves there.
    fn take(&mut self, at: u32) -> V {
        let value = self.entries.swap_remove(at as usize).1;
        if let Some((moved, _)) = self.entries.get(at as usize) {
            self.index.moved(moved.number(), at);
        }
        value
    }
    /// Makes the list smaller if no more than a quarter of it is used. It stays as it is if the host has no memory for that:
    /// to remove an entry must not need any.
    fn fit(&mut self) {
        let (used, slots) = (self.entries.len(), self.entries.capacity());
        let mut fewer = Vec::new();
        if slots > FEW && used <= slots / 4 && fewer.try_reserve_exact((2 * used).max(FEW)).is_ok() {
            fewer.append(&mut self.entries);
            self.entries = fewer;
        }
    }
    /// The place of a key, filled or not.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        Entry { map: self, key }
    }
    /// Removes all.
    pub fn clear(&mut self) {
        *self = Map::new();
    }
    /// All entries.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { steps: self.index.all(), of: self }
    }
    /// The entries whose keys are in a range.
    pub fn range(&self, range: impl RangeBounds<K>) -> Iter<'_, K, V> {
        Iter { steps: self.index.range(range), of: self }
    }
    /// The last of the entries whose keys are in a range, to change.
    pub fn last_mut(&mut self, range: impl RangeBounds<K>) -> Option<(&K, &mut V)> {
        let (_, at) = self.index.range(range).next_back()?;
        self.entries.get_mut(at as usize).map(|(k, v)| (&*k, v))
    }
    /// The first entry.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }
    /// The last entry.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next_back()
    }
    /// All keys.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|e| e.0)
    }
    /// All values.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|e| e.1)
    }
    /// Keeps the entries for which `keep` says so; it is asked in no particular order.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        let mut at = 0;
        while let Some((key, value)) = self.entries.get_mut(at) {
            if keep(key, value) {
                at += 1;
            } else {
                self.index.remove(key.number());
                drop(self.take(at as u32));
            }
        }
        self.fit();
    }
    /// All values, in order.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> {
        self.into_iter().map(|e| e.1)
    }
}

/// The place of a key in a [`Map`].
#[derive(Debug)]
pub struct Entry<'a, K, V> {
    map: &'a mut Map<K, V>,
    key: K,
}

impl<'a, K: Key, V> Entry<'a, K, V> {
    /// The value; if there is none, the one that `make` returns is entered.
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'a mut V {
        let Entry { map, key } = self;
        match map.index.find(key.number()) {
            Some(at) => &mut map.entries[at as usize].1,
            None => map.enter(key, make()),
        }
    }
    /// The same with a value that is made in any case.
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }
    /// The same with the default.
    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }
}

/// The entries of a [`Map`], in order.
#[derive(Debug)]
pub struct Iter<'a, K, V> {
    steps: Steps<'a>,
    of: &'a Map<K, V>,
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Iter { steps: self.steps.clone(), of: self.of }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);
    fn next(&mut self) -> Option<Self::Item> {
        let (_, at) = self.steps.next()?;
        self.of.at(at).map(|(k, v)| (k, v))
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (_, at) = self.steps.next_back()?;
        self.of.at(at).map(|(k, v)| (k, v))
    }
}

impl<'a, K: Key, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;
    fn into_iter(self) -> Self::IntoIter {
        let mut entries: Vec<Option<(K, V)>> = self.entries.into_iter().map(Some).collect();
        let in_order = self.index.all().filter_map(|(_, at)| entries.get_mut(at as usize)?.take());
        in_order.collect::<Vec<_>>().into_iter()
    }
}

impl<K: Key, V> Extend<(K, V)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, more: I) {
        more.into_iter().for_each(|(k, v)| _ = self.insert(k, v));
    }
}

impl<K: Key, V> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let mut map = Map::new();
        map.extend(all);
        map
    }
}

impl<K: Key, V, const N: usize> From<[(K, V); N]> for Map<K, V> {
    fn from(all: [(K, V); N]) -> Self {
        all.into_iter().collect()
    }
}

/// An ordered set, as [`Map`] is an ordered map. It returns its keys by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set<K> {
    index: Index,
    _of: std::marker::PhantomData<fn() -> K>,
}

impl<K> Default for Set<K> {
    fn default() -> Self {
        Set::new()
    }
}

impl<K> Set<K> {
    /// An empty set; it has no memory yet.
    pub(crate) const fn new() -> Self {
        Set { index: Index(BTreeMap::new()), _of: std::marker::PhantomData }
    }
    /// How many keys there are.
    pub(crate) fn len(&self) -> usize {
        self.index.0.len()
    }
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.index.0.clear();
    }
}

impl<K: Key> Set<K> {
    /// Makes room for a key. `false`: the host has no memory for it.
    pub(crate) fn make_room(&self, key: &K) -> bool {
        self.contains(key) || has_room(NODES)
    }
    /// Adds a key; `false` if it is there already.
    pub(crate) fn insert(&mut self, key: K) -> bool {
        self.index.insert(key.number(), 0).is_none()
    }
    /// Removes a key; `false` if it is not there.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        self.index.remove(key.number()).is_some()
    }
    /// Whether a key is there.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.index.find(key.number()).is_some()
    }
    /// All keys.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = K> + Clone {
        self.index.all().map(|s| K::of(s.0))
    }
    /// Those in a range.
    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = K> {
        self.index.range(range).map(|s| K::of(s.0))
    }
    /// Takes the first one.
    pub(crate) fn pop_first(&mut self) -> Option<K> {
        let first = self.iter().next()?;
        self.remove(&first);
        Some(first)
    }
    /// Keeps those for which `keep` says so.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(K) -> bool) {
        let mut after = Bound::Unbounded;
        while let Some((number, _)) = self.index.between(after, Bound::Unbounded).next() {
            if !keep(K::of(number)) {
                self.index.remove(number);
            }
            after = Bound::Excluded(number);
        }
    }
}

impl<K: Key> Extend<K> for Set<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, more: I) {
        more.into_iter().for_each(|k| _ = self.insert(k));
    }
}

impl<K: Key> FromIterator<K> for Set<K> {
    fn from_iter<I: IntoIterator<Item = K>>(all: I) -> Self {
        let mut set = Set::new();
        set.extend(all);
        set
    }
}

impl<K: Key, const N: usize> From<[K; N]> for Set<K> {
    fn from(all: [K; N]) -> Self {
        all.into_iter().collect()
    }
}

impl<K: Key> IntoIterator for Set<K> {
    type Item = K;
    type IntoIter = std::vec::IntoIter<K>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter().collect::<Vec<K>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16, u32),
        Remove(u16),
        Add(u16),
        Keep(u16),
        PopFirst,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0u16..40, any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
            (0u16..40).prop_map(Step::Remove),
            (0u16..40).prop_map(Step::Add),
            (1u16..6).prop_map(Step::Keep),
            Just(Step::PopFirst),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn they_do_what_the_standard_ones_do(steps in steps(), from in 0u16..40, to in 0u16..40) {
            let (mut map, mut set) = (Map::new(), Set::new());
            let (mut right, mut keys) = (BTreeMap::new(), BTreeSet::new());
            let (from, to) = (from.min(to), from.max(to));
            for step in steps {
                match step {
                    Step::Insert(k, v) => {
                        prop_assert_eq!(map.insert(k, v), right.insert(k, v));
                        prop_assert_eq!(set.insert(k), keys.insert(k));
                    }
                    Step::Remove(k) => {
                        prop_assert_eq!(map.remove(&k), right.remove(&k));
                        prop_assert_eq!(set.remove(&k), keys.remove(&k));
                    }
                    Step::Add(k) => {
                        *map.entry(k).or_default() |= 1u32;
                        *right.entry(k).or_default() |= 1u32;
                    }
                    Step::Keep(n) => {
                        map.retain(|k, v| k % n != 1 || *v % 2 == 0);
                        right.retain(|k, v| k % n != 1 || *v % 2 == 0);
                        set.retain(|k| k % n != 1);
                        keys.retain(|k| k % n != 1);
                    }
                    Step::PopFirst => prop_assert_eq!(set.pop_first(), keys.pop_first()),
                }
                prop_assert_eq!((map.len(), map.is_empty()), (right.len(), right.is_empty()));
                prop_assert_eq!((set.len(), set.is_empty()), (keys.len(), keys.is_empty()));
                prop_assert_eq!(map.get(&from), right.get(&from));
                prop_assert_eq!((map.contains_key(&to), set.contains(&to)), (right.contains_key(&to), keys.contains(&to)));
                prop_assert!(map.iter().eq(&right) && map.iter().rev().eq(right.iter().rev()));
                prop_assert!(map.range(from..to).eq(right.range(from..to)));
                prop_assert!(map.range(..=to).rev().eq(right.range(..=to).rev()));
                prop_assert!(set.range(from..).eq(keys.range(from..).copied()));
                prop_assert_eq!(map.last_key_value(), right.last_key_value());
                prop_assert_eq!(map.last_mut(..to), right.range_mut(..to).next_back());
                prop_assert_eq!(map.entries.len(), map.len());
            }
            prop_assert!(map.clone().into_values().eq(right.clone().into_values()));
            prop_assert!(map.into_iter().eq(right) && set.into_iter().eq(keys));
        }
    }

    #[test]
    fn memory_goes_back_and_removing_takes_none() {
        let filled = || (0..100_000u32).map(|k| (k, [u64::from(k); 4])).collect::<Map<_, _>>();
        let mut map = filled();
        for key in (0..100_000).map(|n| n * 7 % 100_000).filter(|n| n % 20_000 != 0) {
            let slots = map.entries.capacity();
            assert_eq!(map.remove(&key), Some([key.into(); 4]));
            assert!(map.entries.capacity() <= slots && map.entries.capacity() <= (4 * map.len() + 4).max(64));
        }
        assert!(map.keys().copied().eq([0, 20_000, 40_000, 60_000, 80_000]));
        assert_eq!(map.iter_mut().count(), 5);
        assert!(map.entries.capacity() <= 64, "{} slots for 5 entries", map.entries.capacity());
        let mut map = filled();
        map.retain(|k, _| k % 1000 == 1);
        assert!(map.iter().all(|(&k, v)| v[0] == u64::from(k)) && map.len() == 100);
        assert!(map.entries.capacity() <= 400, "{} slots for 100 entries", map.entries.capacity());
    }

    #[test]
    fn keys_of_two_parts_are_in_the_order_of_tuples() {
        for (a, b) in [((0, u32::MAX), (1, 0)), ((1, 2), (1, 3)), ((1, 7), (2, 0))] {
            assert!(a < b && a.number() < b.number());
            assert_eq!(<(u32, u32)>::of(b.number()), b);
        }
    }
}
