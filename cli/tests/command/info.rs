//! `millpond info`, and commands that are run while recordings are asked for.

use super::{Folder, err, out};
use serde_json::Value;
use std::process::{Command, Output};

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    for name in
        ["MILLPOND_HOST_CAPACITY", "MILLPOND_HOST_DEVICES", "MILLPOND_HOST_MAPPING", "MILLPOND_ALLOC_CONF"]
    {
        command.env_remove(name);
    }
    command.args(args).envs(variables.iter().copied()).output().unwrap()
}

/// What a device cannot do has a reason, and an option that is not built in says who has set it.
#[test]
fn reasons_and_sources_are_told() {
    let set = [
        ("MILLPOND_ALLOC_CONF", "max_split_size_mb:64"),
        ("MILLPOND_HOST_DEVICES", "1"),
        ("MILLPOND_HISTORY_FRAMES", "3"),
    ];
    let o = run(&["info"], &set);
    assert!(o.status.success(), "{}", err(&o));
    let text = out(&o);
    for wants in [
        "MILLPOND_HOST_DEVICES=1",
        "MILLPOND_HISTORY_FRAMES=3",
        "lacks          mapping: it was made to serve segments",
        "max_split_size_mb:64 (MILLPOND_ALLOC_CONF)",
        "expandable_segments:False (the device can do nothing else)",
    ] {
        assert!(text.contains(wants), "`{wants}` is not in\n{text}");
    }
    assert!(!text.contains("throw_on_cudamalloc_oom"), "{text}");
    assert!(out(&run(&["info", "--all"], &set)).contains("throw_on_cudamalloc_oom:False (built in)"));

    let o = run(&["info", "--json"], &set);
    let all: Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!(all["environment"]["MILLPOND_ALLOC_CONF"], "max_split_size_mb:64");
    let of = |name: &str| all["types"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap();
    let host = &of("host")["devices"];
    assert_eq!(host.as_array().map(Vec::len), Some(1));
    assert_eq!(host[0]["capabilities"]["mapping"]["has"], true);
    assert_eq!(host[0]["options"]["max_split_size_mb"]["source"], "MILLPOND_ALLOC_CONF");
    assert_eq!(host[0]["options"]["backend"], serde_json::json!({"value": "native", "source": "built in"}));
    let cpu = &of("cpu")["devices"][0];
    let mapping = &cpu["capabilities"]["mapping"];
    assert_eq!(mapping["has"], false);
    assert!(mapping["reason"].as_str().unwrap().contains("segments"), "{mapping}");
    assert!(cpu["total_bytes"].as_u64() >= cpu["machine_can_spare_bytes"].as_u64());
    // Either there are devices, or a reason.
    let cuda = of("cuda");
    assert_eq!(cuda["no_devices_because"].is_null(), !cuda["devices"].as_array().unwrap().is_empty());
}

/// Every variable of docs/install.md that is set is told, those that the command itself does not act on too.
#[test]
fn every_variable_is_told() {
    let folder = Folder::new("variables");
    let page = include_str!("../../../docs/install.md").split("## Environment").nth(1).unwrap();
    let row = |line: &&str| line.starts_with("| `MILLPOND_");
    let names = page.lines().filter(row).flat_map(|line| line.split('`').skip(1).step_by(2).take(4));
    let mut names: Vec<String> =
        names.filter(|n| n.starts_with("MILLPOND_") && !n.ends_with("...")).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    assert!(names.len() > 15, "{names:?}");
    let value = |name: &str| match name {
        "MILLPOND_HISTORY" | "MILLPOND_RECORD" => folder.0.join(name).to_str().unwrap().to_owned(),
        "MILLPOND_HOST_CAPACITY" => "64M".to_owned(),
        "MILLPOND_HISTORY_SIGNAL" => "USR2".to_owned(),
        "MILLPOND_ALLOC_CONF" => "max_split_size_mb:64".to_owned(),
        "MILLPOND_CUDA_HANDLE" => "2M".to_owned(),
        "MILLPOND_CUDA_LIBRARY" | "MILLPOND_NVML_LIBRARY" => "/nowhere/lib.so".to_owned(),
        "MILLPOND_TOOLS" => "none".to_owned(),
        _ => "1".to_owned(),
    };
    let set: Vec<(String, String)> = names.iter().map(|n| (n.clone(), value(n))).collect();
    let set: Vec<(&str, &str)> = set.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let o = run(&["info", "--json"], &set);
    let all: Value = serde_json::from_str(&out(&o)).unwrap_or_else(|e| panic!("{e}: {}", err(&o)));
    let told = all["environment"].as_object().unwrap();
    for (name, value) in set {
        assert_eq!(told.get(name).and_then(Value::as_str), Some(value), "{name}");
    }
    // And a signal does not begin anything here.
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
}

/// The lines about the device type `host`.
fn of_host(text: &str) -> impl Iterator<Item = &str> {
    text.lines().skip_while(|l| !l.starts_with("host:"))
}

/// What the processor's devices have not given out is no promise of the machine's.
#[test]
fn the_machines_memory_is_not_called_free() {
    // As much as the machine has in all, which is never to spare.
    let o = run(&["info"], &[("MILLPOND_HOST_CAPACITY", "16384G"), ("MILLPOND_HOST_DEVICES", "1")]);
    assert!(o.status.success(), "{}", err(&o));
    let text = out(&o);
    let memory =
        of_host(&text).find(|l| l.trim_start().starts_with("memory")).unwrap_or_else(|| panic!("{text}"));
    assert!(memory.contains(" not taken; the machine has "), "{memory}");
    assert!(memory.ends_with(" to spare") && !memory.contains("free"), "{memory}");
    // Where the machine has more than the device, what the device has not given out is free.
    let o = run(&["info"], &[("MILLPOND_HOST_CAPACITY", "2M"), ("MILLPOND_HOST_DEVICES", "1")]);
    let text = out(&o);
    let memory =
        of_host(&text).find(|l| l.trim_start().starts_with("memory")).unwrap_or_else(|| panic!("{text}"));
    assert!(memory.ends_with("2.00 MiB, 2.00 MiB free"), "{memory}");
}

#[test]
fn a_device_that_cannot_be_opened_is_an_error() {
    let o = run(&["info"], &[("MILLPOND_ALLOC_CONF", "backend:cudaMallocAsync")]);
    assert_eq!(o.status.code(), Some(1));
    assert!(out(&o).contains("host:0  millpond_device_get: backend is cudaMallocAsync"), "{}", out(&o));
    let o = run(&["info", "--json", "-"], &[("MILLPOND_HOST_CAPACITY", "much")]);
    assert_eq!(o.status.code(), Some(1));
    assert!(err(&o).contains("MILLPOND_HOST_CAPACITY"), "{}", err(&o));
}

/// A recording that the user has made is not emptied by commands that look at it, or at devices.
#[test]
fn recordings_are_not_emptied() {
    let folder = Folder::new("kept");
    let text = "# name: mine\na 1 8 0\nf 1\n";
    let trace = folder.file("my.trace", text);
    let path = trace.to_str().unwrap();
    let page = folder.0.join("my.html");
    for variable in ["MILLPOND_RECORD", "MILLPOND_HISTORY"] {
        for (args, code) in [
            (&["info"][..], 0),
            (&["bisect", "--quiet", "--device", "cpu", path], 0),
            (&["compare", "--repeat", "1", path], 0),
            (&["view", path, "--out", page.to_str().unwrap()], 0),
            (&["replay", path], 1),
        ] {
            let o = run(args, &[(variable, path)]);
            assert_eq!(o.status.code(), Some(code), "{args:?}: {}", err(&o));
            assert_eq!(std::fs::read_to_string(&trace).unwrap(), text, "{variable} {args:?}");
            assert_eq!(err(&o).contains("unset it first"), code == 1, "{args:?}: {}", err(&o));
        }
    }
}
