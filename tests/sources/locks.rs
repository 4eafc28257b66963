//! The tables of locks in docs/architecture.md are complete and true: each lock that `src/` declares has a row, each row a
//! lock, and what a level guards is told in the words of `src/locks.rs`. No lock is without a level.

use crate::rooms::sources;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A lock that is declared: its level, the file in `src/`, and its name there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Declared {
    level: String,
    file: String,
    name: String,
}

/// The code of a file, without comments and without the items that only tests have.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().map(|l| l.split("//").next().unwrap().trim_end());
    while let Some(line) = lines.next() {
        if ["#[cfg(test)]", "#[cfg(all(test"].iter().any(|t| line.starts_with(t)) {
            // Its end is the end of a line without indentation.
            let ends = |l: &str| l == "}" || l.ends_with(';') && !l.starts_with(' ');
            lines.by_ref().find(|l| ends(l));
        } else {
            code += line;
            code.push('\n');
        }
    }
    code
}

/// The arguments of a generic type, whose `<` was just read: up to its `>`.
fn arguments(rest: &str) -> &str {
    let mut depth = 1;
    let end = rest.char_indices().find(|(at, c)| {
        let arrow = *c == '>' && rest[..*at].ends_with('-');
        depth += i32::from(*c == '<') - i32::from(*c == '>' && !arrow);
        depth == 0
    });
    &rest[..end.expect("the type ends").0]
}

/// The name before a type: that of a field or a static (`name: `), a tuple (`struct Name(`), or a type (`type Name = `).
fn name_before(before: &str) -> Option<String> {
    // What else stands between the name and the lock: another type around it, or a word such as `pub`.
    let start = before.rfind([';', '{', '}', ',']).map_or(0, |at| at + 1);
    let part = before[start..].trim_start();
    let last_word = |s: &str| -> String {
        let word = s.trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
        word.unwrap_or_default().to_owned()
    };
    // A tuple struct, after its attributes and its own visibility.
    if let Some((_, tuple)) = part.split_once("struct ") {
        return Some(last_word(tuple.split(['(', '<']).next()?)).filter(|name| !name.is_empty());
    }
    let at = part.find(": ").or_else(|| part.rfind("= "))?;
    let name = last_word(part[..at].trim_end_matches(':').split('<').next()?);
    (!name.is_empty()).then_some(name)
}

/// The locks that one file declares. What only passes one on (`&Mutex<..>`) declares none.
fn declared_in(file: &str, text: &str) -> Vec<Declared> {
    let code = code_of(text);
    let mut found = Vec::new();
    for kind in ["Mutex<", "RwLock<", "Lock<"] {
        for (at, _) in code.match_indices(kind) {
            let before = &code[..at];
            let part_of_a_name = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let line = before.rsplit('\n').next().unwrap().trim_start();
            let reference = before.trim_end().ends_with('&')
                || before.rsplit(' ').nth(1).is_some_and(|w| w.starts_with("&'") || w.contains(" &'"));
            let other =
                ["use ", "impl", "fn ", "pub fn ", "pub(super) fn "].iter().any(|w| line.starts_with(w));
            if part_of_a_name || reference || other {
                continue;
            }
            let inside = arguments(&code[at + kind.len()..]);
            let level =
                inside.rsplit("locks::").next().filter(|l| inside.contains("locks::") && !l.contains('>'));
            let level = level.map_or("Leaf", |l| l.trim().trim_end_matches(','));
            let name = name_before(before).unwrap_or_else(|| panic!("{file}: a lock without a name: {line}"));
            found.push(Declared { level: level.to_owned(), file: file.to_owned(), name });
        }
    }
    // A lock whose users say themselves that they hold it.
    for (at, start) in code.match_indices("HeldLock::new::<locks::") {
        let level = code[at + start.len()..].split('>').next().unwrap().to_owned();
        found.push(Declared { level, file: file.to_owned(), name: "state".to_owned() });
    }
    found
}

