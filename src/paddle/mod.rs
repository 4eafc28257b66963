//! The custom-runtime interface, both ways: `table` serves hosts that load Millpond as a plugin, `foreign` makes other
//! people's plugins device types of the runtime.
//!
//! Only this room and `capi` know status numbers, and only this room calls foreign callbacks.

pub mod abi;
mod foreign;
mod load;
pub(crate) mod status;
mod table;

pub use table::init_plugin;

use crate::base::error::Result;
use crate::runtime;
use std::path::Path;
use std::sync::Arc;

/// Registers the device type of a plugin that is linked into the process, and returns its name.
///
/// `init` runs once, immediately, and then the plugin's `initialize`. The error says what is wrong: `PluginRefused` for
/// a version below 0.1.1, a wrong struct size, a missing required function, or a bad name; `Busy` if the name is taken;
/// `Device` if the plugin's own `initialize` fails.
///
/// # Safety
///
/// `init` and the callbacks that it stores follow the contract of `custom_runtime.h`, and stay valid
/// until the type is unregistered.
pub unsafe fn register_init(init: abi::InitPlugin) -> Result<String> {
    // SAFETY: the caller vouches for `init` and for what it stores.
    let plugin = unsafe { foreign::Plugin::from_init(init, None) }?;
    register(plugin)
}

/// Loads a plugin from a shared object and registers its device type; returns the type's name.
///
/// A path without a slash is searched for as the dynamic loader does. Errors: those of [`register_init`]; `System` with
/// the loader's message if the file cannot be loaded; `PluginRefused` if it does not export `InitPlugin`. A refused
/// object is unloaded again; an accepted one stays loaded until its type ends.
///
/// # Safety
///
/// Loading runs the object's constructors, and using it runs its code: the caller vouches for the file.
pub unsafe fn load_plugin(path: &Path) -> Result<String> {
    let library = load::Library::open(path)?;
    let init = library.init_plugin()?;
    // SAFETY: the caller vouches for the object; `library` stays with the plugin.
    let plugin = unsafe { foreign::Plugin::from_init(init, Some(library)) }?;
    register(plugin)
}

fn register(plugin: foreign::Plugin) -> Result<String> {
    let name = plugin.name().to_owned();
    runtime::register_type(Arc::new(foreign::ForeignType::new(plugin)))?;
    Ok(name)
}
