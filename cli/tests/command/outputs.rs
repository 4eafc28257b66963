//! What is written takes the place of nothing that is read, and of nothing else that is written; and what was there before
//! stays until the new file is whole.

use super::{Folder, err, millpond, out};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

const SMALL: &str = "a 1 1000 0\na 2 70000 1\nf 1\nf 2\n";

#[test]
fn no_output_takes_the_place_of_an_input_or_another_output() {
    let folder = Folder::new("outputs");
    let trace = folder.file("t.trace", SMALL);
    symlink("t.trace", folder.0.join("link")).unwrap();
    std::fs::hard_link(&trace, folder.0.join("hard")).unwrap();
    symlink("later", folder.0.join("dangling")).unwrap();
    let (over, both) = ("is what is read, and would be overwritten", "cannot both be");
    let cases: &[(&[&str], &str)] = &[
        (&["replay", "t.trace", "--json", "t.trace"], over),
        (&["replay", "t.trace", "--svg", "t.trace"], over),
        (&["replay", "t.trace", "--html", "./t.trace"], over),
        (&["replay", "t.trace", "--json", "link"], over),
        (&["replay", "link", "--json", "hard"], over),
        (&["replay", "t.trace", "--html", "same", "--json", "same"], both),
        (&["replay", "t.trace", "--html", "later", "--json", "dangling"], both),
        (&["replay", "t.trace", "--html", "-", "--json", "-"], both),
        (&["compare", "t.trace", "--no-bisect", "--repeat", "1", "--json", "t.trace"], over),
        (&["compare", "t.trace", "--no-bisect", "--repeat", "1", "--json", "hard"], over),
        (&["view", "t.trace", "-o", "hard"], over),
        (&["info", "--plugin", "t.trace", "--json", "link"], over),
        (&["demo", "--plugin", "t.trace", "--out", "link"], over),
        (&["record", "-o", "t.trace", "--", "./t.trace"], "is the program, and would be overwritten"),
        (&["record", "-o", "/dev/null", "--", "true"], "is no ordinary file"),
    ];
    for &(args, wants) in cases {
        let o = Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(args)
            .current_dir(&folder.0)
            .env_remove("MILLPOND_HOST_CAPACITY")
            .output()
            .unwrap();
        assert_eq!(o.status.code(), Some(1), "{args:?}: {}{}", out(&o), err(&o));
        assert!(err(&o).contains(wants), "{args:?}: `{wants}` is not in\n{}", err(&o));
        assert_eq!(std::fs::read_to_string(&trace).unwrap(), SMALL, "{args:?}");
    }
    let mut names: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dangling", "hard", "link", "t.trace"]);
}

/// What is no ordinary file is written as it is: a pipe has its reader, and /dev/full says that it is full.
#[test]
fn what_is_no_ordinary_file_is_written_as_it_is() {
    let folder = Folder::new("special");
    let trace = folder.file("t.trace", SMALL);
    let trace = trace.to_str().unwrap();
    let o = millpond(&["replay", "-q", trace, "--json", "/dev/stdout"]);
    assert!(o.status.success() && out(&o).starts_with('['), "{}{}", out(&o), err(&o));
    let o = millpond(&["replay", "-q", trace, "--json", "/dev/full"]);
    assert!(o.status.code() == Some(1) && err(&o).contains("/dev/full cannot be written"), "{}", err(&o));
    let o = millpond(&["replay", "-q", trace, "--json", "/dev/null", "--html", "/dev/null"]);
    assert!(o.status.success(), "{}", err(&o));
    // Standard output that is a file is still that file, and not another one of its name.
    let redirected = folder.0.join("redirected");
    let script = format!("{} replay {trace} --json /dev/stdout >redirected", env!("CARGO_BIN_EXE_millpond"));
    let o = Command::new("sh").args(["-c", &script]).current_dir(&folder.0).output().unwrap();
    assert!(o.status.success(), "{}", err(&o));
    assert!(std::fs::read_to_string(redirected).unwrap().contains("wrote /dev/stdout"));
}

#[test]
fn a_file_stays_until_the_next_one_is_whole() {
    let folder = Folder::new("whole");
    let names = || {
        let mut all: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name()).collect();
        all.sort();
        all
    };
    let head = r#"{"schema":"millpond.snapshot","version":1,"segments":[]}"#;
    folder.file("s.json", head);
    let page = folder.file("page.html", "the page of yesterday");
    symlink("page.html", folder.0.join("link")).unwrap();
    std::fs::set_permissions(&page, PermissionsExt::from_mode(0o640)).unwrap();
    let view = |before: &str| {
        let script = format!("{before}\nexec {} view s.json -o link", env!("CARGO_BIN_EXE_millpond"));
        Command::new("sh").args(["-c", &script]).current_dir(&folder.0).output().unwrap()
    };
    // No file may have more than 8 blocks of 512 or 1024 bytes: the disk is full, as it were.
    let o = view("trap '' XFSZ; ulimit -f 8");
    assert!(o.status.code() == Some(1) && err(&o).contains("link cannot be written"), "{}", err(&o));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "the page of yesterday");
    assert_eq!(names(), ["link", "page.html", "s.json"]);
    let o = view("");
    assert!(o.status.success(), "{}", err(&o));
    assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    assert_eq!(std::fs::metadata(&page).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(std::fs::symlink_metadata(folder.0.join("link")).unwrap().is_symlink());
    assert_eq!(names(), ["link", "page.html", "s.json"]);
}
