//! Options: how the memory of a device behaves, by the names that users of PyTorch know.
//!
//! A text of `key:value` pairs, separated by commas, becomes a [`Patch`]; patches applied to the defaults give the
//! [`Options`] of a device. Texts come from the environment (`environment.rs`), from defaults that the program sets
//! before a device is opened (`defaults.rs`), and from calls on an open device. `memory.rs` and `pinned.rs` implement
//! the keys;
//! `docs/options.md` describes them.
//!
//! Nothing here knows a device. Every error names the column and the nearest right key or value.

mod defaults;
mod environment;
mod keys;
mod nearest;
mod parse;
mod value;

pub(crate) use defaults::{for_device, forget};
pub use defaults::{set_default_options, set_pytorch_options};
pub(crate) use keys::Key;
pub(crate) use parse::{Strictness, parse};
pub(crate) use value::{Backend, Divisions, ExportHandle, Value};

use crate::base::error::{Code, Error, Result};
use crate::fail;
use keys::{COUNT, KEYS};
use std::fmt;

/// Values for some keys.
pub(crate) type Patch = Vec<(Key, Value)>;

/// Where the value of an option comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It is the default.
    BuiltIn,
    /// That variable of the environment.
    Variable(&'static str),
    /// A call.
    Program,
    /// The device can do nothing else.
    Device,
}

/// A value for every key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    values: [Value; COUNT],
    sources: [Source; COUNT],
    /// Whether the driver-pool backend is only a wish, because it comes from a `PYTORCH_*` variable. If the program's
    /// own settings ask for it, a device that has none must say so.
    pub backend_is_wish: bool,
    /// PyTorch runs on the device.
    pub pytorch: bool,
}

impl Default for Options {
    fn default() -> Self {
        let values = std::array::from_fn(|i| KEYS[i].default);
        Options { values, sources: [Source::BuiltIn; COUNT], backend_is_wish: false, pytorch: false }
    }
}

impl Options {
    /// The value of a key.
    pub(crate) fn get(&self, key: Key) -> Value {
        self.values[key as usize]
    }

    /// Sets one value; it must be of the key's kind.
    pub(crate) fn set(&mut self, key: Key, value: Value, source: Source) {
        self.values[key as usize] = value;
        self.sources[key as usize] = source;
        if key == Key::Backend {
            self.backend_is_wish = false;
        }
    }

    /// Applies a patch.
    pub(crate) fn apply(&mut self, patch: &Patch, source: Source) {
        for &(key, value) in patch {
            self.set(key, value, source);
        }
    }

    /// The device can do only this, whatever was asked for.
    pub(crate) fn settle(&mut self, key: Key, value: Value) {
        if self.get(key) != value {
            self.set(key, value, Source::Device);
        }
    }

    /// Fails with `Busy` if `other` differs in a key that an open device cannot change.
    pub(crate) fn check_change(&self, other: &Options) -> Result<()> {
        for info in KEYS.iter().filter(|k| !k.changeable) {
            let (now, wish) = (self.get(info.key), other.get(info.key));
            if now != wish {
                fail!(
                    Code::Busy,
                    "{} is {now} for this device and stays so while it is open; set {wish} as a default before the \
                     device is first used",
                    info.name
                );
            }
        }
        Ok(())
    }

    /// [B] the value of a key in MiB; `None` for its word (`unlimited`, `default`).
    pub(crate) fn bytes(&self, key: Key) -> Option<u64> {
        match self.get(key) {
            Value::Mib(n) | Value::Segment(n) => n.map(|n| n.saturating_mul(1 << 20)),
            _ => None,
        }
    }

    /// Whether a switch is on.
    pub(crate) fn on(&self, key: Key) -> bool {
        matches!(self.get(key), Value::Switch(true) | Value::OnOff(true))
    }

    /// The value of a fraction.
    pub(crate) fn fraction(&self, key: Key) -> f64 {
        match self.get(key) {
            Value::Fraction(f) => f,
            _ => 0.0,
        }
    }

    /// Which allocator serves the device.
    pub(crate) fn backend(&self) -> Backend {
        match self.get(Key::Backend) {
            Value::Backend(b) => b,
            _ => Backend::Native,
        }
    }

    /// How blocks are exported.
    pub(crate) fn export_handle(&self) -> ExportHandle {
        match self.get(Key::ExportHandle) {
            Value::ExportHandle(h) => h,
            _ => ExportHandle::PosixFd,
        }
    }

    /// How sizes are rounded up.
    pub(crate) fn divisions(&self) -> Divisions {
        match self.get(Key::RoundupPower2Divisions) {
            Value::Divisions(d) => d,
            _ => Divisions::NONE,
        }
    }

    /// The name of each key, with its value as text.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'static str, String)> {
        KEYS.iter().map(|info| (info.name, self.get(info.key).to_string()))
    }

    /// The value of the key of that name, as text.
    pub(crate) fn text_of(&self, name: &str) -> Result<String> {
        Ok(self.get(named(name)?).to_string())
    }

    /// Where the value of the key of that name comes from.
    pub(crate) fn source_of(&self, name: &str) -> Result<&'static str> {
        Ok(match self.sources[named(name)? as usize] {
            Source::BuiltIn => "built in",
            Source::Variable(name) => name,
            Source::Program => "program",
            Source::Device => "device",
        })
    }
}

fn named(name: &str) -> Result<Key> {
    let nearest = || format!("there is no option {name:?}; did you mean {:?}?", keys::nearest_name(name));
    Key::named(name).ok_or_else(|| Error::new(Code::InvalidArgument, nearest()))
}

/// All options as `key:value,key:value`, which can be parsed again.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, info) in KEYS.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", info.name, self.get(info.key))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_all_options_sets_them_again() {
        let text = "backend:none,max_split_size_mb:200,roundup_power2_divisions:[256:1,512:2,1024:4,>:8],\
                    garbage_collection_threshold:0.75,per_process_memory_fraction:0.5,pinned_num_register_threads:8";
        let mut a = Options::default();
        a.apply(&parse(text, "test", Strictness::Exact).unwrap(), Source::Program);
        let mut b = Options::default();
        b.apply(&parse(&a.to_string(), "test", Strictness::Exact).unwrap(), Source::Program);
        assert_eq!(a.values, b.values);
        assert_ne!(a, Options::default());
        let defaults = Options::default().to_string();
        assert!(defaults.starts_with("backend:native,max_split_size_mb:unlimited,"), "{defaults}");
    }

    #[test]
    fn what_an_open_device_cannot_change_is_busy() {
        let a = Options::default();
        let mut b = a.clone();
        b.set(Key::MaxSplitSizeMb, Value::Mib(Some(100)), Source::Program);
        a.check_change(&b).unwrap();
        b.set(Key::ExpandableSegments, Value::Switch(false), Source::Program);
        let e = a.check_change(&b).unwrap_err();
        assert_eq!(e.code(), Code::Busy);
        assert!(e.message().starts_with("expandable_segments is True"), "{e}");
    }
}
