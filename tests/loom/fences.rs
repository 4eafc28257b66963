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

impl Points for Writer {
    fn passed(&self, _: Point) -> Result<bool> {
        Ok(true)
    }
    fn wait(&self, _: u64, _: Point) -> Result<()> {
        Ok(())
    }
    fn sync(&self, _: Point) -> Result<()> {
        Ok(())
    }
    fn forget(&self, _: Point) {}
}

impl Backing for Writer {
    gives_all!();

    fn mark(&self, _: u64, _: bool) -> Result<Option<Point>> {
        Ok(None)
    }
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    fn sync_stream(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn streams(&self, _: &mut dyn FnMut(u64)) {}
}

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