/// All locks of `src/`, but for what `base/sync` makes them of and what only models have.
fn declared() -> BTreeSet<Declared> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut all = BTreeSet::new();
    for (file, text) in files {
        let file = Path::new(&file).strip_prefix(&src).unwrap().display().to_string();
        let tests = file.split('/').any(|part| part == "tests" || part == "tests.rs");
        if tests || file.starts_with("base/sync/") {
            continue;
        }
        // Under loom, and nowhere else, an array is a map under a lock.
        let text = text.split("#[cfg(loom)]\nmod modelled").next().unwrap();
        let code = code_of(text);
        for stray in ["sync::Mutex", "sync::RwLock", "sync::{Mutex", " Mutex, MutexGuard, PoisonError"] {
            let from_std = code.match_indices(stray).any(|(at, _)| code[..at].ends_with("std::"));
            assert!(!from_std, "{file} has a lock of the standard library, which has no level");
        }
        all.extend(declared_in(&file, text));
    }
    all
}

/// The rows of the table that begins with that head, as their cells.
fn rows<'a>(page: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let table = page.split(head).nth(1).unwrap_or_else(|| panic!("a table with the head {head:?}"));
    let cells = |line: &'a str| line.trim_matches('|').split(" | ").map(str::trim).collect();
    table.lines().skip(2).take_while(|l| l.starts_with('|')).map(cells).collect()
}

/// The words in backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_tables_of_locks_are_those_of_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let mut told = BTreeSet::new();
    let mut order = Vec::new();
    for row in rows(&page, "| lock | where | what it guards | what happens under it |") {
        let [level, places, guards, under] = row[..] else { panic!("four cells: {row:?}") };
        let level = quoted(level)[0];
        let guarded = millpond::locks::ALL.iter().find(|(name, _)| *name == level);
        assert_eq!(guarded.map(|(_, doc)| doc.trim()), Some(guards), "{level}: the words of src/locks.rs");
        assert!(!under.is_empty(), "{level}");
        order.push(level);
        for place in quoted(places) {
            let (file, name) = place.split_once("::").unwrap_or_else(|| panic!("{level}: `file::name`"));
            told.insert(Declared { level: level.into(), file: file.into(), name: name.into() });
        }
    }
    let levels: Vec<&str> = millpond::locks::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(order, levels, "outermost first");
    for row in rows(&page, "| where | locks of the level `Leaf` |") {
        let [file, locks] = row[..] else { panic!("two cells: {row:?}") };
        for name in locks.split("; ").map(|lock| quoted(lock)[0]) {
            told.insert(Declared { level: "Leaf".into(), file: quoted(file)[0].into(), name: name.into() });
        }
    }
    let declared = declared();
    assert!(declared.len() > 80, "only {} locks found: the test has lost its eyes", declared.len());
    let missing: Vec<_> = declared.difference(&told).collect();
    assert!(missing.is_empty(), "declared, and not in docs/architecture.md: {missing:#?}");
    let wrong: Vec<_> = told.difference(&declared).collect();
    assert!(wrong.is_empty(), "in docs/architecture.md, and not declared so: {wrong:#?}");
}

#[test]
fn declarations_of_locks_are_found() {
    let text = "
use crate::base::sync::system::{Mutex, lock};
struct A<'a> {
    pub(super) one: Mutex<Vec<u64>, locks::Growth>, // a comment: Mutex<u8>
    two: [Lock<BTreeMap<u8, fn(u8) -> u8>>; 2],
    other: &'a Lock<u8, locks::Heap>,
}
#[derive(Default)]
pub(super) struct B(pub(crate) RwLock<
    List,
    locks::Stripe,
>);
#[derive(Debug)]
struct G(Mutex<u8>);
static C: std::sync::LazyLock<Mutex<u8>> = std::sync::LazyLock::new(Mutex::default);
type D = Arc<Mutex<u8>>;
static E: Mutex<R, locks::Registry> =
    Mutex::new(R { a: OnceLock::new() });
fn f(of: &Mutex<u8>) -> MutexGuard<'_, u8> {
    HeldLock::new::<locks::Heap>(7)
}
#[cfg(test)]
static F: Mutex<u8> = Mutex::new(0);
";
    let found: BTreeMap<String, String> =
        declared_in("x.rs", text).into_iter().map(|d| (d.name, d.level)).collect();
    let expected = [
        ("B", "Stripe"),
        ("C", "Leaf"),
        ("D", "Leaf"),
        ("E", "Registry"),
        ("G", "Leaf"),
        ("one", "Growth"),
        ("state", "Heap"),
        ("two", "Leaf"),
    ];
    let expected = expected.into_iter().map(|(n, l)| (n.to_owned(), l.to_owned()));
    assert_eq!(found, expected.collect());
}
