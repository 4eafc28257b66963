//! Reads which files of a room name which: by `use`, and by paths in the code, such as `super::x::y()`. What only tests
//! name does not count.
//!
//! A file is scanned as tokens, without comments and texts. A name counts for the file that defines it, not for the one
//! that hands it on with `pub use`; a file that hands a name on counts as naming it only if it uses the name itself.

use std::collections::{BTreeMap, BTreeSet};

/// A file of a room by its path as a module, such as `["runtime", "memory", "pooled"]`.
pub(crate) type File = Vec<String>;

/// A name that a file has from elsewhere by `use`; `*` for all names of a module.
struct Import {
    name: String,
    path: Vec<String>,
    public: bool,
}

/// What one file says of names.
#[derive(Default)]
struct Names {
    imports: Vec<Import>,
    /// Paths within the code.
    inline: Vec<Vec<String>>,
    /// Names that stand in the code, each for itself or at the start of a path.
    used: BTreeSet<String>,
    defined: BTreeSet<String>,
    /// Child modules that are only compiled for tests.
    only_tests: BTreeSet<String>,
}

/// The source as words, `::` and single characters, without comments, texts, characters and lifetimes.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut at, mut all) = (0, Vec::new());
    while let Some(&c) = chars.get(at) {
        let next = chars.get(at + 1).copied().unwrap_or(' ');
        let quote_after = |n: usize| {
            let hashes = chars[at + n..].iter().take_while(|&&c| c == '#').count();
            (chars.get(at + n + hashes) == Some(&'"')).then_some(hashes)
        };
        let raw = match (c, next) {
            ('r', '#' | '"') => quote_after(1).map(|hashes| (1, hashes)),
            ('b' | 'c', 'r') => quote_after(2).map(|hashes| (2, hashes)),
            _ => None,
        };
        let word_before = at > 0 && is_word(chars[at - 1]);
        if c == '/' && next == '/' {
            at += chars[at..].iter().take_while(|&&c| c != '\n').count();
        } else if c == '/' && next == '*' {
            let mut depth = 0;
            loop {
                match (chars.get(at), chars.get(at + 1)) {
                    (Some('/'), Some('*')) => (depth, at) = (depth + 1, at + 2),
                    (Some('*'), Some('/')) => (depth, at) = (depth - 1, at + 2),
                    (None, _) => break,
                    _ => at += 1,
                }
                if depth == 0 {
                    break;
                }
            }
        } else if let (Some((letters, hashes)), false) = (raw, word_before) {
            let end: String = "\"".to_owned() + &"#".repeat(hashes);
            at += letters + hashes + 1;
            while at < chars.len() && !chars[at..].iter().take(hashes + 1).copied().eq(end.chars()) {
                at += 1;
            }
            at += hashes + 1;
        } else if c == '"' || c == '\'' && (next == '\\' || chars.get(at + 2) == Some(&'\'')) {
            at += 1;
            while at < chars.len() && chars[at] != c {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if c == '\'' {
            at += 1 + chars[at + 1..].iter().take_while(|&&c| is_word(c)).count();
        } else if is_word(c) {
            let word: String = chars[at..].iter().take_while(|&&c| is_word(c)).collect();
            at += word.chars().count();
            all.push(word);
        } else if c == ':' && next == ':' {
            all.push("::".to_owned());
            at += 2;
        } else {
            if !c.is_whitespace() {
                all.push(c.to_string());
            }
            at += 1;
        }
    }
    all
}

/// Where the bracket that opens at `at` has closed.
pub(crate) fn after_bracket(tokens: &[String], at: usize) -> usize {
    let mut depth = 0;
    for (n, t) in tokens.iter().enumerate().skip(at) {
        match t.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return n + 1;
        }
    }
    tokens.len()
}

