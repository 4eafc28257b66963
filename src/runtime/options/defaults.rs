//! Options that the program sets for devices before they are opened: patches, in the order in which they were set, each
//! for all devices, for those of one type, or for one device.

use super::parse::{Strictness, parse};
use super::{Options, Patch, Source, environment};
use crate::base::error::Result;
use crate::base::sync::system::{Mutex, lock};
use crate::runtime::entry::fork;

struct Default {
    type_name: Option<String>,
    ordinal: Option<usize>,
    patch: Patch,
}

static DEFAULTS: Mutex<Vec<Default>> = Mutex::new(Vec::new());

/// The device types that PyTorch runs on; `None` stands for all.
static PYTORCH: Mutex<Vec<Option<String>>> = Mutex::new(Vec::new());

/// Sets options of devices that are opened from now on: of all types or of one, and of all ordinals or of one. Later
/// settings override earlier ones, and all of them override the environment. Open devices keep their options. Forgotten
/// by [`finalize`](crate::runtime::finalize). `InvalidArgument` for a malformed text; then nothing is set.
pub fn set_default_options(type_name: Option<&str>, ordinal: Option<usize>, text: &str) -> Result<()> {
    let _busy = fork::enter()?;
    let patch = parse(text, "options", Strictness::Exact)?;
    if !patch.is_empty() {
        lock(&DEFAULTS).push(Default { type_name: type_name.map(str::to_owned), ordinal, patch });
    }
    Ok(())
}

/// PyTorch runs on devices of this type, or of all types: those that are opened from now on also take the options of
/// PyTorch's environment variables, where `MILLPOND_ALLOC_CONF` is not set. Forgotten by
/// [`finalize`](crate::runtime::finalize).
pub fn set_pytorch_options(type_name: Option<&str>) -> Result<()> {
    let _busy = fork::enter()?;
    let name = type_name.map(str::to_owned);
    let mut all = lock(&PYTORCH);
    if !all.contains(&name) {
        all.push(name);
    }
    Ok(())
}

/// The options with which a device starts.
pub(crate) fn for_device(type_name: &str, ordinal: usize) -> Result<Options> {
    let pytorch = lock(&PYTORCH).iter().any(|t| t.as_deref().is_none_or(|t| t == type_name));
    let mut options = environment::options(pytorch)?;
    options.pytorch = pytorch;
    for d in lock(&DEFAULTS).iter() {
        if d.type_name.as_deref().is_none_or(|t| t == type_name) && d.ordinal.is_none_or(|o| o == ordinal) {
            options.apply(&d.patch, Source::Program);
        }
    }
    Ok(options)
}

/// Forgets what the program has set.
pub(crate) fn forget() {
    lock(&DEFAULTS).clear();
    lock(&PYTORCH).clear();
}
