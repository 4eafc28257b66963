//! The nearest of some words to a mistyped one.

/// How many insertions, deletions, changes and swaps of adjacent letters lead from one word to the other, ignoring
/// the case of ASCII letters, of which all keys and values are made.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_ascii_lowercase().chars().collect();
    let b: Vec<char> = b.to_ascii_lowercase().chars().collect();
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Letters that a part of a word must have to say which one is meant.
const LEAST_PART: usize = 4;

/// The word that is nearest to `wrong`; the first of equals. A word that begins with it, or has it inside, is nearer than any
/// other: names are cut short more often than they are mistyped.
pub(super) fn nearest<'a>(wrong: &str, words: impl Iterator<Item = &'a str>) -> &'a str {
    // Long texts are cut: the first letters show what was meant, and the search stays short.
    let wrong: String = wrong.chars().take(64).collect();
    let cut = wrong.to_ascii_lowercase();
    let part = |w: &str| cut.len() < LEAST_PART || !w.to_ascii_lowercase().contains(&cut);
    words.min_by_key(|w| (part(w), distance(&wrong, w))).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_what_was_meant() {
        assert_eq!((distance("", "abc"), distance("abc", "acb"), distance("Kitten", "sitting")), (3, 1, 3));
        let words = ["native", "cudaMallocAsync", "none"];
        assert_eq!(nearest("natvie", words.into_iter()), "native");
        assert_eq!(nearest("cudamallocasync", words.into_iter()), "cudaMallocAsync");
        let keys = ["backend", "max_split_size_mb", "pinned_max_cached_size_mb", "headroom_mb"];
        assert_eq!(nearest("max_split", keys.into_iter()), "max_split_size_mb");
        assert_eq!(nearest("max_cached_size_mb", keys.into_iter()), "pinned_max_cached_size_mb");
        assert_eq!(nearest("hedroom_mb", keys.into_iter()), "headroom_mb");
        assert_eq!(nearest("", std::iter::empty()), "");
        nearest(&"x".repeat(1 << 20), words.into_iter());
    }
}