/// Where the item, field or arm that starts at `at` has ended.
fn after_item(tokens: &[String], mut at: usize) -> usize {
    while tokens.get(at).is_some_and(|t| t == "#") {
        at = after_bracket(tokens, at + 1);
    }
    let keywords = ["use", "mod", "fn", "struct", "enum", "trait", "impl", "const", "static", "type", "let"];
    let head = tokens[at..].iter().take(8);
    let keyword = head.map(String::as_str).find(|t| keywords.contains(t) || [":", ",", "=", ";"].contains(t));
    let keyword = keyword.filter(|t| keywords.contains(t)).unwrap_or("");
    let ends_with_semicolon = ["use", "const", "static", "type", "let"].contains(&keyword);
    while let Some(t) = tokens.get(at) {
        match t.as_str() {
            "{" if !ends_with_semicolon => return after_bracket(tokens, at),
            "(" | "[" | "{" => at = after_bracket(tokens, at),
            ";" => return at + 1,
            "," if keyword.is_empty() => return at + 1,
            ")" | "]" | "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// The tokens without what is only compiled for tests or for the documentation, and the names of the modules among that.
fn without_tests(tokens: &[String]) -> (Vec<String>, BTreeSet<String>) {
    let (mut kept, mut modules, mut at) = (Vec::new(), BTreeSet::new(), 0);
    let starts = |at: usize, with: &[&str]| {
        tokens[at..].iter().map(String::as_str).take(with.len()).eq(with.iter().copied())
    };
    while at < tokens.len() {
        let left_out = [
            &["#", "[", "cfg", "(", "test"][..],
            &["#", "[", "cfg", "(", "all", "(", "test"],
            &["#", "[", "cfg", "(", "doc", ")"],
        ];
        if left_out.iter().any(|with| starts(at, with)) {
            let item = after_bracket(tokens, at + 1);
            let end = after_item(tokens, item);
            if let Some(n) = tokens[item..end].iter().position(|t| t == "mod") {
                modules.extend(tokens.get(item + n + 1).cloned());
            }
            at = end;
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    (kept, modules)
}

/// The names of a tree of `use` that starts at `at`, each with its path and as what it is known here, and its end.
fn tree(tokens: &[String], mut at: usize, before: &[String], out: &mut Vec<(Vec<String>, String)>) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|t| t != "}") {
                    at = tree(tokens, at, &path, out);
                    at += usize::from(tokens.get(at).is_some_and(|t| t == ","));
                }
                return at + 1;
            }
            Some("::") => at += 1,
            Some("as") => {
                out.push((path, tokens[at + 1].clone()));
                return at + 2;
            }
            Some("," | "}" | ";") | None => {
                if path.last().is_some_and(|s| s == "self") && path.len() > 1 {
                    path.pop();
                }
                let name = path.last().cloned().unwrap_or_default();
                if name == "*" {
                    path.pop();
                }
                out.push((path, name));
                return at;
            }
            Some(word) => {
                path.push(word.to_owned());
                at += 1;
            }
        }
    }
}

/// The path in full of what a module calls so; `None` where that stands in another crate or in the module itself.
fn in_full(module: &[String], path: &[String], known: &BTreeSet<File>, imports: &[Import]) -> Option<File> {
    let mut full = module.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (full, rest) = (Vec::new(), &path[1..]),
        "self" | "super" => {
            while let Some(first) = rest.first().filter(|s| *s == "self" || *s == "super") {
                if first == "super" {
                    full.pop();
                }
                rest = &rest[1..];
            }
        }
        first => {
            let child = [module, &path[..1]].concat();
            if !known.contains(&child) {
                let import = imports.iter().find(|i| i.name == first)?;
                return Some([&import.path[..], &path[1..]].concat());
            }
        }
    }
    full.extend_from_slice(rest);
    Some(full)
}

