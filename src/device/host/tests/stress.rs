//! Many threads, streams and devices at once, with every byte checked.

use super::*;
use crate::device::CopyKind::{DeviceToDevice, DeviceToHost, HostToDevice};

/// A small deterministic random generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

const LEN: u64 = 64 << 10;

/// One thread's life: takes blocks on both devices, sends a pattern on a journey over several
/// streams and both devices, ordered by events alone, and checks what comes back.
fn journey(devices: [&Arc<dyn Device>; 2], streams: &[[u64; 4]; 2], random: &mut Random) {
    let len = (1 + random.below(LEN / 512)) * 512;
    let from = random.below(2) as usize;
    let (near, far) = (devices[from], devices[1 - from]);
    let mut pick = |d: usize| streams[d][random.below(4) as usize];
    let (up, across, fill, down) = (pick(from), pick(from), pick(1 - from), pick(1 - from));
    let value = random.below(256) as u8;

    let (one, two) = (near.alloc(len).unwrap(), near.alloc(len).unwrap());
    let there = far.alloc(len).unwrap();
    let event = [
        near.streams().event_create().unwrap(),
        near.streams().event_create().unwrap(),
        far.streams().event_create().unwrap(),
    ];
    let mut data: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(value | 1)).collect();
    let want = data.clone();
    let back = vec![0u8; len as usize];

    near.copy_async(up, HostToDevice, one, addr_of(&data), len).unwrap();
    data.fill(!value);
    near.streams().event_record(up, event[0]).unwrap();
    near.streams().wait_event(across, event[0]).unwrap();
    near.copy_async(across, DeviceToDevice, two, one, len).unwrap();
    near.peers().unwrap().copy_async(across, &**far, there, two, len).unwrap();
    near.streams().event_record(across, event[1]).unwrap();
    far.streams().wait_event(fill, event[1]).unwrap();
    far.memset_async(fill, there, value, 256).unwrap();
    far.streams().event_record(fill, event[2]).unwrap();
    far.streams().wait_event(down, event[2]).unwrap();
    far.copy_async(down, DeviceToHost, addr_of(&back), there, len).unwrap();
    near.streams().event_destroy(event[0]).unwrap();
    near.streams().event_destroy(event[1]).unwrap();
    far.streams().event_destroy(event[2]).unwrap();
    far.streams().synchronize(down).unwrap();
    let back = bytes(addr_of(&back), len as usize);
    assert!(back[..256].iter().all(|b| *b == value) && back[256..] == want[256..]);
    near.free(one, len).unwrap();
    near.free(two, len).unwrap();
    far.free(there, len).unwrap();
}

#[test]
fn eight_threads_four_streams_two_devices() {
    let (host, a, b) = host();
    let seconds = std::env::var("MILLPOND_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let end = Instant::now() + Duration::from_secs(seconds);
    let four = |d: &Arc<dyn Device>| [0; 4].map(|_| d.streams().create().unwrap());
    let streams = [four(&a), four(&b)];
    let rounds: u64 = std::thread::scope(|scope| {
        let threads = [1u64, 2, 3, 4, 5, 6, 7, 8].map(|seed| {
            let (a, b, streams) = (&a, &b, &streams);
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut rounds = 0u64;
                while Instant::now() < end {
                    journey([a, b], streams, &mut random);
                    rounds += 1;
                    match random.below(64) {
                        0 => a.synchronize().unwrap(),
                        1 => b.streams().destroy(b.streams().create().unwrap()).unwrap(),
                        2 => assert!(host_memory(&**a)),
                        _ => {}
                    }
                }
                rounds
            })
        });
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(rounds > 100, "only {rounds} journeys");
    for (ordinal, device) in [&a, &b].into_iter().enumerate() {
        device.synchronize().unwrap();
        let info = device.memory_info().unwrap();
        assert_eq!(info.free, info.total);
        assert_eq!(host.stats(ordinal).unwrap().pinned_blocks, 0);
    }
    host.finalize().unwrap();
}

fn host_memory(device: &dyn Device) -> bool {
    let p = device.host_alloc(5000, PLAIN).unwrap();
    bytes(p, 5000).fill(1);
    device.host_free(p, 5000).is_ok()
}
