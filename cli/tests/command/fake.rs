//! The command over the fake CUDA driver, which cargo builds beside the tests.

use super::{Folder, err, out};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let driver = std::env::current_exe().unwrap().parent().unwrap().join("libcuda.so");
    assert!(driver.exists(), "the fake driver was not built: {}", driver.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command.env_remove("CUDA_VISIBLE_DEVICES").env("MILLPOND_CUDA_LIBRARY", driver);
    command.args(args).envs(variables.iter().copied()).output().unwrap()
}

fn trace() -> String {
    let all = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../traces");
    let mut names: Vec<_> = std::fs::read_dir(all).unwrap().flatten().map(|e| e.path()).collect();
    names.retain(|p| p.extension().is_some_and(|e| e == "zst"));
    names.sort_by_key(|p| std::fs::metadata(p).unwrap().len());
    names[0].to_str().unwrap().to_owned()
}

/// What the driver's calls would have cost is told over the fake driver, and nowhere else.
#[test]
fn a_replay_over_the_fake_driver_tells_modelled_time() {
    let folder = Folder::new("modelled");
    let json = folder.0.join("out.json");
    let trace = trace();
    let replay = |device: &str, variables: &[(&str, &str)]| {
        let args = [
            "replay",
            "--device",
            device,
            "--touch",
            "none",
            "--json",
            json.to_str().unwrap(),
            trace.as_str(),
        ];
        let o = run(&args, variables);
        assert!(o.status.success(), "{}", err(&o));
        let all: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        (out(&o), all[0]["modelled_driver_ns"].clone())
    };
    let card = ("FAKECUDA_CAPACITY", "64G");
    let (text, time) = replay("cuda", &[card, ("FAKECUDA_STRICT", "1"), ("FAKECUDA_NO_FD", "1")]);
    assert!(text.contains("modelled driver time"), "{text}");
    assert!(time.as_u64().unwrap() > 0);
    let free = "cuMemCreate:0:0:0,cuMemMap:0:0:0,cuMemSetAccess:0:0:0,cuMemUnmap:0:0:0,cuMemRelease:0:0:0";
    let settings = [card, ("FAKECUDA_STRICT", "1"), ("FAKECUDA_NO_FD", "1"), ("FAKECUDA_COSTS", free)];
    assert_eq!(replay("cuda", &settings).1, 0);
    let (text, time) = replay("host", &[]);
    assert!(!text.contains("modelled driver") && time.is_null(), "{text}");
}

#[test]
fn what_a_card_refuses_is_told() {
    let o = run(&["info"], &[("FAKECUDA_CAPACITY", "64M"), ("FAKECUDA_REFUSE_RDMA", "801")]);
    let why = "RDMA: the driver refused memory with GPUDirect RDMA: cuMemCreate: CUDA_ERROR_NOT_SUPPORTED";
    assert!(out(&o).contains(why), "{}", out(&o));
}
