//! Heaps on change lists.

use super::*;
use crate::core::shape::{Fine, Shape};
use crate::locks;

struct Rig {
    maps: Maps,
    aliases: Lock<Aliases, locks::Aliases>,
    changed: Changed,
    stuck: Stuck,
    tied: Tied,
    heaps: Vec<&'static Heap>,
}

impl Rig {
    fn new() -> Rig {
        let fine = Fine { small: true, medium: true };
        let shape = Shape::new(512, 0, 64 << 20, fine).unwrap();
        let none = crate::core::units::GranuleRun::new(32, 0);
        Rig {
            maps: Maps::new(shape, 32, 0, u64::MAX).unwrap(),
            aliases: Lock::new(Aliases::new(none, 0)),
            changed: Changed::default(),
            stuck: Stuck::default(),
            tied: Tied::default(),
            heaps: (0..3).map(|i| &*Box::leak(Box::new(Heap::new(i, Source::Segments)))).collect(),
        }
    }

    fn shared(&self) -> Shared<'_> {
        Shared {
            maps: &self.maps,
            aliases: &self.aliases,
            changed: &self.changed,
            stuck: &self.stuck,
            tied: &self.tied,
        }
    }

    fn take(&self, looker: usize) -> Vec<u32> {
        let mut into = Vec::new();
        // A cyclic list would never end.
        let left = std::cell::Cell::new(100);
        let get = |i| {
            left.set(left.get() - 1);
            (left.get() > 0).then(|| self.heaps[i as usize].listed())
        };
        self.changed.take(looker, get, &mut into);
        into.sort_unstable();
        into
    }
}

#[test]
fn who_looks_is_told_once_and_again_after_it_has_looked() {
    let rig = Rig::new();
    rig.heaps.iter().for_each(|x| drop(x.lock(rig.shared())));
    assert_eq!((rig.take(LEDGER), rig.take(STOCK)), (vec![0, 1, 2], vec![0, 1, 2]));
    // Taken, but not looked at yet: nothing new.
    drop(rig.heaps[1].lock(rig.shared()));
    assert_eq!((rig.take(LEDGER), rig.take(STOCK)), (vec![], vec![]));
    rig.heaps[1].look(rig.shared()).rest(STOCK);
    drop(rig.heaps[1].lock(rig.shared()));
    assert_eq!(rig.take(STOCK), vec![1]);
}

#[test]
fn a_heap_that_rests_while_it_is_listed_is_not_listed_twice() {
    let rig = Rig::new();
    for _ in 0..3 {
        for x in &rig.heaps {
            x.look(rig.shared()).rest(STOCK); // one who had it from an earlier look
            drop(x.lock(rig.shared()));
        }
    }
    assert_eq!(rig.take(STOCK), vec![0, 1, 2]);
    assert_eq!(rig.take(LEDGER), vec![0, 1, 2]);
}
