//! The text of options of the allocator: `key:value,key:value`. What they mean is the library's business.

/// The parts between commas, but for those in brackets.
pub(crate) fn items(text: &str) -> Vec<&str> {
    let (mut out, mut start, mut depth) = (Vec::new(), 0, 0u32);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                out.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_brackets_do_not_separate() {
        assert_eq!(items("a:[1:2,>:8],b:1"), ["a:[1:2,>:8]", "b:1"]);
        assert_eq!(items(""), [""]);
        assert_eq!(items("a:],b"), ["a:]", "b"]);
    }
}
