//! Options from the environment. `MILLPOND_ALLOC_CONF` is ours; a key that does not exist is an error.
//!
//! Where the program has asked for it, because PyTorch runs on the device, and ours is not set, PyTorch's own variables
//! count: the first that is set and not empty of `PYTORCH_ALLOC_CONF` and `PYTORCH_CUDA_ALLOC_CONF`, the order in which
//! PyTorch reads them. Keys that we do not have are ignored there, and so is a backend that a device does not have.
//! `PYTORCH_NO_CUDA_MEMORY_CACHING=1` means `backend:none`, unless `MILLPOND_ALLOC_CONF` names a backend. Nobody else
//! has to do with variables that were set for another program in the same process or shell.
//!
//! They are read when a device is opened; a bad value makes that fail, with an error that names the variable.

use super::keys::Key;
use super::parse::{Strictness, parse};
use super::value::{Backend, Value};
use super::{Options, Source};
use crate::base::error::{Code, Error, Result};
use std::ffi::OsString;

const OURS: &str = "MILLPOND_ALLOC_CONF";
const THEIRS: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
const NO_CACHE: &str = "PYTORCH_NO_CUDA_MEMORY_CACHING";

/// The built-in options, overridden by those of the environment; with `pytorch`, also by PyTorch's.
pub(super) fn options(pytorch: bool) -> Result<Options> {
    options_of(pytorch, &|name| std::env::var_os(name))
}

fn options_of(pytorch: bool, read: &dyn Fn(&str) -> Option<OsString>) -> Result<Options> {
    let get = |name| read(name).filter(|v| !v.is_empty());
    let mut options = Options::default();
    let mut ours_has_backend = false;
    if let Some(value) = get(OURS) {
        let Some(text) = value.to_str() else {
            return Err(Error::formatted(Code::InvalidArgument, format_args!("{OURS} is not UTF-8")));
        };
        let patch = parse(text, OURS, Strictness::Exact)?;
        ours_has_backend = patch.iter().any(|p| p.0 == Key::Backend);
        options.apply(&patch, Source::Variable(OURS));
    } else if pytorch && let Some((name, value)) = THEIRS.iter().find_map(|&n| Some((n, get(n)?))) {
        options.apply(&parse(&value.to_string_lossy(), name, Strictness::Foreign)?, Source::Variable(name));
        options.backend_is_wish = options.backend() == Backend::Driver;
    }
    // Only "1" switches the cache off, as in PyTorch since 2.7.
    if pytorch && !ours_has_backend && get(NO_CACHE).is_some_and(|v| v == "1") {
        options.set(Key::Backend, Value::Backend(Backend::None), Source::Variable(NO_CACHE));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn read(pytorch: bool, variables: &[(&str, &str)]) -> Result<Options> {
        let map: HashMap<String, OsString> =
            variables.iter().map(|(k, v)| ((*k).to_owned(), OsString::from(v))).collect();
        options_of(pytorch, &|n| map.get(n).cloned())
    }

    fn with(variables: &[(&str, &str)]) -> Result<Options> {
        read(true, variables)
    }

    #[test]
    fn pytorchs_variables_count_only_where_they_are_asked_for() {
        for name in THEIRS {
            assert_eq!(
                read(false, &[(name, "max_split_size_mb:x"), (NO_CACHE, "1")]).unwrap(),
                Options::default()
            );
        }
        let ours = read(false, &[(OURS, "max_split_size_mb:5"), (THEIRS[0], "max_split_size_mb:6")]).unwrap();
        assert_eq!(ours.get(Key::MaxSplitSizeMb), Value::Mib(Some(5)));
    }

    #[test]
    fn the_first_variable_that_is_set_counts_alone() {
        assert_eq!(with(&[]).unwrap(), Options::default());
        let split = |v: &[(&str, &str)]| with(v).unwrap().get(Key::MaxSplitSizeMb);
        let (a, b, c) = (
            (OURS, "max_split_size_mb:1"),
            (THEIRS[0], "max_split_size_mb:2"),
            (THEIRS[1], "max_split_size_mb:3"),
        );
        assert_eq!(split(&[c]), Value::Mib(Some(3)));
        assert_eq!(split(&[c, b]), Value::Mib(Some(2)));
        assert_eq!(split(&[c, b, a]), Value::Mib(Some(1)));
        assert_eq!(split(&[c, b, (OURS, "")]), Value::Mib(Some(2)));
        assert_eq!(split(&[c, b, (OURS, "backend:native")]), Value::Mib(None));
    }

    #[test]
    fn each_value_says_where_it_is_from() {
        let options = with(&[(OURS, "max_split_size_mb:1"), (NO_CACHE, "1")]).unwrap();
        let sources =
            ["max_split_size_mb", "backend", "export_handle"].map(|k| options.source_of(k).unwrap());
        assert_eq!(sources, [OURS, NO_CACHE, "built in"]);
        let theirs = with(&[(THEIRS[1], "max_split_size_mb:20")]).unwrap();
        assert_eq!(theirs.source_of("max_split_size_mb").unwrap(), THEIRS[1]);
    }

    #[test]
    fn errors_name_the_variable_and_only_ours_refuses_unknown_keys() {
        for name in [OURS, THEIRS[0], THEIRS[1]] {
            let e = with(&[(name, "backend:native,max_split_size_mb:x")]).unwrap_err();
            assert!(e.message().starts_with(&format!("{name}, column 34: ")), "{e}");
        }
        assert!(with(&[(THEIRS[0], "no_such_key:[1:2,3:4],backend:none")]).is_ok());
        assert!(with(&[(OURS, "no_such_key:1")]).is_err());
    }

    #[test]
    fn no_caching_is_a_backend() {
        let backend = |v: &[(&str, &str)]| with(v).unwrap().backend();
        assert_eq!(backend(&[(NO_CACHE, "1")]), Backend::None);
        assert_eq!(backend(&[(NO_CACHE, "0")]), Backend::Native);
        assert_eq!(backend(&[(NO_CACHE, "1"), (THEIRS[0], "backend:cudaMallocAsync")]), Backend::None);
        assert_eq!(backend(&[(NO_CACHE, "1"), (OURS, "backend:native")]), Backend::Native);
        assert_eq!(backend(&[(NO_CACHE, "1"), (OURS, "max_split_size_mb:5")]), Backend::None);
        assert!(with(&[(THEIRS[1], "backend:cudaMallocAsync")]).unwrap().backend_is_wish);
        assert!(!with(&[(OURS, "backend:cudaMallocAsync")]).unwrap().backend_is_wish);
    }
}
