//! The lists of mutants fit the sources: every text that one of them replaces is there, once, and none lies partly in
//! another. run.py, which uses the lists, checks the same, but runs seldom.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What a mutant says under each key; a single text is a list of one.
type Mutant = BTreeMap<String, Vec<String>>;

/// A text at the start of `rest`, without its quotes, and what follows it.
fn quoted(rest: &str) -> (String, &str) {
    let (quote, rest) = match rest.strip_prefix("\"\"\"") {
        Some(rest) => ("\"\"\"", rest.strip_prefix('\n').unwrap_or(rest)),
        None => ("\"", rest.strip_prefix('"').unwrap_or_else(|| panic!("a text should begin here: {rest}"))),
    };
    let (mut text, mut at) = (String::new(), 0);
    while !rest[at..].starts_with(quote) {
        let mut chars = rest[at..].chars();
        let c = chars.next().expect("the text ends");
        at += c.len_utf8();
        if c != '\\' {
            text.push(c);
            continue;
        }
        let escaped = chars.next().expect("the text ends");
        at += escaped.len_utf8();
        text.push(match escaped {
            'n' => '\n',
            '"' | '\\' => escaped,
            _ => panic!("\\{escaped} is not known here"),
        });
    }
    (text, &rest[at + quote.len()..])
}

/// A text or a list of texts at the start of `rest`, and what follows it.
fn value(rest: &str) -> (Vec<String>, &str) {
    let Some(mut rest) = rest.strip_prefix('[') else {
        let (text, rest) = quoted(rest);
        return (vec![text], rest);
    };
    let mut texts = Vec::new();
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        if let Some(rest) = rest.strip_prefix(']') {
            return (texts, rest);
        }
        let (text, after) = quoted(rest);
        texts.push(text);
        rest = after;
    }
}

/// The mutants of a list, of which only so much of TOML is understood as they use.
fn mutants(list: &str) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut rest = list.trim_start();
    while !rest.is_empty() {
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some(after) = rest.strip_prefix("[[mutant]]") {
            mutants.push(Mutant::new());
            rest = after;
        } else {
            let (key, after) = rest.split_once('=').unwrap();
            let (texts, after) = value(after.trim_start());
            mutants.last_mut().unwrap().insert(key.trim().to_owned(), texts);
            rest = after;
        }
        rest = rest.trim_start();
    }
    mutants
}

#[test]
fn every_text_that_a_mutant_replaces_is_there_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = String::new();
    let mut places: BTreeMap<String, BTreeSet<(usize, usize)>> = BTreeMap::new();
    let mut seen = 0;
    for entry in fs::read_dir(root.join("tests/mutants")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        for mutant in mutants(&fs::read_to_string(&path).unwrap()) {
            let (name, files, finds) = (&mutant["name"][0], &mutant["file"], &mutant["find"]);
            assert_eq!(finds.len(), mutant["put"].len(), "{name}");
            assert!(files.len() == 1 || files.len() == finds.len(), "{name}");
            for (find, file) in finds.iter().zip(files.iter().cycle()) {
                let text = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
                let bare = find.replace(['«', '»'], "");
                let found: Vec<usize> = text.match_indices(&bare).map(|(at, _)| at).collect();
                if let [at] = found[..] {
                    let (before, marked) = find.split_once('«').unwrap_or(("", find));
                    let marked = marked.split_once('»').map_or(marked, |(marked, _)| marked);
                    let begin = at + before.len();
                    places.entry(file.clone()).or_default().insert((begin, begin + marked.len()));
                } else {
                    wrong += &format!("{}: {name:?}: {} times in {file}\n", path.display(), found.len());
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "only {seen} texts found: the test has lost its eyes");
    assert!(wrong.is_empty(), "texts that should be there once:\n{wrong}");
    for (file, places) in places {
        let text = fs::read_to_string(root.join(&file)).unwrap();
        let places: Vec<(usize, usize)> = places.into_iter().collect();
        for pair in places.windows(2) {
            let ((_, end), (begin, other)) = (pair[0], pair[1]);
            assert!(end <= begin, "{file}: a mutant lies partly in another: {}", &text[begin..other]);
        }
    }
}
