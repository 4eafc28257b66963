//! The two sides of an asymmetric barrier: `light` costs nothing; `heavy` makes every thread of the process pass a full
//! barrier (the `membarrier` system call of Linux).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::time::Duration;

// From <linux/membarrier.h>.
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// Whether the call was refused after it had worked.
static REFUSED: AtomicBool = AtomicBool::new(false);

fn membarrier(command: i32) -> bool {
    // SAFETY: the call takes three integers and touches no memory of the caller.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The frequent side: only a compiler barrier.
#[inline(always)]
pub(super) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The rare side: a full barrier on every processor that runs a thread of this process.
pub(super) fn heavy() {
    // Once registered, a process is refused only if a sandbox was set up since.
    if !membarrier(PRIVATE_EXPEDITED) {
        REFUSED.store(true, Ordering::Relaxed);
        heavy_without_the_call();
    }
}

/// Runs this thread on each processor in turn. Whatever ran there had to give way, and a context switch is a full
/// barrier. Takes milliseconds, but only once for each lock, since no thread becomes owner any more.
#[cold]
fn heavy_without_the_call() {
    // If this thread may run on fewer processors than others, or cannot be moved, this sleep must do: a store
    // leaves a processor's store buffer after microseconds, and with the next timer interrupt at the latest.
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: all zero bits are an empty set.
    let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is this function's own and has that size; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size, &mut before) } != 0 {
        return;
    }
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: as above.
        let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut one) };
        // SAFETY: as above. Refused for processors that do not exist or are not this process's.
        unsafe { libc::sched_setaffinity(0, size, &one) };
    }
    // SAFETY: as above; it was this thread's own set.
    unsafe { libc::sched_setaffinity(0, size, &before) };
}

/// Whether the system call exists and this process may use it.
pub(super) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED))
        && !REFUSED.load(Ordering::Relaxed)
}

/// For a test: does what `heavy` does once the system call is refused.
#[cfg(test)]
pub(super) fn heavy_as_if_refused() {
    heavy_without_the_call();
}
