//! A Rust library that knows nothing of Millpond: it allocates, starts a thread, and catches a panic of its own.

/// The sum 0 + 1 + … + (n - 1), made on another thread; -1 when the panic was not caught as it should.
#[no_mangle]
pub extern "C" fn second_sum(n: u32) -> i64 {
    let sum = std::thread::spawn(move || (0..n).map(i64::from).collect::<Vec<_>>().iter().sum::<i64>()).join();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(|| {
        if n > 0 {
            panic!("expected");
        }
    });
    match (sum, caught) {
        (Ok(sum), Err(_)) => sum,
        _ => -1,
    }
}
