//! Two things for the linker: the driver's library has the soname `libcuda.so.1`, which is the name that programs
//! linked with it ask for; and this package's tests look for it beside themselves before anywhere else, because older
//! builds of it may lie in other folders of the loader's path.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-link-arg-tests=-Wl,--disable-new-dtags,-rpath,$ORIGIN");
}
