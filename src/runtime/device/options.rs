//! The options of an open device, as text.

use crate::base::error::Result;
use crate::runtime::device::state::DeviceState;

/// The options of an open device, as `docs/options.md` describes them. Get it with [`DeviceState::options`].
#[derive(Clone, Copy)]
pub struct DeviceOptions<'a>(pub(super) &'a DeviceState);

impl DeviceState {
    /// The options of the device.
    pub fn options(&self) -> DeviceOptions<'_> {
        DeviceOptions(self)
    }
}

impl DeviceOptions<'_> {
    /// Changes options of the open device, all that `text` names or, after an error, none: `key:value` pairs,
    /// separated by commas, as `docs/options.md` describes them. `InvalidArgument` for a wrong text, with the
    /// column and the nearest right word; `Busy` for `backend` and `expandable_segments`, which a device keeps
    /// while it is open (see [`set_default_options`](crate::runtime::set_default_options)).
    pub fn set(&self, text: &str) -> Result<()> {
        let _pass = self.0.enter()?;
        self.0.host.configure(&self.0.memory().settings().set_options(text)?);
        Ok(())
    }

    /// The value of one option as text. `InvalidArgument` for a name that is none.
    pub fn value(&self, name: &str) -> Result<String> {
        let _pass = self.0.enter()?;
        self.0.memory().settings().options().text_of(name)
    }

    /// Where the value of an option comes from: `built in`, the name of a variable of the environment, `program` (a
    /// call), or `device` (it can do nothing else, whatever was asked for). `InvalidArgument` for a name that is none.
    pub fn source(&self, name: &str) -> Result<&'static str> {
        let _pass = self.0.enter()?;
        self.0.memory().settings().options().source_of(name)
    }

    /// All options as one text that [`set`](Self::set) takes.
    pub fn text(&self) -> Result<String> {
        let _pass = self.0.enter()?;
        Ok(self.0.memory().settings().options().to_string())
    }
}
