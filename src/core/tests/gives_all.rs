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
