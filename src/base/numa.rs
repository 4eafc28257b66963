//! Memory from a chosen NUMA node: what a thread touches first during a function, or what a driver takes for it.

/// Runs `f` while the calling thread's memory comes from `node` if that has room, from elsewhere otherwise. If the
/// system has no nodes, or does not allow this, `f` runs all the same.
pub(crate) fn near<R>(node: Option<u32>, f: impl FnOnce() -> R) -> R {
    let _policy = node.and_then(Policy::prefer);
    f()
}

/// The nodes that the system may have, in 64-bit words.
#[cfg(target_os = "linux")]
const WORDS: usize = 16;

/// A memory policy of the thread. Dropping it makes it the current one again.
#[cfg(target_os = "linux")]
struct Policy {
    mode: libc::c_int,
    nodes: [u64; WORDS],
}

#[cfg(target_os = "linux")]
impl Policy {
    fn prefer(node: u32) -> Option<Policy> {
        let before = Policy::now()?;
        let mut nodes = [0; WORDS];
        *nodes.get_mut(node as usize / 64)? |= 1 << (node % 64);
        Policy { mode: libc::MPOL_PREFERRED, nodes }.set().then_some(before)
    }

    fn now() -> Option<Policy> {
        let mut p = Policy { mode: 0, nodes: [0; WORDS] };
        let nothing: *const libc::c_void = std::ptr::null();
        // SAFETY: the call writes one number and at most `WORDS * 64` bits, both of which are ours.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut p.mode,
                p.nodes.as_mut_ptr(),
                (WORDS * 64) as libc::c_ulong,
                nothing,
                0 as libc::c_ulong,
            )
        };
        (rc == 0).then_some(p)
    }

    fn set(&self) -> bool {
        // The default policy takes no nodes.
        let nodes = if self.nodes == [0; WORDS] { std::ptr::null() } else { self.nodes.as_ptr() };
        // SAFETY: the call reads at most `WORDS * 64` bits, which are ours, and changes only where this
        // thread's memory comes from later.
        let rc = unsafe {
            libc::syscall(libc::SYS_set_mempolicy, self.mode, nodes, (WORDS * 64) as libc::c_ulong)
        };
        rc == 0
    }
}

#[cfg(target_os = "linux")]
impl Drop for Policy {
    fn drop(&mut self) {
        // The kernel accepts the policy that it reported. Were it refused, the thread would merely prefer a node.
        let _ = self.set();
    }
}

#[cfg(not(target_os = "linux"))]
struct Policy;

#[cfg(not(target_os = "linux"))]
impl Policy {
    fn prefer(_node: u32) -> Option<Policy> {
        None
    }
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_policy_holds_inside_and_is_put_back() {
        let mode = || Policy::now().map(|p| (p.mode, p.nodes));
        let before = mode();
        let inside = near(Some(0), mode);
        assert_eq!(mode(), before);
        // Node 0 is there on every machine, but a container may forbid the calls.
        if let (Some(inside), true) = (inside, Policy::now().is_some_and(|p| p.set())) {
            assert_eq!((inside.0, inside.1[0]), (libc::MPOL_PREFERRED, 1));
        }
        assert_eq!(near(None, mode), before);
        near(Some(u32::MAX), || ());
        let panics = std::panic::catch_unwind(|| near(Some(0), || std::panic::resume_unwind(Box::new(()))));
        assert!(panics.is_err());
        assert_eq!(mode(), before);
    }
}
