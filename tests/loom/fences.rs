//! Fences: what a thread may rely on that learns from another thread that a fence is passed.

use loom::thread;
use millpond::base::error::Result;
use millpond::base::sync::AtomicU32;
use millpond::base::sync::Ordering::Relaxed;
use millpond::core::{Backing, Order, Point, Points};
use std::sync::Arc;

/// A device whose work is over, and has written to memory, which is part of the model.
#[derive(Default)]
struct Writer {
    written: AtomicU32,
}

runs_nothing!(Writer);

/// One thread has the device's work done and asks for the fence; another only hears from the fence that it is passed, and
/// sees what the device has written.
#[test]
fn who_hears_that_a_fence_is_passed_sees_the_work_before_it() {
    loom::model(|| {
        let writer = Arc::new(Writer::default());
        let fence = Order::new(writer.clone()).adopt(7);
        let hears = {
            let (writer, fence) = (writer.clone(), fence.clone());
            thread::spawn(move || {
                if fence.is_passed() {
                    assert_eq!(
                        writer.written.load(Relaxed),
                        1,
                        "the memory is given on before the work is done"
                    );
                }
            })
        };
        writer.written.store(1, Relaxed);
        assert!(fence.ask());
        hears.join().unwrap();
    });
}
