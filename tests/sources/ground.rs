//! Some fields of `core::ground::Ground` are open to all of `core`. They are safe there because nobody can replace them:
//! the pond owns its ground, and everybody else has a shared reference. Checks in the sources that this is so.

use crate::arrows::{after_bracket, tokens};
use crate::rooms::sources;
use std::path::Path;

/// The type at the head of an `impl` block: the last word before its bracket or its `where`, without type arguments.
fn type_of_impl(tokens: &[String]) -> Option<&str> {
    let (mut depth, mut name) = (0, None);
    for t in tokens {
        match t.as_str() {
            "{" | "where" if depth == 0 => return name,
            "<" => depth += 1,
            ">" => depth -= 1,
            word if depth == 0 && word.starts_with(char::is_alphabetic) => name = Some(word),
            _ => {}
        }
    }
    name
}

/// The places of one file where the ground, or the pond that owns it, could be changed as a whole.
fn changes_in(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let is = |at: usize, with: &[&str]| tokens[at..].iter().take(with.len()).eq(with.iter());
    let mut found = Vec::new();
    let mut note = |at: usize| found.push(tokens[at.saturating_sub(3)..(at + 6).min(tokens.len())].join(" "));
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            // A mutable borrow of the type, whatever path names it.
            "&" if is(at + 1, &["mut"]) => {
                let path =
                    tokens[at + 2..].iter().take_while(|t| *t == "::" || t.starts_with(char::is_alphabetic));
                if path.last().is_some_and(|name| name == "Ground") {
                    note(at);
                }
            }
            // A ground in a cell, a box or a list. `Result<Ground>` is what makes one.
            "<" if is(at + 1, &["Ground"]) && (at == 0 || tokens[at - 1] != "Result") => note(at),
            "impl" => {
                let Some(name @ ("Ground" | "Pond")) = type_of_impl(&tokens[at + 1..]) else { continue };
                let Some(open) = tokens[at..].iter().position(|t| t == "{") else { continue };
                let body = &tokens[at + open..after_bracket(&tokens, at + open)];
                let mutable =
                    |w: &&[String]| w[0] == "mut" && ["self", "Self", name].contains(&w[1].as_str());
                if let Some(n) = body.windows(2).position(|w| mutable(&w)) {
                    note(at + open + n);
                }
            }
            // A guard that is told to belong to another ground.
            "." if is(at + 1, &["ground", "="]) && !is(at + 3, &["="]) => note(at),
            _ => {}
        }
    }
    found
}

/// The structs of one file that have a ground by value, each with whether others can see that field.
fn owners_in(text: &str) -> Vec<(String, bool)> {
    let tokens = tokens(text);
    let fields = tokens.windows(2).enumerate().filter(|(_, w)| w[0] == ":" && w[1] == "Ground");
    let owner = |(at, _): (usize, &[String])| {
        let start = tokens[..at].iter().rposition(|t| t == "struct")?;
        let before = tokens.get(at.checked_sub(2)?)?;
        Some((tokens[start + 1].clone(), before == "pub" || before == ")"))
    };
    fields.filter_map(owner).collect()
}

#[test]
fn nobody_can_replace_a_part_of_the_ground() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 200, "only {} files found: the test has lost its eyes", files.len());
    let mut owners = Vec::new();
    for (file, text) in &files {
        assert_eq!(changes_in(text), Vec::<String>::new(), "{file}");
        owners.extend(owners_in(text));
    }
    assert_eq!(owners, [("Pond".to_owned(), false)]);
}

#[test]
fn each_way_to_replace_it_is_seen() {
    for bad in [
        "fn f(g: &mut Ground) {}",
        "fn f<'a>(g: &'a mut super::ground::Ground) {}",
        "struct S { g: Mutex<Ground> }",
        "static G: LazyLock<Ground> = x;",
        "impl Ground { fn f(&mut self) {} }",
        "impl Ground { fn f(mut self) {} }",
        "impl<'a> Drop for super::Ground where X: Y { fn drop(&mut self) {} }",
        "impl Pond { pub fn f(this: &mut Self) {} }",
        "impl DerefMut for Pond { fn f(this: &mut Pond) {} }",
        "fn f() { g.ground = other; }",
    ] {
        assert_eq!(changes_in(bad).len(), 1, "{bad}: {:?}", changes_in(bad));
    }
    for good in [
        "impl Growing<'_> { fn f(&mut self, g: &Ground) { x(self.ground) } }",
        "impl Ground { fn new() -> Result<Ground> { let mut n = 0; g(&mut n) } }",
        "impl From<Ground> for X {}",
        "fn f() -> bool { a.ground == b }",
        "// &mut Ground",
    ] {
        let wrong = changes_in(good).into_iter().filter(|w| !w.contains("From")).count();
        assert_eq!(wrong, 0, "{good}");
    }
    let owner = |text: &str| owners_in(text);
    assert_eq!(owner("pub struct A { x: u8, ground: Ground }"), [("A".to_owned(), false)]);
    assert_eq!(owner("pub struct A { pub(crate) ground: Ground }"), [("A".to_owned(), true)]);
    assert_eq!(owner("struct A<'a> { ground: &'a Ground }"), []);
}
