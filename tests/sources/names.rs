//! The names of the C API: `millpond_<noun>_<verb>`, or the reason why not in CONTRIBUTING.md, whose table has each such
//! function, and no others.

use crate::symbols::exports;
use std::collections::BTreeSet;
use std::path::Path;

/// What functions are about, the longer ones before those that they begin with.
const NOUNS: [&str; 17] = [
    "device_type",
    "device_history",
    "device_record",
    "device",
    "group",
    "pool",
    "stream",
    "event",
    "capture",
    "checkpoint",
    "scope",
    "tag",
    "dlpack",
    "unified",
    "host_memory_stats",
    "host",
    "memory_stats",
];

/// What they do.
const VERBS: [&str; 46] = [
    "add",
    "advise",
    "alloc",
    "begin",
    "checkpoint",
    "configure",
    "create",
    "destroy",
    "empty",
    "enable",
    "end",
    "export",
    "find",
    "forget",
    "free",
    "get",
    "join",
    "keep",
    "leave",
    "list",
    "load",
    "poll",
    "pop",
    "prefetch",
    "push",
    "query",
    "read",
    "record",
    "register",
    "release",
    "remove",
    "reset",
    "restore",
    "send",
    "serve",
    "set",
    "sleep",
    "start",
    "stop",
    "synchronize",
    "trim",
    "unregister",
    "wait",
    "wake",
    "walk",
    "write",
];

fn follows_the_rule(function: &str) -> bool {
    let rest = function.strip_prefix("millpond_").unwrap_or_default();
    let Some(noun) = NOUNS.iter().find(|n| rest.starts_with(&format!("{n}_"))) else { return false };
    let verb = rest[noun.len() + 1..].split('_').next().unwrap_or_default();
    VERBS.contains(&verb)
}

/// The functions that a text names as `millpond_...`.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split('`').skip(1).step_by(2);
    words.filter(|w| w.starts_with("millpond_") && !w.contains('<')).map(str::to_owned).collect()
}

#[test]
fn each_function_is_a_noun_and_a_verb_or_has_a_reason() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md")).unwrap();
    let (_, section) = text.split_once("\n### Names in C").expect("a section of the names");
    let section = section.split("\n#").next().unwrap();
    let others: BTreeSet<String> = exports().into_iter().filter(|f| !follows_the_rule(f)).collect();
    let listed = named(section);
    let unlisted: Vec<_> = others.difference(&listed).collect();
    assert!(
        unlisted.is_empty(),
        "neither millpond_<noun>_<verb> nor in CONTRIBUTING.md with a reason: {unlisted:?}"
    );
    let wrong: Vec<_> = listed.difference(&others).collect();
    assert!(
        wrong.is_empty(),
        "in CONTRIBUTING.md as exceptions, which they are not, or not there: {wrong:?}"
    );
}

#[test]
fn the_rule_can_be_broken() {
    assert!(follows_the_rule("millpond_device_type_load") && follows_the_rule("millpond_pool_alloc_batch"));
    for name in
        ["millpond_alloc", "millpond_device", "millpond_device_last_oom", "millpond_stuff_get", "device_get"]
    {
        assert!(!follows_the_rule(name), "{name}");
    }
}
