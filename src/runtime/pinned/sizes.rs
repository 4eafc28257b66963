//! Sizes of cached host memory. A request has a block of the next size: multiples of 64 bytes up to 512, and eight
//! sizes for each power of two above, so that at most an eighth of a request is wasted.

/// [B] blocks up to this lie side by side in slabs. Larger ones are whole pages, and taken one by one.
pub(crate) const SLAB_MAX: u64 = 32 << 10;
/// [B] slabs are multiples of this.
const SLAB: u64 = 64 << 10;
/// Blocks of a slab at least.
const SLAB_BLOCKS: u64 = 16;
/// [B] the unit of the smallest sizes, and the alignment of all.
const UNIT: u64 = 64;
/// [B] up to here sizes are multiples of the unit.
const EVEN: u64 = 512;
/// [B] of a page on every system so far, or a part of it.
const PAGE: u64 = 4096;

/// [B] that are taken from the device for a block of this size: a slab, or the block alone. What the last block of
/// a slab leaves is less than 1/16 of it.
pub(crate) fn span_of(size: u64) -> u64 {
    if size > SLAB_MAX { size } else { (size * SLAB_BLOCKS).next_multiple_of(SLAB) }
}

/// [B] of the block that serves a request of `bytes`; above `exact` only whole pages are rounded to.
pub(crate) fn size_of(bytes: u64, exact: u64) -> u64 {
    let bytes = bytes.max(1);
    if bytes <= EVEN {
        return bytes.next_multiple_of(UNIT);
    }
    let step = if bytes > exact.max(SLAB_MAX) { PAGE } else { 1 << ((bytes - 1).ilog2() - 3) };
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_an_eighth_is_wasted() {
        let sizes = (1..200_000).chain((17..62).flat_map(|b| {
            let n = 1u64 << b;
            [n - 1, n, n + 1, n + n / 8, n + n / 8 + 1, n + n / 2 + 1]
        }));
        for bytes in sizes {
            let size = size_of(bytes, u64::MAX);
            assert!(size >= bytes && size.is_multiple_of(UNIT), "{bytes}: {size}");
            assert!(size - bytes < UNIT || (size - bytes) * 8 <= bytes, "{bytes}: {size}");
            assert_eq!(size_of(size, u64::MAX), size, "a size is its own");
            let span = span_of(size);
            assert!(span.is_multiple_of(PAGE) && (size > SLAB_MAX) == (span == size));
            assert!(span % size * 16 < span, "{size}");
            let exact = size_of(bytes, 100_000);
            assert!(exact == size || bytes > 100_000 && exact - bytes < PAGE);
        }
        assert_eq!(size_of(u64::MAX, u64::MAX), u64::MAX);
    }
}
