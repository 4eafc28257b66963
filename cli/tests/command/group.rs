//! `millpond group`.

use super::{Folder, err as stderr, millpond, out as stdout};
use ::millpond::runtime::{self, DeviceGroup};
use std::time::Duration;

#[test]
fn a_group_is_listed_and_takes_budgets() {
    let folder = Folder::new("group");
    let file = folder.0.join("group");
    let path = file.to_str().unwrap();
    let missing = millpond(&["group", path]);
    assert_eq!((missing.status.code(), file.exists()), (Some(1), false), "{}", stderr(&missing));
    let device = runtime::device("host", 0).unwrap();
    let id = DeviceGroup::of(&device).join(&file, "a program\x1b[2J\n", Duration::ZERO).unwrap();
    let listed = millpond(&["group", path]);
    let text = stdout(&listed);
    assert!(listed.status.success(), "{}", stderr(&listed));
    assert_eq!(text.lines().count(), 2, "{text}");
    for word in ["member", "a program?[2J?", "host:0", "none", "never", &std::process::id().to_string()] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let budget = millpond(&["group", path, "--budget", &format!("{id}=64MiB"), "--json"]);
    assert!(budget.status.success(), "{}", stderr(&budget));
    assert_eq!(DeviceGroup::of(&device).serve(Duration::from_secs(60)).unwrap(), 0);
    let told: serde_json::Value =
        serde_json::from_str(&stdout(&millpond(&["group", path, "--json"]))).unwrap();
    assert_eq!((&told[0]["budget_bytes"], &told[0]["member_id"]), (&(64 << 20).into(), &id.into()), "{told}");
    for (wrong, status) in [("7=1GiB", 1), ("7", 2), ("x=1GiB", 2), ("1=much", 2)] {
        let refused = millpond(&["group", path, "--budget", wrong]);
        assert_eq!(refused.status.code(), Some(status), "{wrong}: {}", stderr(&refused));
    }
    std::fs::write(&file, "a letter").unwrap();
    let refused = millpond(&["group", path]);
    assert!(stderr(&refused).contains("is not the file of a group"), "{}", stderr(&refused));
    let _ = DeviceGroup::of(&device).leave();
}
