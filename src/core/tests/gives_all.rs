//! For tests and models: the part of `Backing` that is about memory, of a device that gives everything, takes everything
//! back, and knows every stream.

/// Methods of an `impl Backing`.
macro_rules! gives_all {
    () => {
        fn create(&self, _: u32, _: u32) -> Result<()> {
            Ok(())
        }
        fn release(&self, _: u32, _: u32) -> Result<()> {
            Ok(())
        }
        fn alias(&self, _: u64, _: u32, _: u32) -> Result<()> {
            Ok(())
        }
        fn unalias(&self, _: u64, _: u64) -> Result<()> {
            Ok(())
        }
        fn segment(&self, _: u64, _: u64) -> Result<()> {
            Ok(())
        }
        fn segment_release(&self, _: u64, _: u64) -> Result<()> {
            Ok(())
        }
        fn knows(&self, _: u64) -> bool {
            true
        }
    };
}

/// Implements `Points` and `Backing` for a device on which nothing is ever queued.
macro_rules! runs_nothing {
    ($device:ty) => {
        impl Points for $device {
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
        impl Backing for $device {
            gives_all!();

            fn mark(&self, _: u64, _: bool) -> Result<Option<Point>> {
                Ok(None)
            }
            fn sync_stream(&self, _: u64) -> Result<()> {
                Ok(())
            }
            fn sync_all(&self) -> Result<()> {
                Ok(())
            }
            fn streams(&self, _: &mut dyn FnMut(u64)) {}
        }
    };
}
