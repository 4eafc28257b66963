//! What memory costs in the fake driver's modelled time, beside other ways to take it. The times are a sum of what
//! calls cost on one card (`fakecuda/README.md`); what is held here is how many calls there are, and how they compare.

use crate::cuda::*;
use millpond::runtime::{self, DeviceState, PoolId};
use std::sync::Arc;

const GIB: u64 = 1 << 30;

/// A card on which memory costs nothing of this machine.
fn card(gib: u64, tie: Option<u64>) -> (Fake, Arc<DeviceState>) {
    let capacity = format!("{gib}G");
    let settings = [("capacity", capacity.as_str()), ("strict", "1"), ("no_fd", "1")];
    let fake = Fake::new(&settings, |o| o.tie = tie);
    let device = runtime::device("cuda", 0).unwrap();
    (fake, device)
}

/// [µs] modelled of what `body` does.
fn time(fake: &Fake, body: impl FnOnce()) -> u64 {
    let before = fake.modelled();
    body();
    (fake.modelled() - before) / 1000
}

/// [µs] of one `cuMemAlloc`, and of giving it back.
fn alloc(fake: &Fake, bytes: u64) -> (u64, u64) {
    let alloc: extern "C" fn(*mut u64, usize) -> u32 = fake.driver("cuMemAlloc_v2");
    let free: extern "C" fn(u64) -> u32 = fake.driver("cuMemFree_v2");
    let mut at = 0;
    let taken = time(fake, || fake.with_primary(0, || assert_eq!(alloc(&mut at, bytes as usize), 0)));
    (taken, time(fake, || fake.with_primary(0, || assert_eq!(free(at), 0))))
}

/// [µs] of memory in handles of `piece` bytes, mapped side by side and opened by one call, as PyTorch's expandable
/// segments take it (20 MiB each); and of giving it back.
fn segments(fake: &Fake, bytes: u64, piece: u64) -> (u64, u64) {
    let reserve: extern "C" fn(*mut u64, usize, usize, u64, u64) -> u32 = fake.driver("cuMemAddressReserve");
    let create: extern "C" fn(*mut u64, usize, *const [u64; 4], u64) -> u32 = fake.driver("cuMemCreate");
    let map: extern "C" fn(u64, usize, usize, u64, u64) -> u32 = fake.driver("cuMemMap");
    let open: extern "C" fn(u64, usize, *const [u32; 3], usize) -> u32 = fake.driver("cuMemSetAccess");
    let unmap: extern "C" fn(u64, usize) -> u32 = fake.driver("cuMemUnmap");
    let release: extern "C" fn(u64) -> u32 = fake.driver("cuMemRelease");
    let free: extern "C" fn(u64, usize) -> u32 = fake.driver("cuMemAddressFree");
    let pieces = bytes.div_ceil(piece);
    let (mut at, mut handles) = (0, Vec::new());
    // Pinned memory of device 0, without handle types.
    let kind = [1_u64, 1, 0, 0];
    let taken = time(fake, || {
        assert_eq!(reserve(&mut at, (pieces * piece) as usize, 0, 0, 0), 0);
        for i in 0..pieces {
            let mut handle = 0;
            assert_eq!(create(&mut handle, piece as usize, &kind, 0), 0);
            assert_eq!(map(at + i * piece, piece as usize, 0, handle, 0), 0);
            handles.push(handle);
        }
        assert_eq!(open(at, (pieces * piece) as usize, &[1, 0, 3], 1), 0);
    });
    let given = time(fake, || {
        assert_eq!(unmap(at, (pieces * piece) as usize), 0);
        handles.iter().for_each(|h| assert_eq!(release(*h), 0));
    });
    assert_eq!(free(at, (pieces * piece) as usize), 0);
    (taken, given)
}

/// [µs] of ours.
fn ours(fake: &Fake, d: &DeviceState, bytes: u64) -> (u64, u64) {
    let mut at = 0;
    let taken = time(fake, || at = d.memory().alloc(PoolId::DEFAULT, 0, bytes).unwrap());
    d.memory().free(at, Some(0), None).unwrap();
    (taken, time(fake, || d.memory().empty_cache(None).unwrap()))
}

#[test]
fn the_first_gib_and_the_whole_card() {
    let (fake, d) = card(80, Some(GRANULE));
    for gib in [1, 64] {
        let bytes = gib * GIB;
        let rows = [
            ("one cuMemAlloc".to_owned(), alloc(&fake, bytes)),
            ("handles of 20 MiB".to_owned(), segments(&fake, bytes, 20 * MIB)),
            ("handles of 64 MiB".to_owned(), segments(&fake, bytes, 64 * MIB)),
            ("Millpond, handles of 2 MiB".to_owned(), ours(&fake, &d, bytes)),
        ];
        for (name, (taken, given)) in &rows {
            println!("{gib} GiB  {name:26}  taken {taken:>9} µs  given back {given:>9} µs");
        }
    }
    fake.calls_reset();
    ours(&fake, &d, GIB);
    let calls = |name| fake.calls(name);
    println!(
        "1 GiB: {} cuMemCreate, {} cuMemMap, {} cuMemSetAccess, {} cuMemUnmap, {} cuMemRelease",
        calls("cuMemCreate"),
        calls("cuMemMap"),
        calls("cuMemSetAccess"),
        calls("cuMemUnmap"),
        calls("cuMemRelease")
    );
    assert_eq!(calls("cuMemSetAccess"), 1, "opened once");
    assert_eq!(calls("cuMemUnmap"), 1, "whole mappings, one call");
    fake.end();
}

