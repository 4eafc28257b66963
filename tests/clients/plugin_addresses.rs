//! A plugin whose devices have address spaces of their own, so that blocks of two devices can have one address. Calls
//! that name a device or a pool do the right thing. Calls that name only a pointer are refused where it is not clear
//! whose block is meant, with nothing changed, and find the right block where it is.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::MIB;
use crate::slow::{self, Manner};
use millpond::capi::*;
use std::ptr::null_mut;

const BYTES: u64 = 3 * MIB;

struct Scene {
    d: [Dev; 2],
    /// A stream of each device.
    s: [u64; 2],
    /// The address of a block of each.
    p: u64,
}

fn scene() -> Scene {
    scene_with(false)
}

/// With `same_handles` the devices have the same numbers for streams, too.
fn scene_with(same_handles: bool) -> Scene {
    slow::register(Manner { same_addresses: true, same_handles, ..Manner::default() }, |_| ()).unwrap();
    let d = [device(slow::NAME, 0), device(slow::NAME, 1)];
    let s = d.map(Dev::stream);
    let p = [0, 1].map(|i| d[i].pool().alloc(BYTES, s[i]).unwrap());
    assert_eq!(p[0], p[1], "the scene: both devices have a block at one address");
    for (device, value) in d.into_iter().zip([0x10, 0x11]) {
        device.memset(p[0], value, BYTES).unwrap();
    }
    Scene { d, s, p: p[0] }
}

impl Scene {
    fn blocks(&self) -> [u64; 2] {
        self.d.map(|d| d.stats().unwrap().blocks.current)
    }

    #[track_caller]
    fn check_both_live(&self) {
        assert_eq!(self.blocks(), [1, 1]);
    }

    /// Both blocks live, with what they hold.
    #[track_caller]
    fn check_nothing_changed(&self) {
        assert_eq!(self.blocks(), [1, 1]);
        for (device, value) in self.d.into_iter().zip([0x10, 0x11]) {
            assert_eq!(device.read(self.p, 4).unwrap(), [value; 4]);
        }
    }
}

#[track_caller]
fn ambiguous<T: std::fmt::Debug>(said: Said<T>) {
    let codes = [
        MILLPOND_E_INVALID_ARGUMENT,
        MILLPOND_E_UNKNOWN_POINTER,
        MILLPOND_E_NOT_PERMITTED,
        MILLPOND_E_UNSUPPORTED,
    ];
    refused(said, &codes);
}

/// `millpond_free` of an address that two devices have.
#[test]
fn a_free_of_an_address_that_two_devices_have_is_refused() {
    apart_for(60, || {
        let x = scene();
        ambiguous(free(x.p));
        ambiguous(said(unsafe { millpond_free_sized(pointer(x.p), BYTES as usize) }));
        x.check_nothing_changed();
    });
}

fn pointer(p: u64) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(p as usize)
}

/// `millpond_get_block` and `millpond_dlpack_export` of such an address.
#[test]
fn a_look_at_an_address_that_two_devices_have_is_refused() {
    apart_for(60, || {
        let x = scene();
        ambiguous(block(x.p));
        ambiguous(block(x.p + 100));
        let mut tensor = null_mut();
        ambiguous(said(unsafe { millpond_dlpack_export(pointer(x.p), std::ptr::null(), &mut tensor) }));
        x.check_nothing_changed();
    });
}

/// A use of the second device's block by another stream of it is recorded, as `tell` says; then the block is freed with
/// its pool named.
fn a_use(same_handles: bool, tell: fn(u64, u64) -> Said) {
    let x = scene_with(same_handles);
    let t = [0, 1].map(|i| x.d[i].stream());
    assert_eq!(t[0] == t[1], same_handles);
    let gate = Gate::hold(x.d[1], t[1]);
    let told = tell(x.p, t[1]);
    if told.is_err() {
        ambiguous(told);
        x.check_both_live();
        gate.open();
        return x.d[1].stream_sync(t[1]).unwrap();
    }
    step("free, with the pool named");
    x.d[1].pool().free(x.p, x.s[1]).unwrap();
    let next = x.d[1].pool().alloc(BYTES, x.s[1]).unwrap();
    assert_ne!(next, x.p, "the call succeeded, and the second device's block does not wait for its stream");
    // The first device's block has no such use.
    x.d[0].pool().free(x.p, x.s[0]).unwrap();
    assert_eq!(x.d[0].pool().alloc(BYTES, x.s[0]).unwrap(), x.p);
}

/// `millpond_record_stream` of such an address. The stream is one of the second device only, so it may be taken to say
/// whose block is meant; or the call is refused for the address.
#[test]
fn a_record_at_an_address_that_two_devices_have_is_right_or_refused() {
    apart_for(60, || a_use(false, record_stream));
}

#[test]
fn an_end_of_use_at_an_address_that_two_devices_have_is_right_or_refused() {
    apart_for(60, || a_use(false, record_end));
}