/// All names of a file.
fn names_of(file: &File, text: &str, known: &BTreeSet<File>) -> Names {
    let mut names = Names::default();
    let (tokens, only_tests) = without_tests(&tokens(text));
    names.only_tests = only_tests;
    // The inline modules around a token, each with the place of its end.
    let mut inside: Vec<(String, usize)> = Vec::new();
    let mut paths: Vec<(File, Vec<String>)> = Vec::new();
    let is_word = |t: &str| t.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut at = 0;
    while at < tokens.len() {
        inside.retain(|(_, end)| at < *end);
        let module: File = file.iter().cloned().chain(inside.iter().map(|(m, _)| m.clone())).collect();
        let before = at.checked_sub(1).map_or("", |b| tokens[b].as_str());
        let after = tokens.get(at + 1).map_or("", String::as_str);
        match tokens[at].as_str() {
            "mod" if tokens.get(at + 2).is_some_and(|t| t == "{") => {
                inside.push((after.to_owned(), after_bracket(&tokens, at + 2)));
                at += 3;
            }
            // `pub(in path)` names nothing.
            "in" if before == "(" => at = after_bracket(&tokens, at - 1),
            // `use<'a>` is no import.
            "use" if after != "<" => {
                let public = before == "pub" || before == ")";
                let mut found = Vec::new();
                at = tree(&tokens, at + 1, &[], &mut found);
                for (path, name) in found {
                    if let Some(path) = in_full(&module, &path, known, &names.imports) {
                        names.imports.push(Import { name, path, public });
                    }
                }
            }
            word if is_word(word) && ![".", "::"].contains(&before) => {
                if ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "union"]
                    .contains(&before)
                {
                    names.defined.insert(word.to_owned());
                } else if after != ":" {
                    names.used.insert(word.to_owned());
                }
                let mut path = vec![word.to_owned()];
                while tokens.get(at + 1).is_some_and(|t| t == "::")
                    && tokens.get(at + 2).is_some_and(|t| is_word(t))
                {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                if path.len() > 1 {
                    paths.push((module, path));
                }
                at += 1;
            }
            _ => at += 1,
        }
    }
    let full = |(module, path): &(File, Vec<String>)| in_full(module, path, known, &names.imports);
    names.inline = paths.iter().filter_map(full).collect();
    names
}

/// The file of the room in which what a path names stands: what a file has from another one, that one has.
fn home_of(path: &[String], all: &BTreeMap<File, Names>, depth: u32) -> Option<File> {
    let at = (1..=path.len()).rev().find(|&n| all.contains_key(&path[..n]))?;
    let (file, rest) = (path[..at].to_vec(), &path[at..]);
    let Some(name) = rest.first().filter(|_| depth < 8) else { return Some(file) };
    let names = &all[&file];
    let by_name = names.imports.iter().find(|i| i.name == *name && i.path != path);
    if let (Some(import), false) = (by_name, names.defined.contains(name)) {
        return home_of(&[&import.path[..], &rest[1..]].concat(), all, depth + 1);
    }
    let globs = names.imports.iter().filter(|i| i.name == "*" && i.public);
    let mut from_glob =
        globs.filter(|i| all.get(&i.path).is_some_and(|n| n.defined.contains(name))).map(|i| &i.path);
    Some(from_glob.next_back().cloned().unwrap_or(file))
}

/// Which files of a room each of its files names. `files` are paths and texts.
pub(crate) fn names_in(room: &str, files: Vec<(String, String)>) -> BTreeMap<File, BTreeSet<File>> {
    let module = |file: &str| -> File {
        let inside = file.split_once("/src/").unwrap().1.trim_end_matches(".rs").trim_end_matches("/mod");
        inside.split('/').map(str::to_owned).collect()
    };
    let files: BTreeMap<File, String> = files.into_iter().map(|(f, text)| (module(&f), text)).collect();
    let known: BTreeSet<File> = files.keys().cloned().collect();
    let mut all: BTreeMap<File, Names> =
        files.iter().map(|(f, text)| (f.clone(), names_of(f, text, &known))).collect();
    let tests: Vec<File> = all
        .iter()
        .flat_map(|(f, n)| n.only_tests.iter().map(|m| [&f[..], std::slice::from_ref(m)].concat()))
        .collect();
    all.retain(|f, _| !tests.iter().any(|t| f.starts_with(t)));
    let homes = |file: &File| -> BTreeSet<File> {
        let names = &all[file];
        let own = names.imports.iter().filter(|i| !i.public || names.used.contains(&i.name)).map(|i| &i.path);
        let named = own.chain(&names.inline).filter(|path| path.first().is_some_and(|r| r == room));
        named.filter_map(|path| home_of(path, &all, 0)).filter(|home| home != file).collect()
    };
    all.keys().map(|f| (f.clone(), homes(f))).collect()
}

