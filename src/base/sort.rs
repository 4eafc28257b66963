//! A heap sort for places where time does not matter: it sorts in place, does not allocate, and is one piece of code for all
//! types. The standard library's sorts are faster, but take 4 to 7 KB of code for each type and key.

/// What is sorted, by positions.
trait Order {
    fn is_after(&self, a: usize, b: usize) -> bool;
    fn swap(&mut self, a: usize, b: usize);
}

struct View<'a, T, F> {
    all: &'a mut [T],
    key: F,
}

impl<T, K: Ord, F: Fn(&T) -> K> Order for View<'_, T, F> {
    fn is_after(&self, a: usize, b: usize) -> bool {
        (self.key)(&self.all[a]) > (self.key)(&self.all[b])
    }
    fn swap(&mut self, a: usize, b: usize) {
        self.all.swap(a, b);
    }
}

/// Sorts by a key, the smallest first. The order of equal keys is not specified, but is the same for the same list.
pub(crate) fn by_key<T, K: Ord>(all: &mut [T], key: impl Fn(&T) -> K) {
    heapsort(all.len(), &mut View { all, key });
}

#[inline(never)]
fn heapsort(count: usize, all: &mut dyn Order) {
    for root in (0..count / 2).rev() {
        sink(root, count, all);
    }
    for end in (1..count).rev() {
        all.swap(0, end);
        sink(0, end, all);
    }
}

/// Moves the element at `root` down until no child comes after it.
fn sink(mut root: usize, end: usize, all: &mut dyn Order) {
    loop {
        let mut child = 2 * root + 1;
        if child >= end {
            return;
        }
        if child + 1 < end && all.is_after(child + 1, child) {
            child += 1;
        }
        if !all.is_after(child, root) {
            return;
        }
        all.swap(root, child);
        root = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_sorts_as_the_standard_library_does(mut all in prop::collection::vec(0u32..50, 0..200)) {
            let mut right = all.clone();
            right.sort_unstable();
            by_key(&mut all, |&n| n);
            prop_assert_eq!(&all, &right);
            right.reverse();
            by_key(&mut all, |&n| std::cmp::Reverse(n));
            prop_assert_eq!(&all, &right);
        }
    }
}
