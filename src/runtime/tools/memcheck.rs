//! memcheck, a tool of valgrind. It is told through *client requests*: a few instructions that do nothing on a processor and
//! that valgrind recognises. So they need neither a header nor a library, and cost next to nothing outside of valgrind.
//!
//! The blocks of a device are a *memory pool* in valgrind's words. Reports then say how far from which block an address
//! lies, and where that was allocated and freed.
//!
//! The numbers and the instructions are those of valgrind's published interface (its manual, "The Client Request
//! mechanism", and the headers `valgrind.h` and `memcheck.h`), which never change. The crate that wraps these headers
//! wants them, and a C compiler, wherever the library is built.

use super::checker::Checker;
use std::fs;

const RUNNING_ON_VALGRIND: u64 = 0x1001;
const CREATE_MEMPOOL: u64 = 0x1303;
const DESTROY_MEMPOOL: u64 = 0x1304;
const MEMPOOL_ALLOC: u64 = 0x1305;
const MEMPOOL_FREE: u64 = 0x1306;
const MEMPOOL_CHANGE: u64 = 0x1309;
/// Requests of memcheck itself begin here: its two letters, and then a number.
const OF_MEMCHECK: u64 = (b'M' as u64) << 24 | (b'C' as u64) << 16;
const MAKE_MEM_NOACCESS: u64 = OF_MEMCHECK;
const MAKE_MEM_DEFINED: u64 = OF_MEMCHECK + 2;

/// Asks valgrind; 0 where it does not run the program.
#[allow(unused_assignments, unused_mut, reason = "where there is no valgrind")]
fn ask(request: u64, arguments: [u64; 4]) -> u64 {
    let [a, b, c, d] = arguments;
    let words = [request, a, b, c, d, 0];
    let mut answer = 0;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: on a processor this turns a register by 128 bits in all and exchanges another with itself. Valgrind reads
    // the words, which outlive this, and writes the answer. It changes no memory but what it has noted of ours.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") words.as_ptr(),
            inout("rdx") answer,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") words.as_ptr(),
            inout("x3") answer,
        );
    }
    let _ = words;
    answer
}

struct Memcheck {
    /// Its address is the name of the pool.
    name: Box<u64>,
}

impl Memcheck {
    fn pool(&self) -> u64 {
        std::ptr::from_ref(&*self.name).addr() as u64
    }
}

pub(super) fn find() -> Option<Box<dyn Checker>> {
    if ask(RUNNING_ON_VALGRIND, [0; 4]) == 0 {
        return None;
    }
    // Other tools do not know memcheck's requests, and some would say so to the user. What memcheck needs inside the
    // program has its name.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if !maps.contains("vgpreload_memcheck") {
        return None;
    }
    let own = Memcheck { name: Box::new(0) };
    ask(CREATE_MEMPOOL, [own.pool(), 0, 0, 0]); // no red zones, and what is allocated is not zeroed
    Some(Box::new(own))
}

impl Checker for Memcheck {
    fn close(&mut self, address: u64, bytes: u64) {
        ask(MAKE_MEM_NOACCESS, [address, bytes, 0, 0]);
    }

    fn open(&mut self, address: u64, bytes: u64) {
        ask(MAKE_MEM_DEFINED, [address, bytes, 0, 0]);
    }

    fn give(&mut self, address: u64, bytes: u64) {
        ask(MEMPOOL_ALLOC, [self.pool(), address, bytes, 0]);
    }

    fn take(&mut self, address: u64, _: u64) {
        ask(MEMPOOL_FREE, [self.pool(), address, 0, 0]);
    }

    /// memcheck makes the memory of a freed block inaccessible. So the block is first moved to an address without memory.
    fn forget(&mut self, address: u64, _: u64) {
        ask(MEMPOOL_CHANGE, [self.pool(), address, self.pool(), 0]);
        ask(MEMPOOL_FREE, [self.pool(), self.pool(), 0, 0]);
    }
}

impl Drop for Memcheck {
    fn drop(&mut self) {
        ask(DESTROY_MEMPOOL, [self.pool(), 0, 0, 0]);
    }
}