/// Files that can be reached from each other, by the files that each names.
pub(crate) fn circles(names: &BTreeMap<File, BTreeSet<File>>) -> Vec<Vec<String>> {
    let reached = |from: &File| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(names[file].iter().filter(|f| seen.insert((*f).clone())));
        }
        seen
    };
    let all: BTreeMap<&File, BTreeSet<File>> = names.keys().map(|f| (f, reached(f))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (&file, to) in all.iter().filter(|(file, to)| to.contains(**file)) {
        let circle: Vec<String> = to.iter().filter(|f| all[f].contains(file)).map(|f| f.join("::")).collect();
        if !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// The files of a room of these texts, by name.
fn room_of(files: &[(&str, &str)]) -> BTreeMap<File, BTreeSet<File>> {
    names_in(
        "room",
        files.iter().map(|(path, text)| (format!("/x/src/room/{path}.rs"), (*text).to_owned())).collect(),
    )
}

#[test]
fn a_circle_is_found_through_what_a_file_hands_on() {
    let room = |b: &str| {
        room_of(&[
            ("mod", "mod a;\nmod b;\nmod c;\npub use a::{A, Other as O};\npub(crate) use b::B;\n"),
            ("a", "use crate::room::B;\npub struct A(B);\n"),
            ("b", b),
            ("c", "use super::{\n    A,\n    b::{B, inner::C},\n};\n"),
        ])
    };
    let none = Vec::<Vec<String>>::new();
    assert_eq!(circles(&room("pub struct B;\n")), none);
    assert_eq!(circles(&room("// use super::A;\n#[cfg(test)]\nuse super::A;\n")), none);
    assert_eq!(circles(&room("const T: &str = \"use super::A;\"; /* super::A */\n")), none);
    assert_eq!(circles(&room("use super::A;\n")), [["room::a", "room::b"]]);
    assert_eq!(circles(&room("use super::c;\n")), [["room::a", "room::b", "room::c"]]);
}

#[test]
fn an_arrow_is_seen_after_tests_and_within_the_code() {
    let room = |b: &str| {
        room_of(&[
            ("mod", "mod a;\nmod b;\npub use a::A;\n"),
            ("a", "use super::b::B;\npub struct A(B);\nimpl A { pub fn new() {} }\n"),
            ("b", b),
        ])
    };
    let seen = |b: &str| !circles(&room(b)).is_empty();
    let tests = "#[cfg(test)]\nmod tests {\n    use super::super::a::A;\n}\n";
    assert!(!seen(&format!("{tests}struct B;\n")));
    assert!(seen(&format!("{tests}use super::a::A;\n")), "below the tests");
    assert!(seen("#[cfg(test)]\nuse std::fmt;\nuse super::A;\n"));
    assert!(seen("#[cfg(test)]\nmod testing;\nuse super::A;\n"));
    assert!(seen("struct B {\n    #[cfg(test)]\n    x: u8,\n    y: super::a::A,\n}\n"));
    assert!(!seen("struct B {\n    #[cfg(test)]\n    x: super::A,\n    y: u8,\n}\n"));
    assert!(!seen("#[cfg(test)]\nconst A: super::A = super::A { x: 1 };\n"));
    assert!(seen("fn f(x: &'static str) -> char { super::a::A::new(); 'x' }\n"));
    assert!(seen("fn f() { fail!(\"{}\", crate::room::A::new()) }\n"));
    assert!(seen("mod inner {\n    fn f() { super::super::a::A::new() }\n}\n"));
    assert!(!seen("mod inner {\n    fn f() { super::a::A::new() }\n}\n"), "its own");
    assert!(seen("use super::a;\n"));
    assert!(!seen("#[cfg(doc)]\nuse super::a;\n"));
}

#[test]
fn a_file_that_hands_a_name_on_names_it_if_it_uses_it() {
    let room = |inside: &str| {
        let parent = format!("mod child;\npub(crate) use child::C;\n{inside}pub struct P;\n");
        circles(&room_of(&[
            ("mod", "mod a;\n"),
            ("a", &parent),
            ("a/child", "use super::P;\npub struct C(P);\n"),
        ]))
    };
    assert_eq!(room(""), Vec::<Vec<String>>::new());
    assert_eq!(room("fn f() -> C { g() }\n"), [["room::a", "room::a::child"]]);
    assert_eq!(room("fn f() { child::g() }\n"), [["room::a", "room::a::child"]]);
    assert_eq!(room("fn f(x: X) { x.C(); x::C() }\n"), Vec::<Vec<String>>::new());
}
