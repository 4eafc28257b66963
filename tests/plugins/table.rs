//! `InitPlugin` from the host's side: what is written where, for hosts of every size; and the
//! callbacks, over a device type of a fake plugin.

use millpond::paddle::abi::*;
use millpond::paddle::init_plugin;
use std::ffi::CStr;
use std::mem::offset_of;
use std::ptr::null_mut;

const GUARD: u8 = 0xa5;

/// A host's two structs as bytes, with a guard behind what is declared.
struct Host {
    params: Vec<u64>,
    table: Vec<u64>,
    sizes: (usize, usize),
}

impl Host {
    fn new(params_size: usize, table_size: usize) -> Host {
        let buffer = || vec![u64::from_ne_bytes([GUARD; 8]); 512];
        let mut host = Host { params: buffer(), table: buffer(), sizes: (params_size, table_size) };
        host.params[..params_size / 8].fill(0);
        host.table[..table_size / 8].fill(0);
        host.table[0] = table_size as u64;
        host.params[0] = params_size as u64;
        if params_size >= 16 {
            host.params[1] = host.table.as_ptr() as usize as u64;
        }
        host
    }

    fn init(&mut self) -> &mut Host {
        // SAFETY: both buffers are larger than they declare.
        unsafe { init_plugin(self.params.as_mut_ptr().cast()) };
        let (params, table) = self.sizes;
        for (what, words, size) in [("params", &self.params, params), ("table", &self.table, table)] {
            let intact = words[size / 8..].iter().all(|w| w.to_ne_bytes() == [GUARD; 8]);
            assert!(intact, "written past the {size} bytes of the {what}");
        }
        self
    }

    fn version(&self) -> [u64; 3] {
        [self.params[2], self.params[3], self.params[4]]
    }

    /// Offsets of the callbacks that are there.
    fn filled(&self) -> Vec<usize> {
        (1..self.sizes.1 / 8).filter(|&i| self.table[i] != 0).map(|i| i * 8).collect()
    }

    fn accepted(&self) -> bool {
        self.version() == [0, 1, 1]
    }
}

/// Everything below the common end but the reserved slots.
fn common() -> Vec<usize> {
    let reserved = |o: usize| (152..216).contains(&o) || (336..400).contains(&o);
    (8..KnownLayout::COMMON).step_by(8).filter(|&o| !reserved(o)).collect()
}

#[test]
fn every_known_host_gets_what_its_layout_has() {
    for layout in KnownLayout::ALL {
        let mut host = Host::new(layout.params_size, layout.interface_size);
        host.init();
        assert!(host.accepted(), "{layout:?}");
        let mut expected = common();
        if layout.capabilities == Capabilities::WithDevice {
            expected.extend([472, 488, 496]);
        }
        assert_eq!(host.filled(), expected, "{layout:?}");
        // What only C++ can fill stays as it was.
        assert_eq!(host.params[7..layout.params_size / 8].iter().sum::<u64>(), 0);
    }
}

#[test]
fn a_host_of_unknown_size_gets_the_common_part() {
    for (params, table) in [(96, 1136), (96, 2048), (104, 1128), (88, 1128), (96, 912), (56, 472), (96, 512)]
    {
        let mut host = Host::new(params, table);
        host.init();
        assert!(host.accepted(), "{params} {table}");
        assert_eq!(host.filled(), common(), "{params} {table}");
    }
}

#[test]
fn a_smaller_host_is_served_within_its_size() {
    for table in (416..=472).step_by(8) {
        let mut host = Host::new(96, table);
        host.init();
        assert!(host.accepted());
        let expected: Vec<usize> = common().into_iter().filter(|&o| o < table).collect();
        assert_eq!(host.filled(), expected);
    }
    // Room for the type's name, not for the finer one.
    let mut host = Host::new(48, 1128);
    assert!(host.init().accepted());
}

#[test]
fn a_host_that_is_too_small_is_left_alone() {
    for table in [8, 16, 216, 408] {
        let mut host = Host::new(96, table);
        host.init();
        assert_eq!((host.version(), host.params[5]), ([0; 3], 0), "{table}");
        assert!(host.filled().is_empty());
    }
    for params in [8, 16, 40] {
        let mut host = Host::new(params, 1128);
        let before = host.params.clone();
        host.init();
        assert!(host.params == before && host.filled().is_empty(), "{params}");
    }
}

#[test]
fn a_size_that_was_never_set_is_no_size() {
    for (params, table) in [(usize::MAX, 1128), (96, usize::MAX), (65544, 1128), (96, 65544)] {
        let mut host = Host::new(96, 1128);
        host.params[0] = params as u64;
        host.table[0] = table as u64;
        host.init();
        assert_eq!(host.version(), [0; 3], "{params} {table}");
        assert!(host.filled().is_empty());
    }
}

#[test]
fn nulls_are_survived() {
    // SAFETY: null is allowed.
    unsafe { init_plugin(null_mut()) };
    let mut host = Host::new(96, 1128);
    host.params[1] = 0;
    host.init();
    assert_eq!(host.version(), [0; 3]);
}

#[test]
fn a_version_that_the_host_has_set_is_respected() {
    for (version, accepted) in [([0, 1, 1], true), ([0, 1, 5], true), ([1, 0, 0], false), ([0, 1, 0], false)]
    {
        let mut host = Host::new(96, 1128);
        host.params[2..5].copy_from_slice(&version);
        host.init();
        assert_eq!(!host.filled().is_empty(), accepted, "{version:?}");
        assert_eq!(host.version(), if accepted { [0, 1, 1] } else { version });
    }
}

#[test]
fn the_names_are_strings_that_stay() {
    let mut host = Host::new(96, 1128);
    host.init();
    // SAFETY: `init_plugin` stored C strings.
    let name = |i: usize| unsafe { CStr::from_ptr(host.params[i] as usize as *const _) }.to_str().unwrap();
    assert_eq!((name(5), name(6)), ("millpond", "host"));
    assert_eq!(offset_of!(CustomRuntimeParams, device_type), 5 * 8);
}
