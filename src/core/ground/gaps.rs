//! Places at which no lock is held: a test does there what other threads may do.

#[cfg(test)]
std::thread_local! {
    static ACT: std::cell::RefCell<Option<Box<dyn FnMut()>>> = const { std::cell::RefCell::new(None) };
}

/// One of them.
pub(crate) fn here() {
    #[cfg(test)]
    {
        // Taken out, so that it may read itself.
        let act = ACT.take();
        if let Some(mut act) = act {
            act();
            ACT.set(Some(act));
        }
    }
}

/// Calls `act` at each of them while `body` runs.
#[cfg(test)]
pub(crate) fn at_each<R>(act: impl FnMut() + 'static, body: impl FnOnce() -> R) -> R {
    ACT.set(Some(Box::new(act)));
    let result = body();
    ACT.set(None);
    result
}
