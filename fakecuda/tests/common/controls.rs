//! The fake driver's controls as methods, for the tests of the fake and for those that use it. Where a control is found
//! is up to the file that expands this: it has a function `control` and the imports.

/// Methods of an `impl Fake`.
macro_rules! controls {
    () => {
        pub fn set(&self, name: &str, value: &str) -> c_int {
            let (name, value) = (CString::new(name).unwrap(), CString::new(value).unwrap());
            let f: extern "C" fn(*const c_char, *const c_char) -> c_int = control("fakecuda_set");
            f(name.as_ptr(), value.as_ptr())
        }

        pub fn sticky(&self, code: u32) {
            control::<extern "C" fn(u32)>("fakecuda_sticky")(code);
        }

        pub fn calls(&self, name: &str) -> u64 {
            let name = CString::new(name).unwrap();
            control::<extern "C" fn(*const c_char) -> u64>("fakecuda_calls")(name.as_ptr())
        }

        /// Nothing that is queued runs while this is on.
        pub fn hold(&self, on: bool) {
            control::<extern "C" fn(c_int)>("fakecuda_hold")(on.into());
        }

        /// Memory that goes to somebody beside us: the driver's status.
        pub fn take(&self, device: c_int, bytes: u64) -> u32 {
            control::<extern "C" fn(c_int, u64) -> u32>("fakecuda_take")(device, bytes)
        }

        pub fn give(&self, device: c_int, bytes: u64) {
            control::<extern "C" fn(c_int, u64)>("fakecuda_give")(device, bytes);
        }

        /// [ns] modelled so far, of all functions.
        pub fn modelled(&self) -> u64 {
            control::<extern "C" fn(*const c_char) -> u64>("fakecuda_modelled_ns")(std::ptr::null())
        }

        pub fn used(&self, device: c_int) -> u64 {
            control::<extern "C" fn(c_int) -> u64>("fakecuda_used")(device)
        }

        fn text(&self, name: &str) -> String {
            let mut buffer = vec![0_u8; 1 << 20];
            let f: extern "C" fn(*mut c_char, usize) -> usize = control(name);
            f(buffer.as_mut_ptr().cast(), buffer.len());
            let end = buffer.iter().position(|byte| *byte == 0).unwrap();
            String::from_utf8(buffer[..end].to_vec()).unwrap()
        }

        /// What the driver has that was not given back.
        pub fn leaks(&self) -> String {
            self.text("fakecuda_leaks")
        }

        pub fn log(&self) -> String {
            self.text("fakecuda_log")
        }

        /// As a kernel of the device would read.
        pub fn read(&self, device: c_int, from: u64, size: usize) -> Result<Vec<u8>, u32> {
            let mut bytes = vec![0_u8; size];
            let f: extern "C" fn(c_int, u64, *mut c_void, usize) -> u32 = control("fakecuda_read");
            match f(device, from, bytes.as_mut_ptr().cast(), size) {
                0 => Ok(bytes),
                code => Err(code),
            }
        }

        /// As a kernel of the device would write.
        pub fn write(&self, device: c_int, to: u64, bytes: &[u8]) -> Result<(), u32> {
            let f: extern "C" fn(c_int, u64, *const c_void, usize) -> u32 = control("fakecuda_write");
            match f(device, to, bytes.as_ptr().cast(), bytes.len()) {
                0 => Ok(()),
                code => Err(code),
            }
        }
    };
}
