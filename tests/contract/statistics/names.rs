//! The names are PyTorch's: whoever reads `torch.cuda.memory_stats()` finds the same keys, and may find more.

use super::*;

/// The keys of `torch.cuda.memory_stats()`, as PyTorch documents them.
fn of_pytorch() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let metrics = ["current", "peak", "allocated", "freed"];
    for family in [
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ] {
        for pool in ["all", "large_pool", "small_pool"] {
            all.extend(metrics.map(|m| format!("{family}.{pool}.{m}")));
        }
    }
    for family in ["oversize_allocations", "oversize_segments"] {
        all.extend(metrics.map(|m| format!("{family}.{m}")));
    }
    let single = [
        "num_alloc_retries",
        "num_ooms",
        "num_oom_rejections",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "max_split_size",
    ];
    all.extend(single.map(str::to_owned));
    all
}

/// Those of `torch.cuda.host_memory_stats()`.
fn of_pytorch_for_the_host() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for family in ["allocations", "allocated_bytes", "active_requests", "active_bytes"] {
        all.extend(["current", "peak", "allocated", "freed"].map(|m| format!("{family}.{m}")));
    }
    for family in ["host_alloc_time", "host_free_time"] {
        all.extend(["total", "max", "min", "count", "avg"].map(|m| format!("{family}.{m}")));
    }
    all.extend(["num_host_alloc", "num_host_free"].map(str::to_owned));
    all
}

/// What an enumeration tells, and nothing twice.
fn enumerated(name: extern "C" fn(usize) -> *const c_char) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for n in 0.. {
        let at = name(n);
        if at.is_null() {
            assert!(name(n + 1).is_null() && name(usize::MAX).is_null());
            break;
        }
        assert!(all.insert(unsafe { CStr::from_ptr(at) }.to_str().unwrap().to_owned()), "twice");
    }
    all
}

#[test]
fn every_name_of_pytorch_is_there() {
    let ours = enumerated(millpond_memory_stats_name);
    assert_eq!(of_pytorch().difference(&ours).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(of_pytorch().len(), 9 * 12 + 8 + 7);
    let more: Vec<&str> = ours.iter().map(String::as_str).filter(|n| !of_pytorch().contains(*n)).collect();
    let beyond = [
        "fragmentation_ppm",
        "free_bytes",
        "largest_cached_bytes",
        "largest_free_bytes",
        "limit_bytes",
        "releasable_bytes",
        "sleeping_bytes.allocated",
        "sleeping_bytes.current",
        "sleeping_bytes.freed",
        "sleeping_bytes.peak",
    ];
    assert_eq!(more, beyond);
    let host = enumerated(millpond_host_memory_stats_name);
    assert_eq!(of_pytorch_for_the_host().difference(&host).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(
        host.difference(&of_pytorch_for_the_host()).collect::<Vec<_>>(),
        ["cached_bytes", "pending_bytes"]
    );
}

#[test]
fn each_name_finds_its_number() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        let at = pool.alloc(100_000, s).unwrap();
        let told = read(d, None);
        assert_eq!(find(&told, "requested_bytes.large_pool.current").unwrap(), 100_000);
        assert_eq!(find(&told, "reserved_bytes.all.peak").unwrap(), told.reserved_bytes.all.peak);
        assert_eq!(find(&told, "largest_free_bytes").unwrap(), told.largest_free_bytes);
        for name in enumerated(millpond_memory_stats_name) {
            find(&told, &name).unwrap();
        }
        for name in ["", "allocation", "allocation.all", "struct_size", "allocation.all.current "] {
            assert_eq!(code(find(&told, name)), MILLPOND_E_INVALID_ARGUMENT, "{name}");
        }
        // A program of before has less of it.
        let mut older = told;
        older.struct_size = size_of::<usize>() + 12 * 8;
        assert_eq!(find(&older, "allocation.small_pool.freed").unwrap(), 0);
        assert_eq!(code(find(&older, "segment.all.current")), MILLPOND_E_OUT_OF_RANGE);
        let mut value = 0;
        let name = c"num_ooms".as_ptr();
        for status in [
            unsafe { millpond_memory_stats_find(null(), name, &mut value) },
            unsafe { millpond_memory_stats_find(&told, null(), &mut value) },
            unsafe { millpond_memory_stats_find(&told, name, null_mut()) },
        ] {
            assert_eq!(code(outcome(status)), MILLPOND_E_INVALID_ARGUMENT);
        }
        pool.free(at, s).unwrap();
    });
}
