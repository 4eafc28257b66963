//! A plugin's own numbers and refusals: sizes that no device has, an opening that fails, memory that is not taken back at
//! the end.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::MIB;
use crate::slow::{self, Manner};
use millpond::capi::*;
use millpond::paddle::abi::*;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A plugin refuses to take one segment back at the end: it has all others back.
#[test]
fn memory_that_a_plugin_does_not_take_at_the_end_keeps_nothing_else_there() {
    apart_for(30, || {
        for refuse_first in [true, false] {
            slow::register(Manner::default(), |_| ()).unwrap();
            let d = device(slow::NAME, 0);
            for _ in 0..3 {
                d.pool().alloc(14 * MIB, 0).unwrap();
            }
            let before = slow::held();
            assert!(before >= 3);
            let armed = AtomicBool::new(refuse_first);
            slow::set_refusal(Some(Arc::new(move |name| {
                (name == "device_memory_deallocate" && armed.swap(false, SeqCst)).then_some(C_Status::ERROR)
            })));
            let e = said(millpond_finalize());
            assert_eq!(e.is_err(), refuse_first);
            slow::set_refusal(None);
            assert_eq!(slow::held(), usize::from(refuse_first), "of {before}");
        }
    });
}

static INITS: AtomicUsize = AtomicUsize::new(0);
static DEINITS: AtomicUsize = AtomicUsize::new(0);
unsafe extern "C-unwind" fn init_device(_: C_Device) -> C_Status {
    INITS.fetch_add(1, SeqCst);
    C_Status::SUCCESS
}
unsafe extern "C-unwind" fn deinit_device(_: C_Device) -> C_Status {
    DEINITS.fetch_add(1, SeqCst);
    C_Status::SUCCESS
}
static FAILS: AtomicBool = AtomicBool::new(true);
unsafe extern "C-unwind" fn min_chunk(_: C_Device, out: *mut usize) -> C_Status {
    unsafe { *out = 512 };
    if FAILS.swap(false, SeqCst) { C_Status::ERROR } else { C_Status::SUCCESS }
}

/// A device that began and could then not be opened ends again.
#[test]
fn a_device_whose_opening_fails_has_ended() {
    apart_for(30, || {
        slow::register(Manner::default(), |t| {
            t.init_device = Some(init_device);
            t.deinit_device = Some(deinit_device);
            t.device_min_chunk_size = Some(min_chunk);
        })
        .unwrap();
        let mut d = null_mut();
        said(unsafe { millpond_device_get(c"slow".as_ptr(), 0, &mut d) }).unwrap_err();
        assert_eq!((INITS.load(SeqCst), DEINITS.load(SeqCst)), (1, 1));
        device(slow::NAME, 0);
        unregister(slow::NAME).unwrap();
        assert_eq!((INITS.load(SeqCst), DEINITS.load(SeqCst)), (2, 2));
    });
}

static VALUES: [AtomicUsize; 6] = [const { AtomicUsize::new(0) }; 6];
macro_rules! size_fn {
    ($($name:ident $i:expr),*) => {$(
        unsafe extern "C-unwind" fn $name(_: C_Device, out: *mut usize) -> C_Status {
            unsafe { *out = VALUES[$i].load(SeqCst) };
            C_Status::SUCCESS
        }
    )*};
}
size_fn!(s_min 0, s_max 1, s_alloc 2, s_pad 3, s_init 4, s_re 5);

/// Odd sizes of a plugin, in all combinations: it is refused, or serves, or has no memory; nothing else.
#[test]
fn odd_sizes_of_a_plugin_are_refused_or_served() {
    apart_for(60, || {
        let odd = [
            0usize,
            1,
            3,
            512,
            4096,
            1 << 20,
            (2 << 20) + 512,
            64 << 20,
            1 << 40,
            1 << 62,
            1 << 63,
            usize::MAX,
        ];
        let mut x = 12345u64;
        let mut next = move |n: usize| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) as usize % n
        };
        for round in 0..200 {
            let usual = [512, 16 << 20, 256 << 20, 0, 8 << 20, 8 << 20];
            let v = usual.map(|usual| if next(2) == 0 { usual } else { odd[next(odd.len())] });
            (0..6).for_each(|i| VALUES[i].store(v[i], SeqCst));
            slow::register(Manner::default(), |t| {
                t.device_min_chunk_size = Some(s_min);
                t.device_max_chunk_size = Some(s_max);
                t.device_max_alloc_size = Some(s_alloc);
                t.device_extra_padding_size = Some(s_pad);
                t.device_init_alloc_size = Some(s_init);
                t.device_realloc_size = Some(s_re);
            })
            .unwrap();
            step(&format!("{round}: {v:x?}"));
            let mut d = null_mut();
            match said(unsafe { millpond_device_get(c"slow".as_ptr(), 0, &mut d) }) {
                Err(e) => assert!(
                    [MILLPOND_E_PLUGIN_REFUSED, MILLPOND_E_OUT_OF_MEMORY, MILLPOND_E_INVALID_ARGUMENT]
                        .contains(&e.code),
                    "{e:?}"
                ),
                Ok(()) => {
                    let d = Dev(d);
                    let mut all = vec![];
                    for n in
                        [1, 511, 4097, 70_000, 3 * MIB, 20 * MIB, 1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX]
                    {
                        for s in [None, Some(0)] {
                            let p = match s {
                                None => d.alloc(n),
                                Some(s) => d.pool().alloc(n, s),
                            };
                            match p {
                                Ok(p) => {
                                    assert!(n < 1 << 40);
                                    d.memset(p, 1, n).unwrap();
                                    all.push((p, n));
                                }
                                Err(e) => assert!(e.code == MILLPOND_E_OUT_OF_MEMORY, "{n:#x} {e:?}"),
                            }
                        }
                    }
                    for (i, a) in all.iter().enumerate() {
                        assert!(all[..i].iter().all(|b| !overlap(a.0, a.1, b.0, b.1)));
                    }
                    all.iter().for_each(|a| free(a.0).unwrap());
                    d.empty_cache().unwrap();
                    let st = d.stats().unwrap();
                    assert_eq!((st.reserved_bytes.current, st.blocks.current), (0, 0));
                }
            }
            unregister(slow::NAME).unwrap();
            assert_eq!((slow::held(), slow::faults()), (0, vec![]));
        }
    });
}
