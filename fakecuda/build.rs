//! The driver's library has the soname `libcuda.so.1`; programs that linked it ask for that name.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
