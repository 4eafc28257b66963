//! How threads are told apart.

/// A number that distinguishes the calling thread from every other live thread. Never 0, and even.
#[inline(always)]
pub fn thread_token() -> u64 {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri)))]
    {
        let token: u64;
        // SAFETY: on x86-64 Linux the first word behind %fs is the thread control block's own
        // address (System V ABI, thread-local storage, variant II); reading it has no effect. It is no memory of this
        // program, and never changes while the thread lives: a call may use what an earlier load has found (`nomem`).
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) token, options(nostack, preserves_flags, pure, nomem));
        }
        token
    }
    #[cfg(loom)]
    {
        // The threads of a model are coroutines on one system thread, and only loom can tell them apart.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(2);
        loom::thread_local!(static TOKEN: u64 = NEXT.fetch_add(2, std::sync::atomic::Ordering::Relaxed));
        TOKEN.with(|t| *t)
    }
    #[cfg(not(any(loom, all(target_arch = "x86_64", target_os = "linux", not(miri)))))]
    {
        std::thread_local!(static MARK: u16 = const { 0 }); // aligned to 2
        MARK.with(|m| std::ptr::from_ref(m) as usize as u64)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_between_live_threads() {
        let here = thread_token();
        let there = std::thread::scope(|s| s.spawn(thread_token).join().unwrap());
        assert_ne!(here, 0);
        assert_ne!(here, there);
        assert_eq!(here, thread_token());
    }
}
