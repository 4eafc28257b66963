//! Options from environment variables: ours, and PyTorch's where they are asked for. Each case runs in a child, as the
//! variables are the process's.

use crate::apart;
use crate::options::{give, option, take};
use crate::support::capi::*;
use millpond::capi::*;
use std::ffi::CString;
use std::ptr::{null, null_mut};

const MIB: usize = 1 << 20;
const CASE: &str = "MILLPOND_TEST_CASE";
const VARIABLES: [&str; 4] = [
    "MILLPOND_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
];

#[track_caller]
fn child(case: &str, vars: &[(&str, &str)]) {
    let mut c = apart::program("environment::pytorchs_variables_count_where_they_are_asked_for");
    let out = c.env(CASE, case).envs(vars.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "case {case} {vars:?}:\n{text}");
}

#[test]
fn pytorchs_variables_count_where_they_are_asked_for() {
    let [ours, theirs, old, uncached] = VARIABLES;
    match std::env::var(CASE).ok().as_deref() {
        None => {
            let (one, two) = ("max_split_size_mb:21", "max_split_size_mb:22");
            // PyTorch's variables mean nothing to who has nothing to do with PyTorch, nor to another device type.
            for who in ["", "cuda: "] {
                for name in [theirs, old] {
                    let vars = [(name, "max_split_size_mb:2O,no:[such"), (uncached, "1")];
                    child(&format!("{who}split unlimited"), &vars);
                    child(&format!("{who}native"), &vars);
                }
            }
            child("split 21", &[(ours, one), (theirs, two)]);
            child("unsupported", &[(ours, "backend:cudaMallocAsync")]);
            child(&format!("wrong {ours}, column 19: "), &[(ours, "max_split_size_mb:2O")]);
            child(&format!("wrong {ours}, column 1: "), &[(ours, "some_new_key:1")]);
            for who in ["host: ", "all: "] {
                let child = |case: &str, vars: &[(&str, &str)]| child(&format!("{who}{case}"), vars);
                child("split 21", &[(ours, one), (theirs, two)]);
                child("split 21", &[(theirs, one), (old, two)]);
                child("split 22", &[(old, two)]);
                child("split 22", &[(old, "some_new_key:[1:2,3:4],max_split_size_mb:22")]);
                child("split unlimited", &[(uncached, "0")]);
                child("none", &[(uncached, "1")]);
                child("native", &[(uncached, "1"), (ours, "backend:native")]);
                child("native", &[(old, "backend:cudaMallocAsync")]);
                for name in [ours, theirs, old] {
                    child(&format!("wrong {name}, column 19: "), &[(name, "max_split_size_mb:2O")]);
                }
            }
            child("forgotten: native", &[(uncached, "1")]);
        }
        Some(case) => {
            let (who, case) = case.split_once(": ").filter(|c| !c.0.contains(' ')).unwrap_or(("", case));
            match who {
                "" => {}
                "all" | "forgotten" => ok(unsafe { millpond_set_pytorch_options(null()) }),
                name => {
                    let name = CString::new(name).unwrap();
                    ok(unsafe { millpond_set_pytorch_options(name.as_ptr()) });
                }
            }
            let mut d = null_mut();
            if who == "forgotten" {
                ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut d) });
                assert_eq!(option(d, "backend"), "none");
                ok(millpond_finalize());
            }
            let opened = unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut d) };
            if let Some(split) = case.strip_prefix("split ") {
                ok(opened);
                assert_eq!(option(d, "max_split_size_mb"), split);
            } else if case == "unsupported" {
                fails(opened, MILLPOND_E_UNSUPPORTED);
            } else if let Some(start) = case.strip_prefix("wrong ") {
                fails(opened, MILLPOND_E_INVALID_ARGUMENT);
                assert!(message().starts_with(start), "{}", message());
            } else {
                ok(opened);
                assert_eq!(option(d, "backend"), case);
                give(d, take(d, MIB));
            }
        }
    }
}
