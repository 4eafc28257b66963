//! A device type in front of another one, which hands every call on. A test can hold a call before or after the device
//! has seen it, while other threads continue; it can also make calls fail, and count them.
//!
//! Calls have the names of the methods of `Device`. Only calls of threads started by `victim` are held, since the other
//! threads of a test must get through. Failures concern all threads.

use crate::apart::soon;
use crate::api::Device as Handle;
use crate::seam::{Hook, SeamType};
use millpond::device::DeviceType;
use millpond::device::host::HostType;
use millpond::{Code, Error, HostOptions, Result, runtime};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

thread_local! {
    static VICTIM: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body on a thread that holds concern.
pub fn victim<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(move || {
        VICTIM.set(true);
        body()
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Before,
    After,
}

enum Rule {
    Hold { name: String, step: Step, left: u64, reached: bool, open: bool },
    Fail { name: String, left: u64, code: Code, every: bool },
}

#[derive(Default)]
struct State {
    rules: BTreeMap<u64, Rule>,
    last: u64,
    calls: BTreeMap<&'static str, u64>,
}

/// What a test can do to a held device type.
#[derive(Default)]
pub struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

/// A hold that was asked for. Lets go when it is dropped.
pub struct Hold {
    control: Arc<Control>,
    rule: u64,
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn hold(self: &Arc<Self>, name: &str, step: Step, nth: u64) -> Hold {
        let mut s = self.state();
        s.last += 1;
        let rule = s.last;
        let name = name.to_owned();
        s.rules.insert(rule, Rule::Hold { name, step, left: nth, reached: false, open: false });
        Hold { control: self.clone(), rule }
    }

    /// The nth call of this name by a victim stops before the device sees it.
    pub fn hold_before(self: &Arc<Self>, name: &str, nth: u64) -> Hold {
        self.hold(name, Step::Before, nth)
    }

    /// The nth call of this name by a victim stops when the device has done it.
    pub fn hold_after(self: &Arc<Self>, name: &str, nth: u64) -> Hold {
        self.hold(name, Step::After, nth)
    }

    fn fail_with(&self, name: &str, nth: u64, code: Code, every: bool) {
        let mut s = self.state();
        s.last += 1;
        let rule = s.last;
        s.rules.insert(rule, Rule::Fail { name: name.to_owned(), left: nth, code, every });
    }

    /// The nth call of this name from now on fails; the device does not see it.
    pub fn fail(&self, name: &str, nth: u64, code: Code) {
        self.fail_with(name, nth, code, false);
    }

    /// All calls of this name fail until `mend`.
    pub fn fail_all(&self, name: &str, code: Code) {
        self.fail_with(name, 1, code, true);
    }

    /// Nothing fails any more.
    pub fn mend(&self) {
        self.state().rules.retain(|_, r| matches!(r, Rule::Hold { .. }));
    }

    /// Calls of this name so far, also those that are held or were made to fail.
    pub fn calls(&self, name: &str) -> u64 {
        self.state().calls.get(name).copied().unwrap_or(0)
    }

    fn stop(&self, call: &str, at: Step) {
        let mut s = self.state();
        let due = s.rules.iter_mut().find_map(|(&id, r)| match r {
            Rule::Hold { name, step, left, .. }
                if name == call && *step == at && *left > 0 && VICTIM.get() =>
            {
                *left -= 1;
                (*left == 0).then_some(id)
            }
            _ => None,
        });
        let Some(id) = due else { return };
        while let Some(Rule::Hold { reached, open, .. }) = s.rules.get_mut(&id) {
            *reached = true;
            if *open {
                break;
            }
            self.changed.notify_all();
            s = self.changed.wait(s).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn refuse(&self, call: &str) -> Result<()> {
        let mut s = self.state();
        for rule in s.rules.values_mut() {
            let Rule::Fail { name, left, code, every } = rule else { continue };
            match *left {
                _ if name != call => continue,
                0 => continue, // that was before
                2.. => {
                    *left -= 1;
                    continue;
                }
                1 if !*every => *left = 0,
                _ => {}
            }
            return Err(Error::new(*code, format!("the test wants {call} to fail")));
        }
        Ok(())
    }
}

impl Hook for Control {
    /// One call: counted, held and failed as the rules say.
    fn pass<T>(&self, name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        *self.state().calls.entry(name).or_default() += 1;
        self.stop(name, Step::Before);
        self.refuse(name)?;
        let done = call();
        self.stop(name, Step::After);
        done
    }

    /// One call that cannot fail.
    fn look<T>(&self, name: &'static str, call: impl FnOnce() -> T) -> T {
        *self.state().calls.entry(name).or_default() += 1;
        self.stop(name, Step::Before);
        let answer = call();
        self.stop(name, Step::After);
        answer
    }
}

impl Hold {
    /// Whether a thread stands there.
    pub fn is_reached(&self) -> bool {
        matches!(self.control.state().rules.get(&self.rule), Some(Rule::Hold { reached: true, .. }))
    }

    /// Waits until a thread stands there.
    #[track_caller]
    pub fn reached(&self) {
        assert!(soon(Duration::from_secs(10), || self.is_reached()), "nobody came to the call that is held");
    }

    /// The thread goes on.
    pub fn let_go(&self) {
        if let Some(Rule::Hold { open, .. }) = self.control.state().rules.get_mut(&self.rule) {
            *open = true;
        }
        self.control.changed.notify_all();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_go();
    }
}

// ---- the type and its devices ----------------------------------------------------------------------------------

/// The type's name.
pub const NAME: &str = "held";

/// A held device over any other; device 0 of it, freshly started.
pub fn over(inner: Arc<dyn DeviceType>) -> (Handle, Arc<Control>) {
    let _ = runtime::finalize();
    let control = register(inner);
    (Handle::get(NAME, 0).unwrap(), control)
}

/// A held device over the processor's memory, of so many bytes.
pub fn host(capacity: usize, mapping: bool) -> (Handle, Arc<Control>) {
    host_with(capacity, mapping, "")
}

/// The same, with options of the allocator that must be set before the device is opened.
pub fn host_with(capacity: usize, mapping: bool, options: &str) -> (Handle, Arc<Control>) {
    let _ = runtime::finalize();
    let behind = HostOptions { device_count: 2, capacity: capacity as u64, mapping };
    let control = register(Arc::new(HostType::new("behind", behind)));
    if !options.is_empty() {
        runtime::set_default_options(Some(NAME), None, options).unwrap();
    }
    (Handle::get(NAME, 0).unwrap(), control)
}

fn register(inner: Arc<dyn DeviceType>) -> Arc<Control> {
    let control = Arc::new(Control::default());
    let held = SeamType { name: NAME, inner, hook: control.clone() };
    runtime::register_type(Arc::new(held)).unwrap();
    control
}
