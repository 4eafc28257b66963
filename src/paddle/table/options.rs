//! The environment variables for Millpond as a plugin. Read once, by the first `InitPlugin`.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `MILLPOND_PLUGIN_TYPE` | the name under which the host sees us, 1 to 31 bytes | `millpond` |
//! | `MILLPOND_PLUGIN_DEVICE` | the device type that is served | `host` |
//! | `MILLPOND_PLUGIN_OOM` | `null`: out of memory is success with a null pointer, on which PaddlePaddle drops its cache and retries; `status`: it is `C_FAILED` | `null` |
//! | `MILLPOND_PLUGIN_OOM_REPORT` | where the report of each request that finds no memory is written: `stderr`, where the host's log goes, or a file, to which it is appended; empty: nowhere | empty |
//! | `MILLPOND_PLUGIN_CACHE` | `off`: memory that the host frees goes back to the device, since the host has a cache of its own (see `idle.rs`); `on`: it stays in Millpond's pool, for hosts without a cache | `off` |
//!
//! `InitPlugin` has no way to report an error, so an unusable value is replaced by the default, except the served
//! device type: an unknown one has no devices, which the host reports.

use crate::device::MAX_TYPE_NAME;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

pub(super) struct Options {
    /// The name that the host gets.
    pub(super) device_type: CString,
    /// The finer name that the host gets: the served device type.
    pub(super) sub_device_type: CString,
    /// The device type that is served.
    pub(super) served: String,
    /// Whether out of memory is success with a null pointer.
    pub(super) oom_is_null: bool,
    /// Where the report of a request that finds no memory goes.
    pub(super) report_to: Option<OsString>,
    /// Whether freed memory stays in our pool.
    pub(super) keeps: bool,
}

fn name(value: Option<&OsStr>, default: &str) -> (CString, String) {
    let text = value
        .and_then(OsStr::to_str)
        .filter(|v| (1..=MAX_TYPE_NAME).contains(&v.len()) && !v.chars().any(char::is_control))
        .unwrap_or(default);
    // Control characters, zero among them, are filtered above.
    (CString::new(text).unwrap_or_default(), text.to_owned())
}

impl Options {
    fn new(
        device_type: Option<&OsStr>,
        served: Option<&OsStr>,
        oom: Option<&OsStr>,
        cache: Option<&OsStr>,
    ) -> Options {
        let (device_type, _) = name(device_type, "millpond");
        let (sub_device_type, served) = name(served, "host");
        Options {
            device_type,
            sub_device_type,
            served,
            report_to: None,
            oom_is_null: oom.map(OsStr::as_bytes) != Some(b"status"),
            keeps: cache.map(OsStr::as_bytes) == Some(b"on"),
        }
    }

    /// The options of this process. The strings live as long as the library is loaded.
    pub(super) fn get() -> &'static Options {
        static OPTIONS: OnceLock<Options> = OnceLock::new();
        OPTIONS.get_or_init(|| {
            let var = |name| std::env::var_os(name);
            let mut options = Options::new(
                var("MILLPOND_PLUGIN_TYPE").as_deref(),
                var("MILLPOND_PLUGIN_DEVICE").as_deref(),
                var("MILLPOND_PLUGIN_OOM").as_deref(),
                var("MILLPOND_PLUGIN_CACHE").as_deref(),
            );
            options.report_to = var("MILLPOND_PLUGIN_OOM_REPORT").filter(|v| !v.is_empty());
            options
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(device_type: &str, served: &str, oom: &str) -> Options {
        Options::new(Some(device_type.as_ref()), Some(served.as_ref()), Some(oom.as_ref()), None)
    }

    #[test]
    fn defaults() {
        let o = Options::new(None, None, None, None);
        assert_eq!((o.device_type.to_str(), o.served.as_str()), (Ok("millpond"), "host"));
        assert_eq!(o.sub_device_type.to_str(), Ok("host"));
        assert!(o.oom_is_null && !o.keeps);
    }

    #[test]
    fn the_pool_keeps_freed_memory_where_the_host_says_so() {
        let keeps = |value: &str| Options::new(None, None, None, Some(value.as_ref())).keeps;
        assert!(keeps("on"));
        assert!(!keeps("off") && !keeps("") && !keeps("yes"));
    }

    #[test]
    fn values_that_cannot_be_used_stand_for_the_default() {
        let long = "x".repeat(32);
        assert_eq!(new(&long, "cpu", "status").device_type.to_str(), Ok("millpond"));
        assert_eq!(new("", "", "").device_type.to_str(), Ok("millpond"));
        assert_eq!(new("a\nb", "", "").device_type.to_str(), Ok("millpond"));
        let longest = "x".repeat(MAX_TYPE_NAME);
        let o = new(&longest, "cpu", "status");
        assert_eq!((o.device_type.to_str(), o.served.as_str()), (Ok(longest.as_str()), "cpu"));
        assert!(!o.oom_is_null);
    }
}
