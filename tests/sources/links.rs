//! Every link of the documentation leads somewhere: to a file of the repository, and to a heading of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Folders whose pages are not ours, or are made; so are hidden ones.
const NOT_OURS: [&str; 4] = ["target", "build", "third_party", "shared"];

fn pages(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && !NOT_OURS.contains(&name.as_str()) {
                pages(&path, out);
            }
        } else if name.ends_with(".md") {
            out.push(path);
        }
    }
}

/// The text without blocks of code, in which brackets mean something else.
fn prose(text: &str) -> String {
    let mut code = false;
    let keep = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    };
    text.lines().filter(keep).collect::<Vec<_>>().join("\n")
}

/// What a heading is called in a link: small letters, digits, `-` for blanks; of a link in it, its text.
fn anchor(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some(at) = rest.find("](") {
        text += &rest[..at];
        rest = rest[at..].split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|l| l.starts_with('#')).map(|l| l.trim_start_matches('#'));
    headings.map(anchor).collect()
}

/// The targets of the links, without titles.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '\n']).next())
}

/// Without `..`, so that two ways to a file are one.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[test]
fn every_link_leads_somewhere() {
    let mut found = Vec::new();
    pages(Path::new(env!("CARGO_MANIFEST_DIR")), &mut found);
    assert!(found.len() > 15, "only {found:?}");
    let texts: BTreeMap<PathBuf, String> =
        found.into_iter().map(|p| (plain(&p), prose(&std::fs::read_to_string(&p).unwrap()))).collect();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (page, text) in &texts {
        for link in links(text).filter(|l| !l.contains("://") && !l.starts_with("mailto:")) {
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { page.clone() } else { plain(&page.parent().unwrap().join(file)) };
            let there = to.exists();
            let right = match texts.get(&to) {
                Some(text) if !heading.is_empty() => anchors(text).contains(heading),
                _ => true,
            };
            if !there || !right {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(seen > 100, "only {seen} links were seen");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn headings_are_named_as_links_name_them() {
    assert_eq!(anchor(" Blocks without a stream, places"), "blocks-without-a-stream-places");
    assert_eq!(anchor(" For PyTorch's tools"), "for-pytorchs-tools");
    assert_eq!(anchor(" `latency_histograms`"), "latency_histograms");
    assert_eq!(anchor(" What [a pool](pools.md) does"), "what-a-pool-does");
}