/// With large handles while memory is plentiful: of 32 MiB, and as they are by default.
#[test]
fn large_handles_cost_as_little_as_others_do() {
    for (mib, tie) in [(32, Some(32 * MIB)), (64, None)] {
        let (fake, d) = card(80, tie);
        for gib in [1, 64, 79] {
            let bytes = gib * GIB;
            let one = alloc(&fake, bytes);
            let torch = segments(&fake, bytes, 20 * MIB);
            let ours = ours(&fake, &d, bytes);
            let [first, both] =
                [ours.0 as f64 / one.0 as f64, (ours.0 + ours.1) as f64 / (torch.0 + torch.1) as f64];
            println!(
                "{gib} GiB, handles of {mib} MiB: {ours:?} µs, {first:.2} x cuMemAlloc; {both:.2} x handles of 20 MiB"
            );
            assert_eq!(fake.used(0), 0);
            if mib == 64 {
                assert!(gib > 1 || first <= 3.0, "{first}");
                assert!(both <= 0.5, "{both}");
            }
        }
        fake.end();
    }
}

/// A card is grown into by requests of tens of MiB, which must not each cost as many calls as they have granules.
#[test]
fn requests_of_tens_of_mib_are_in_handles_of_their_own_while_most_of_the_card_is_free() {
    let (fake, d) = card(80, None);
    let m = d.memory();
    let one = alloc(&fake, GIB);
    let [mut blocks, mut first, mut more] = [vec![], vec![], vec![]];
    let apart =
        time(&fake, || first = (0..32).map(|_| m.alloc(PoolId::DEFAULT, 0, 32 * MIB).unwrap()).collect());
    blocks.append(&mut first);
    let theirs = alloc(&fake, 64 * MIB);
    let ours = time(&fake, || more.push(m.alloc(PoolId::DEFAULT, 0, 64 * MIB).unwrap()));
    blocks.append(&mut more);
    println!(
        "1 GiB in 32 requests: {apart} µs, cuMemAlloc of it {one:?} µs; 64 MiB more: {ours} µs, cuMemAlloc {theirs:?} µs"
    );
    assert!(apart <= 32 * alloc(&fake, 32 * MIB).0 * 3 / 2, "{apart}");
    assert!(ours <= theirs.0 + theirs.1, "{ours}");
    // From an eighth of the card on, what is cut later would be missed.
    blocks.push(m.alloc(PoolId::DEFAULT, 0, 10 * GIB).unwrap());
    let calls = mapping_calls(&fake, || blocks.push(m.alloc(PoolId::DEFAULT, 0, 64 * MIB).unwrap()));
    assert_eq!(calls[0], 32, "a handle for each granule");
    blocks.split_off(32).into_iter().for_each(|at| m.free(at, Some(0), None).unwrap());
    m.empty_cache(None).unwrap();
    blocks.into_iter().for_each(|at| m.free(at, Some(0), None).unwrap());
    let given = time(&fake, || m.empty_cache(None).unwrap());
    println!("1 GiB in 32 requests, given back: {given} µs");
    assert_eq!(fake.used(0), 0);
    fake.end();
}

/// The calls to the driver that `body` makes: create, map, access, unmap, release.
fn mapping_calls(fake: &Fake, body: impl FnOnce()) -> [u64; 5] {
    let names = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"];
    let before = names.map(|name| fake.calls(name));
    body();
    let after = names.map(|name| fake.calls(name));
    std::array::from_fn(|i| after[i] - before[i])
}

/// Every other block of a granule is free: a larger one is scattered over them.
#[test]
fn a_scattered_block_is_opened_once_and_unmapped_at_once() {
    for one_unmap in [false, true] {
        let (fake, d) = one(&[("one_unmap", if one_unmap { "1" } else { "0" })]);
        let m = d.memory();
        let all: Vec<u64> = (0..12).map(|_| m.alloc(PoolId::DEFAULT, 0, GRANULE).unwrap()).collect();
        let free = |at: &u64| m.free(*at, Some(0), None).unwrap();
        all.iter().step_by(2).for_each(free);
        let mut at = 0;
        let calls = mapping_calls(&fake, || at = m.alloc(PoolId::DEFAULT, 0, 5 * GRANULE).unwrap());
        assert_eq!(calls, [0, 5, 1, 0, 0]);
        for i in 0..5 {
            fake.write(0, at + i * GRANULE, &[7]).unwrap();
        }
        free(&at);
        all.iter().skip(1).step_by(2).for_each(free);
        let calls = mapping_calls(&fake, || m.empty_cache(None).unwrap());
        // With one call for each range, or, after one attempt, one for each granule.
        assert_eq!(calls, if one_unmap { [0, 0, 0, 18, 12] } else { [0, 0, 0, 2, 12] });
        assert_eq!(fake.used(0), 0);
        m.alloc(PoolId::DEFAULT, 0, 3 * GRANULE).unwrap();
        fake.end();
    }
}
