//! The names of a record, by number.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Things that are referred to by number, each once. Number 0 stands for what is not known.
#[derive(Clone, Debug)]
pub(crate) struct Table<K> {
    all: Vec<K>,
    numbers: HashMap<K, u32>,
}

impl<K: Clone + Eq + Hash> Table<K> {
    pub(crate) fn new(unknown: K) -> Table<K> {
        let mut t = Table { all: Vec::new(), numbers: HashMap::new() };
        t.number(unknown);
        t
    }

    /// The number of a thing that has one.
    pub(crate) fn known<Q: Eq + Hash + ?Sized>(&self, thing: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
    {
        self.numbers.get(thing).copied()
    }

    /// The number of a thing, which is new or not.
    pub(crate) fn number(&mut self, thing: K) -> u32 {
        if let Some(&n) = self.numbers.get(&thing) {
            return n;
        }
        let n = self.all.len() as u32;
        self.all.push(thing.clone());
        self.numbers.insert(thing, n);
        n
    }

    pub(crate) fn all(&self) -> &[K] {
        &self.all
    }

    pub(crate) fn get(&self, n: u32) -> Option<&K> {
        self.all.get(n as usize)
    }
}
