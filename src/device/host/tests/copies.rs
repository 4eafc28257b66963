//! Copies and fills: contents, asynchrony, staging, and what is refused.

use super::super::staging::{STAGING_LIMIT, Staging};
use super::*;
use crate::device::CopyKind::{DeviceToDevice, DeviceToHost, HostToDevice};

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) ^ (i >> 8) ^ seed) as u8).collect()
}

#[test]
fn blocking_copies_move_the_bytes_each_way() {
    let (_host, a, b) = host();
    let (data, mut back) = (pattern(1 << 20, 1), vec![0; 1 << 20]);
    let (one, two) = (a.alloc(MIB).unwrap(), a.alloc(MIB).unwrap());
    let other = b.alloc(MIB).unwrap();
    a.copy(HostToDevice, one, addr_of(&data), MIB).unwrap();
    a.copy(DeviceToDevice, two, one, MIB).unwrap();
    a.peers().unwrap().copy(&*b, other, two, MIB).unwrap();
    b.memset(other + 100, 0x5a, 50).unwrap();
    b.copy(DeviceToHost, addr_of(&back), other, MIB).unwrap();
    let mut want = data;
    want[100..150].fill(0x5a);
    assert!(std::mem::take(&mut back) == want);
}

#[test]
fn overlapping_copies_move_as_if_through_a_buffer() {
    let (_host, a, _) = host();
    let s = a.streams().create().unwrap();
    let block = a.alloc(MIB).unwrap();
    let data = pattern(1 << 20, 2);
    for (dst, src) in [(0, 1000), (1000, 0)] {
        for stream in [0, s] {
            a.copy(HostToDevice, block, addr_of(&data), MIB).unwrap();
            a.copy_async(stream, DeviceToDevice, block + dst, block + src, MIB - 1000).unwrap();
            a.streams().synchronize(stream).unwrap();
            let (dst, src, len) = (dst as usize, src as usize, (1 << 20) - 1000);
            assert!(bytes(block, 1 << 20)[dst..dst + len] == data[src..src + len]);
        }
    }
}

#[test]
fn async_copies_return_while_the_stream_is_held_up() {
    let (_host, a, b) = host();
    let s = a.streams().create().unwrap();
    let (one, two) = (a.alloc(MIB).unwrap(), b.alloc(MIB).unwrap());
    let (mut source, sink) = (pattern(1 << 20, 3), vec![1u8; 1 << 20]);
    let want = source.clone();
    let plug = Plug::new(&*a, s);
    a.memset_async(s, one, 8, MIB).unwrap();
    a.copy_async(s, HostToDevice, one + 10, addr_of(&source), MIB - 10).unwrap();
    source.fill(0xee); // pageable: read by now
    a.peers().unwrap().copy_async(s, &*b, two, one, MIB).unwrap();
    a.copy_async(s, DeviceToHost, addr_of(&sink), two, MIB).unwrap();
    assert!(!a.streams().query(s).unwrap());
    std::thread::sleep(Duration::from_millis(20));
    assert!(sink.iter().all(|b| *b == 1), "written before the stream got there");
    assert!(bytes(one, 1 << 20).iter().all(|b| *b == 0));
    plug.open();
    a.streams().synchronize(s).unwrap();
    assert!(a.streams().query(s).unwrap());
    assert_eq!(bytes(addr_of(&sink), 10), [8; 10]);
    assert!(bytes(addr_of(&sink), 1 << 20)[10..] == want[..(1 << 20) - 10]);
}

#[test]
fn pinned_and_unified_sources_are_read_when_the_stream_gets_there() {
    let (_host, a, b) = host();
    let s = a.streams().create().unwrap();
    let target = a.alloc(MIB).unwrap();
    // Pinned memory asked from one device is pinned for all of the type.
    for source in [b.host_alloc(4096, PLAIN).unwrap(), b.unified().unwrap().alloc(4096).unwrap()] {
        bytes(source, 4096).fill(1);
        let plug = Plug::new(&*a, s);
        a.copy_async(s, HostToDevice, target, source + 96, 4000).unwrap();
        bytes(source, 4096).fill(2);
        plug.open();
        a.streams().synchronize(s).unwrap();
        assert!(bytes(target, 4000).iter().all(|b| *b == 2));
    }
}

#[test]
fn a_pageable_copy_above_the_staging_limit_waits_for_its_stream() {
    let (_host, a, _) = host();
    let s = a.streams().create().unwrap();
    let target = a.alloc(STAGING_LIMIT + MIB).unwrap();
    let data = pattern((1 << 20) + 1, 4).repeat(66)[..(STAGING_LIMIT + MIB) as usize].to_vec();
    let plug = Plug::new(&*a, s);
    let copier = {
        let (a, data) = (Arc::clone(&a), data.clone());
        std::thread::spawn(move || {
            a.copy_async(s, HostToDevice, target, addr_of(&data), STAGING_LIMIT + MIB).unwrap();
            drop(data); // read when the call returned
        })
    };
    std::thread::sleep(Duration::from_millis(50));
    assert!(!copier.is_finished());
    plug.open();
    copier.join().unwrap();
    assert!(bytes(target, data.len()) == data);
}

