//! Known failures, and why they remain. An entry that no longer occurs fails the test.

/// One entry: parts of the names say where, and a part of what is said.
#[derive(Debug)]
pub struct Known {
    pub kind: &'static str,
    pub operation: &'static str,
    pub call: &'static str,
    pub says: &'static str,
    #[allow(dead_code, reason = "for who reads")]
    pub why: &'static str,
}

pub const KNOWN: &[Known] = &[];

/// The entry that tells of this.
pub fn find(kind: &str, operation: &str, call: &str, says: &str) -> Option<usize> {
    KNOWN.iter().position(|k| {
        k.kind == kind && operation.contains(k.operation) && call.contains(k.call) && says.contains(k.says)
    })
}
