//! How many devices CUDA will show, without starting it: a process that has started CUDA cannot use it in a
//! forked child.
//!
//! The GPUs of the machine come from NVML, otherwise from `/proc/driver/nvidia/gpus`; `CUDA_VISIBLE_DEVICES` then
//! selects among them. That is a best effort: if neither source answers, or the selection names a part of a GPU (MIG),
//! only CUDA knows.

use super::nvml;
use std::ffi::OsStr;

/// How many devices there will be; `None` if only CUDA can tell. `library` is the NVML to ask instead of the system's;
/// `system` says whether the machine's own driver is used at all.
pub(super) fn count(library: Option<&OsStr>, system: bool) -> Option<usize> {
    let gpus = match library {
        Some(l) => nvml::gpus(l)?,
        None if !system => return None,
        None => nvml::gpus(OsStr::new("libnvidia-ml.so.1")).or_else(|| listed("/proc/driver/nvidia/gpus"))?,
    };
    match std::env::var_os("CUDA_VISIBLE_DEVICES") {
        None => Some(gpus.len()),
        Some(v) => visible(v.to_str()?, &gpus),
    }
}

/// One GPU without a UUID for each directory.
fn listed(path: &str) -> Option<Vec<String>> {
    Some(std::fs::read_dir(path).ok()?.flatten().map(|_| String::new()).collect())
}

/// How many of the GPUs a value of `CUDA_VISIBLE_DEVICES` selects: numbers or UUIDs (or prefixes of UUIDs), up to the
/// first that matches none. `None` if that cannot be told from outside.
fn visible(value: &str, gpus: &[String]) -> Option<usize> {
    let mut chosen = Vec::new();
    for word in value.split(',').map(str::trim) {
        let found = if word.starts_with("MIG-") {
            return None;
        } else if word.starts_with("GPU-") {
            if gpus.iter().any(String::is_empty) {
                return None;
            }
            let mut fitting = (0..gpus.len()).filter(|&i| gpus[i].starts_with(word));
            let first = fitting.next();
            first.filter(|_| fitting.next().is_none())
        } else {
            // Like strtoul: reads digits as far as there are any.
            let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok().filter(|&i: &usize| i < gpus.len())
        };
        match found {
            Some(i) if chosen.contains(&i) => return Some(0), // CUDA treats a repeated device as an error
            Some(i) => chosen.push(i),
            None => break,
        }
    }
    Some(chosen.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_as_cuda_reads_them() {
        let gpus = ["GPU-aa11", "GPU-aa22", "GPU-bb33"].map(String::from);
        for (value, want) in [
            ("0,1,2", 3),
            ("2", 1),
            (" 1 , 0 ", 2),
            ("", 0),
            ("-1", 0),
            ("0,-1,2", 1),
            ("0,3,1", 1),
            ("1,1", 0),
            ("GPU-bb", 1),
            ("GPU-aa", 0), // two fit
            ("GPU-aa2,GPU-aa1", 2),
            ("none", 0),
            ("0x", 1),
        ] {
            assert_eq!(visible(value, &gpus), Some(want), "{value:?}");
        }
        assert_eq!(visible("MIG-1", &gpus), None);
        assert_eq!(visible("GPU-aa", &[String::new()]), None);
    }

    #[test]
    fn a_directory_for_each_gpu() {
        let root = std::env::temp_dir().join(format!("millpond-gpus-{}", std::process::id()));
        std::fs::create_dir_all(root.join("0000:01:00.0")).unwrap();
        std::fs::create_dir_all(root.join("0000:02:00.0")).unwrap();
        assert_eq!(listed(root.to_str().unwrap()).map(|g| g.len()), Some(2));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(listed(root.to_str().unwrap()), None);
    }
}