/// The stream's number is one of both devices: nothing tells whose block is meant.
#[test]
fn a_record_at_an_address_and_of_a_stream_that_two_devices_have_is_refused() {
    apart_for(60, || a_use(true, record_stream));
}

#[test]
fn an_end_of_use_at_an_address_and_of_a_stream_that_two_devices_have_is_refused() {
    apart_for(60, || a_use(true, record_end));
}

/// A tensor tells its device, so what it lies in is found, and its deleter frees that.
#[test]
fn a_tensor_over_an_address_that_two_devices_have_is_of_its_own_device() {
    apart_for(60, || {
        let x = scene();
        let other = x.d[0].pool();
        other.free(x.p, x.s[0]).unwrap();
        let mut tensor = null_mut();
        said(unsafe { millpond_dlpack_export(pointer(x.p), std::ptr::null(), &mut tensor) }).unwrap();
        let again = other.alloc(BYTES, x.s[0]).unwrap();
        assert_eq!(again, x.p, "the scene: the first device has a block there again");
        for wanted in [null_mut(), x.d[1].0] {
            let mut view: millpond_dlpack_view = unsafe { std::mem::zeroed() };
            view.struct_size = size_of::<millpond_dlpack_view>();
            said(unsafe { millpond_dlpack_get_view(wanted, tensor, &mut view) }).unwrap();
            assert_eq!(view.device, x.d[1].0);
            assert_eq!(view.block, pointer(x.p));
        }
        let mut view: millpond_dlpack_view = unsafe { std::mem::zeroed() };
        view.struct_size = size_of::<millpond_dlpack_view>();
        refused(
            said(unsafe { millpond_dlpack_get_view(x.d[0].0, tensor, &mut view) }),
            &[MILLPOND_E_INVALID_ARGUMENT],
        );
        said(unsafe { millpond_dlpack_destroy(tensor) }).unwrap();
        assert_eq!(x.blocks(), [1, 0]);
    });
}

/// The error names both devices; without a stream of its own, too, such a block can be freed.
#[test]
fn the_error_names_both_devices_and_a_pool_frees_a_block_without_a_stream() {
    apart_for(60, || {
        let x = scene();
        let e = free(x.p).unwrap_err();
        assert!(e.message.contains("slow:0") && e.message.contains("slow:1"), "{e:?}");
        for d in x.d {
            d.pool().free(x.p, 0).unwrap();
        }
        assert_eq!(x.blocks(), [0, 0]);
        // Other types have nothing to do with it.
        let host = device("host", 0);
        let p = host.alloc(1000).unwrap();
        let inside = block(p + 10).unwrap();
        assert_eq!(inside.device, host.0);
        free(p).unwrap();
        refused(free(p), &[MILLPOND_E_DOUBLE_FREE]);
    });
}

/// Calls that name the pool or the device find their own block.
#[test]
fn calls_that_name_a_pool_find_their_own_block() {
    apart_for(60, || {
        let x = scene();
        x.d[1].pool().free(x.p, x.s[1]).unwrap();
        assert_eq!(x.blocks(), [1, 0]);
        assert_eq!(x.d[0].read(x.p, 4).unwrap(), [0x10; 4]);
        assert!(x.d[1].read(x.p, 4).is_err());
        refused(x.d[1].pool().free(x.p, x.s[1]), &[MILLPOND_E_DOUBLE_FREE]);
        x.d[0].pool().free(x.p, x.s[0]).unwrap();
        assert_eq!(x.blocks(), [0, 0]);
    });
}

/// When only one device has a live block there, the pointer is enough, whichever device it is, and whatever the other
/// one had there before.
#[test]
fn an_address_that_one_device_has_is_enough() {
    apart_for(60, || {
        for keeps in [0, 1] {
            let x = scene();
            let other = 1 - keeps;
            x.d[other].pool().free(x.p, x.s[other]).unwrap();
            let info = block(x.p).unwrap();
            assert_eq!((info.device, info.requested_bytes as u64), (x.d[keeps].0, BYTES));
            record_stream(x.p, x.s[keeps]).unwrap();
            free(x.p).unwrap();
            assert_eq!(x.blocks(), [0, 0]);
            refused(free(x.p), &[MILLPOND_E_DOUBLE_FREE]);
            unregister(slow::NAME).unwrap();
        }
    });
}

/// A block of one device begins where one of the other device goes on: a free names a beginning, so it is clear which.
#[test]
fn the_start_of_a_block_inside_another_devices_block_is_freed() {
    apart_for(60, || {
        let x = scene();
        x.d[0].pool().free(x.p, x.s[0]).unwrap();
        let whole = x.d[0].pool().alloc(BYTES + MIB, x.s[0]).unwrap();
        let second = x.d[1].pool().alloc(MIB, x.s[1]).unwrap();
        assert!(
            whole == x.p && second > whole && second < whole + BYTES + MIB,
            "the scene: {whole:#x} {second:#x}"
        );
        free(second).unwrap();
        assert_eq!(x.blocks(), [1, 1]);
        x.d[1].pool().free(x.p, x.s[1]).unwrap();
        free(whole).unwrap();
    });
}
