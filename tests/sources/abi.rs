//! What a release promises to programs that were built against it (docs/packages.md): `tests/abi/<minor>/` has the headers of
//! each minor release without their comments, and today's may only add to them. With the built library, the packaging test
//! `package.abi` compiles a program against the old headers and runs it with the new library.
//!
//! The release to come has no headers yet that anybody has: until CHANGELOG.md has its section, its copies follow today's
//! (`MILLPOND_BLESS=1 cargo test --test sources`), and the test says when they do not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HEADERS: [&str; 2] = ["millpond.h", "custom_runtime.h"];
/// What is meant to change.
const VERSIONS: [&str; 3] = ["MILLPOND_VERSION_MAJOR", "MILLPOND_VERSION_MINOR", "MILLPOND_VERSION_PATCH"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn today(name: &str) -> String {
    stripped(&std::fs::read_to_string(root().join("include/millpond").join(name)).unwrap())
}

/// Without comments and empty lines.
fn stripped(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("/*") {
        out += before;
        rest = after.split_once("*/").expect("a comment ends").1;
    }
    out += rest;
    let lines = out.lines().map(str::trim_end).filter(|l| !l.is_empty());
    lines.fold(String::new(), |all, l| all + l + "\n")
}

/// What a header promises: each thing by its name. A struct has its fields in order; what it may get more at its end is seen
/// by `struct_size` as its first field.
#[derive(Debug, PartialEq)]
struct Promises {
    functions: BTreeMap<String, String>,
    numbers: BTreeMap<String, String>,
    types: BTreeMap<String, String>,
    structs: BTreeMap<String, Vec<String>>,
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A declaration without the name of what it declares.
fn kind(declared: &str) -> String {
    let squeezed = squeezed(declared);
    if squeezed.contains('(') {
        return squeezed; // a pointer to a function, whose name is inside
    }
    let name = squeezed.trim_end_matches(|c: char| c == ']' || c == '[' || c.is_alphanumeric() || c == '_');
    let array = squeezed.find('[').map_or("", |at| &squeezed[at..]);
    format!("{}{array}", if name.is_empty() { &squeezed } else { name.trim_end() })
}

fn promises(text: &str) -> Promises {
    let mut p = Promises {
        functions: BTreeMap::new(),
        numbers: BTreeMap::new(),
        types: BTreeMap::new(),
        structs: BTreeMap::new(),
    };
    let joined = text.replace("\\\n", " ");
    for line in joined.lines().filter_map(|l| l.strip_prefix("#define ")) {
        let (name, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if name.starts_with("MILLPOND_") && !name.contains('(') && !name.ends_with("_H") {
            p.numbers.insert(name.to_owned(), squeezed(value));
        }
    }
    let code: String =
        joined.lines().filter(|l| !l.trim_start().starts_with('#')).fold(String::new(), |a, l| a + l + "\n");
    let mut rest = code.as_str();
    while let Some(at) = rest.find(';') {
        let open = rest[..at].find('{').filter(|_| !rest[..at].contains("extern \"C\" {"));
        let end = match open {
            Some(open) => {
                let close = open + rest[open..].find("\n}").expect("a struct ends");
                close + rest[close..].find(';').expect("a struct ends")
            }
            None => at,
        };
        let said = rest[..end].trim().trim_start_matches("extern \"C\" {").trim();
        rest = &rest[end + 1..];
        if let Some(open) = open
            && let Some(head) = said.strip_prefix("typedef struct ")
        {
            let _ = open;
            let (name, body) = head.split_once('{').expect("a struct has a body");
            let body = body.rsplit_once('}').expect("a struct ends").0;
            let fields = body.split(';').map(squeezed).filter(|f| !f.is_empty()).collect();
            p.structs.insert(name.trim().to_owned(), fields);
        } else if said.starts_with("typedef") {
            let name = said.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).find(|w| !w.is_empty());
            let name = match said.split_once("(*") {
                Some((_, after)) => after.split_once(')').expect("a name").0,
                None => name.unwrap_or_default(),
            };
            p.types.insert(name.to_owned(), squeezed(said));
        } else if let Some((before, arguments)) = said.split_once('(')
            && let Some(name) = before.split_whitespace().last().map(|n| n.trim_start_matches('*'))
            && name.starts_with("millpond_")
        {
            let arguments = arguments.rsplit_once(')').expect("arguments end").0;
            let result = squeezed(before.replace("MILLPOND_NODISCARD", "").split(name).next().unwrap());
            // A pointer to a function has commas of its own; none is so long that its text is not enough.
            let kinds: Vec<_> = match arguments.contains("(*") {
                true => vec![squeezed(arguments)],
                false => arguments.split(',').map(kind).collect(),
            };
            p.functions.insert(name.to_owned(), format!("{result}({})", kinds.join(", ")));
        }
    }
    p
}

/// What `new` breaks of `old`.
fn broken(old: &Promises, new: &Promises) -> Vec<String> {
    let mut found = Vec::new();
    for (what, old, new) in [
        ("function", &old.functions, &new.functions),
        ("number", &old.numbers, &new.numbers),
        ("type", &old.types, &new.types),
    ] {
        for (name, was) in old.iter().filter(|(name, _)| !VERSIONS.contains(&name.as_str())) {
            match new.get(name) {
                None => found.push(format!("the {what} {name} is gone")),
                Some(is) if is != was => found.push(format!("the {what} {name} was {was}, and is {is}")),
                _ => {}
            }
        }
    }
    for (name, was) in &old.structs {
        match new.structs.get(name) {
            None => found.push(format!("the struct {name} is gone")),
            Some(is) if !is.starts_with(was) => {
                let at = was.iter().zip(is).take_while(|(a, b)| a == b).count();
                found.push(format!("the struct {name} differs from its field {at} on"));
            }
            Some(is) if is.len() > was.len() && was[0] != "size_t struct_size" && !name.starts_with("C_") => {
                found.push(format!("the struct {name} has grown, and does not say how large it is"));
            }
            _ => {}
        }
    }
    found
}

/// The minor releases that there are, with the folder of each.
fn releases() -> Vec<(String, PathBuf)> {
    let mut all: Vec<_> = std::fs::read_dir(root().join("tests/abi"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.is_dir())
        .map(|p| (p.file_name().unwrap().to_str().unwrap().to_owned(), p))
        .collect();
    all.sort();
    all
}

#[test]
fn todays_headers_only_add_to_those_of_each_release() {
    let changes = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let bless = std::env::var_os("MILLPOND_BLESS").is_some();
    let releases = releases();
    assert!(!releases.is_empty());
    for (version, folder) in releases {
        let released = changes.lines().any(|l| l.starts_with(&format!("## [{version}.")));
        for header in HEADERS {
            let path = folder.join("include/millpond").join(header);
            if !released && bless {
                std::fs::write(&path, today(header)).unwrap();
            }
            let kept = std::fs::read_to_string(&path).unwrap();
            if !released {
                assert!(kept == today(header), "{} is not today's: make bless", path.display());
            }
            let wrong = broken(&promises(&kept), &promises(&today(header)));
            assert!(wrong.is_empty(), "against {version}: {wrong:#?}");
        }
    }
}

#[test]
fn the_promises_can_be_broken() {
    let text = today("millpond.h");
    let old = promises(&text);
    assert!(old.functions.len() > 130 && old.structs.len() > 20 && old.numbers.len() > 100, "{old:#?}");
    assert_eq!(old.functions["millpond_free"], "C_Status(void *)");
    assert_eq!(old.structs["millpond_counter"].len(), 3);
    let breaks = [
        ("C_Status millpond_free(void *ptr);", "", "the function millpond_free is gone"),
        (
            "C_Status millpond_free(void *ptr);",
            "C_Status millpond_free(void *ptr, int x);",
            "the function millpond_free was",
        ),
        ("#define MILLPOND_E_BUSY 14", "#define MILLPOND_E_BUSY 15", "the number MILLPOND_E_BUSY was 14"),
        (
            "  uint64_t current;\n",
            "  uint64_t current;\n  uint64_t more;\n",
            "the struct millpond_counter differs",
        ),
        (
            "  uint64_t total;\n} millpond_counter;",
            "  uint64_t total;\n  uint64_t more;\n} millpond_counter;",
            "the struct millpond_counter has grown",
        ),
    ];
    for (from, to, wanted) in breaks {
        assert!(text.contains(from), "{from}");
        let found = broken(&old, &promises(&text.replacen(from, to, 1)));
        assert!(found.iter().any(|f| f.starts_with(wanted)), "{wanted}: {found:?}");
    }
    // What may change.
    for (from, to) in [
        (
            "C_Status millpond_free(void *ptr);",
            "C_Status millpond_free(void *block);\nC_Status millpond_new(void);",
        ),
        ("} millpond_device_info;", "  uint64_t more;\n} millpond_device_info;"),
        ("#define MILLPOND_VERSION_MINOR 1", "#define MILLPOND_VERSION_MINOR 2"),
    ] {
        assert!(text.contains(from), "{from}");
        assert_eq!(broken(&old, &promises(&text.replacen(from, to, 1))), Vec::<String>::new());
    }
}

/// Structs that cannot say how large they are stand in the promise by name.
#[test]
fn the_promise_names_each_struct_that_never_grows() {
    let page = std::fs::read_to_string(root().join("docs/packages.md")).unwrap();
    let (_, line) = page.split_once("The others (").expect("the promise of structs");
    let named: Vec<_> = line.split_once(')').unwrap().0.split('`').skip(1).step_by(2).collect();
    let fixed: Vec<_> = promises(&today("millpond.h"))
        .structs
        .into_iter()
        .filter(|(_, fields)| fields[0] != "size_t struct_size")
        .map(|(name, _)| name)
        .collect();
    assert_eq!(named, fixed);
}