#[test]
fn staging_is_bounded_and_given_back() {
    let staging = Staging::new();
    let data = pattern(1 << 20, 5);
    // SAFETY: the source is a live vector of this length.
    let stage = |force| unsafe { staging.stage(addr_of(&data), MIB, force) };
    let mut held: Vec<_> = std::iter::from_fn(|| stage(false)).collect();
    assert_eq!(held.len() as u64, STAGING_LIMIT / MIB);
    assert_eq!(staging.used(), STAGING_LIMIT);
    assert!(stage(true).is_some(), "a callback may pass the limit");
    held.pop();
    held.push(stage(false).unwrap());
    assert!(stage(false).is_none());
    drop(held);
    assert_eq!(staging.used(), 0);
    // No such memory: not an abort, and the limit is given back. The source is not read.
    // SAFETY: the buffer cannot be made, and is made before the source is read.
    assert!(unsafe { staging.stage(addr_of(&data), 1 << 62, true) }.is_none());
    assert_eq!(staging.used(), 0);
}

#[test]
fn blocking_copies_wait_for_all_work_of_the_device() {
    let (_host, a, b) = host();
    let (s, gone, t) =
        (a.streams().create().unwrap(), a.streams().create().unwrap(), b.streams().create().unwrap());
    let (block, other) = (a.alloc(4096).unwrap(), b.alloc(4096).unwrap());
    let notes = Notes::default();
    notes.add(&*a, s, 1, 30);
    notes.add(&*a, gone, 1, 40);
    a.streams().destroy(gone).unwrap();
    a.memset(block, 3, 4096).unwrap();
    assert_eq!(notes.read(), [1, 1], "also that of a destroyed stream");
    notes.add(&*a, s, 2, 30);
    a.copy(DeviceToDevice, block, block + 2048, 2048).unwrap();
    assert_eq!(notes.read(), [1, 1, 2]);
    notes.add(&*b, t, 3, 30);
    a.peers().unwrap().copy(&*b, other, block, 4096).unwrap();
    assert_eq!(notes.read(), [1, 1, 2, 3], "a peer copy waits for both devices");
    assert_eq!(bytes(other, 1), [3]);
}

#[test]
fn bad_copies_are_refused() {
    let (_host, a, b) = host();
    let s = a.streams().create().unwrap();
    let block = a.alloc(4096).unwrap();
    let bad = Code::InvalidArgument;
    for stream in [0, s] {
        refused(a.copy_async(stream, DeviceToDevice, 0, block, 1), bad);
        refused(a.copy_async(stream, HostToDevice, block, 0, 1), bad);
        refused(a.copy_async(stream, DeviceToHost, block, u64::MAX - 5, 10), Code::OutOfRange);
        refused(a.copy_async(stream, HostToDevice, block, block, u64::MAX), Code::OutOfRange);
        refused(a.memset_async(stream, 0, 0, 1), bad);
        refused(a.peers().unwrap().copy_async(stream, &*b, 0, block, 1), bad);
        // Nothing to do: nothing is looked at but the stream.
        a.copy_async(stream, DeviceToDevice, 0, 0, 0).unwrap();
        a.memset_async(stream, 0, 0, 0).unwrap();
    }
    refused(a.copy(DeviceToDevice, block, 0, 1), bad);
    refused(a.memset(0, 0, 1), bad);
    let unknown = Code::UnknownStream;
    let foreign = b.streams().create().unwrap();
    for stream in [foreign, 1, u64::MAX] {
        refused(a.copy_async(stream, DeviceToDevice, block, block, 1), unknown);
        refused(a.copy_async(stream, HostToDevice, block, block, 1), unknown);
        refused(a.copy_async(stream, DeviceToDevice, block, block, 0), unknown);
        refused(a.memset_async(stream, block, 0, 1), unknown);
        refused(a.peers().unwrap().copy_async(stream, &*b, block, block, 1), unknown);
    }
    // The type of a peer is checked by whoever knows it by name; its number is ours to check.
    let more = HostType::new("more", HostOptions { device_count: 3, capacity: GRANULE, mapping: false });
    more.initialize().unwrap();
    let other = more.open(2).unwrap();
    refused(a.peers().unwrap().copy(&*other, block, block, 1), Code::InvalidArgument);
    refused(a.peers().unwrap().copy_async(0, &*other, block, block, 1), Code::InvalidArgument);
}
