//! The bytes of an export that another process needs beside the file descriptors: a header, the pieces, fabric handles.
//!
//! Numbers have the processor's byte order, so a processor with the other order sees an unknown version. The bytes may
//! come from anybody: every field is checked, and each export has exactly one encoding.
//!
//! | at | bytes | |
//! | --- | --- | --- |
//! | 0 | 8 | `MAGIC` |
//! | 8 | 4 | version of the layout |
//! | 12 | 4 | kind ([`SharedKind`]) |
//! | 16 | 8 | bytes of the block |
//! | 24 | 8 | bytes from the start of the memory to the block |
//! | 32 | 16 | identity of the device |
//! | 48 | 64 | handle of the driver |
//! | 112 | 4 | file descriptors, the ticket included |
//! | 116 | 4 | pieces |
//! | 120 | 4 | CRC-32 (IEEE) of all other bytes |
//! | 124 | 4 | zeros |
//! | 128 | 24 each | pieces: descriptor or fabric handle (4), zeros (4), offset (8), bytes (8) |
//! | then | 64 each | with fabric handles: as many as pieces |

use crate::base::error::{Code, Error, Result};
use crate::device::sharing::{Piece, Shared, SharedKind};

const MAGIC: u64 = u64::from_ne_bytes(*b"millpond");
const VERSION: u32 = 2;
/// Where the checksum stands.
const CHECK: usize = 120;
const HEAD: usize = 128;
const PIECE: usize = 24;
const HANDLE: usize = 64;
/// More than any device has granules.
const MOST_PIECES: u32 = 1 << 24;

/// A block of another process, as the bytes describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub bytes: u64,
    pub skip: u64,
    /// The ticket included.
    pub fd_count: u32,
    /// Without its descriptors.
    pub memory: Shared<()>,
}

impl Info {
    /// How many bytes these pieces need, with a fabric handle each or without.
    pub(crate) fn length(pieces: usize, fabric: bool) -> usize {
        HEAD + each(fabric) * pieces
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let m = &self.memory;
        let mut to = Vec::with_capacity(Self::length(m.pieces.len(), !m.fabric.is_empty()));
        to.extend(MAGIC.to_ne_bytes());
        to.extend(VERSION.to_ne_bytes());
        to.extend((m.kind as u32).to_ne_bytes());
        to.extend(self.bytes.to_ne_bytes());
        to.extend(self.skip.to_ne_bytes());
        to.extend(m.identity);
        to.extend(m.handle);
        to.extend(self.fd_count.to_ne_bytes());
        to.extend((m.pieces.len() as u32).to_ne_bytes());
        to.extend([0; HEAD - CHECK]);
        for p in &m.pieces {
            to.extend(p.fd.to_ne_bytes());
            to.extend(0u32.to_ne_bytes());
            to.extend(p.offset.to_ne_bytes());
            to.extend(p.bytes.to_ne_bytes());
        }
        m.fabric.iter().for_each(|handle| to.extend(handle));
        let check = checksum(&to).to_ne_bytes();
        to[CHECK..][..check.len()].copy_from_slice(&check);
        to
    }

    /// Reads what [`encode`](Self::encode) wrote; everything else is `InvalidArgument`.
    pub(crate) fn decode(from: &[u8]) -> Result<Info> {
        decode(from).map_err(|what| {
            Error::formatted(
                Code::InvalidArgument,
                format_args!("the info is not one of millpond_export: {what}"),
            )
        })
    }
}

/// [B] of a piece and its fabric handle, if it has one.
fn each(fabric: bool) -> usize {
    if fabric { PIECE + HANDLE } else { PIECE }
}

/// The checksum of all bytes but its own. It finds accidental changes, not lies: whoever has the descriptors can access
/// all of their memory anyway.
fn checksum(info: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&info[..CHECK]);
    sum.update(&info[CHECK + size_of::<u32>()..]);
    sum.finalize()
}

fn take<const N: usize>(from: &mut &[u8]) -> std::result::Result<[u8; N], &'static str> {
    let (head, rest) = from.split_first_chunk::<N>().ok_or("it is cut off")?;
    *from = rest;
    Ok(*head)
}

fn decode(all: &[u8]) -> std::result::Result<Info, &'static str> {
    let mut from = all;
    let f = &mut from;
    if u64::from_ne_bytes(take(f)?) != MAGIC {
        return Err("it starts with other bytes");
    }
    if u32::from_ne_bytes(take(f)?) != VERSION {
        return Err("another version of the library made it");
    }
    let kind = SharedKind::of(u32::from_ne_bytes(take(f)?)).ok_or("of an unknown kind")?;
    let bytes = u64::from_ne_bytes(take(f)?);
    let skip = u64::from_ne_bytes(take(f)?);
    let identity = take(f)?;
    let handle = take(f)?;
    let fd_count = u32::from_ne_bytes(take(f)?);
    let count = u32::from_ne_bytes(take(f)?);
    if u32::from_ne_bytes(take(f)?) != checksum(all) {
        return Err("its checksum is wrong: some of its bytes have changed");
    }
    if u32::from_ne_bytes(take(f)?) != 0 {
        return Err("a field that is not used is not 0");
    }
    let by_fabric = kind == SharedKind::CudaFabric;
    if count > MOST_PIECES || f.len() != each(by_fabric) * count as usize {
        return Err("its length does not fit the number of pieces");
    }
    let mut pieces = Vec::new();
    let mut sum = 0u64;
    for _ in 0..count {
        let fd = u32::from_ne_bytes(take(f)?);
        if u32::from_ne_bytes(take(f)?) != 0 {
            return Err("a field that is not used is not 0");
        }
        let p = Piece { fd, offset: u64::from_ne_bytes(take(f)?), bytes: u64::from_ne_bytes(take(f)?) };
        sum = sum.checked_add(p.bytes).ok_or("its pieces are too large")?;
        pieces.push(p);
    }
    let mut fabric = Vec::new();
    for _ in 0..if by_fabric { count } else { 0 } {
        fabric.push(take(f)?);
    }
    let end = skip.checked_add(bytes).filter(|&e| e <= i64::MAX as u64).ok_or("its block is too large")?;
    if bytes == 0 || fd_count == 0 {
        return Err("a number is 0");
    }
    if (kind == SharedKind::CudaSegment) != pieces.is_empty() {
        return Err("pieces are missing, or too many");
    }
    if by_fabric && fd_count != 1 {
        return Err("fabric handles need no descriptors but the ticket");
    }
    if !pieces.is_empty() && end > sum {
        return Err("its block passes the end of its pieces");
    }
    let memory = Shared { kind, identity, pieces, handle, fabric, fds: Vec::new() };
    Ok(Info { bytes, skip, fd_count, memory })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn sample() -> Info {
        let pieces = vec![
            Piece { fd: 0, offset: 0, bytes: 2 << 20 },
            Piece { fd: 0, offset: 8 << 20, bytes: 2 << 20 },
        ];
        let memory = Shared {
            kind: SharedKind::HostFile,
            identity: [3; 16],
            pieces,
            handle: [5; 64],
            fabric: Vec::new(),
            fds: Vec::new(),
        };
        Info { bytes: 3 << 20, skip: 4096, fd_count: 2, memory }
    }

    fn by_fabric() -> Info {
        let mut i = sample();
        i.memory.kind = SharedKind::CudaFabric;
        i.memory.fabric = vec![[7; 64], [8; 64]];
        i.fd_count = 1;
        i
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), Info::length(2, false));
        assert_eq!(Info::decode(&bytes).unwrap(), sample());
        let bytes = by_fabric().encode();
        assert_eq!(bytes.len(), Info::length(2, true));
        assert_eq!(Info::decode(&bytes).unwrap(), by_fabric());
    }

    #[test]
    fn every_length_and_every_changed_byte_is_refused() {
        for good in [sample().encode(), by_fabric().encode()] {
            for n in 0..good.len() {
                assert!(Info::decode(&good[..n]).is_err(), "{n} bytes");
            }
            assert!(Info::decode(&[&good[..], &[0]].concat()).is_err());
            for at in 0..good.len() {
                for value in [0, 1, 4, 0x7F, 0xFF] {
                    let mut bad = good.clone();
                    bad[at] = value;
                    if bad == good {
                        continue;
                    }
                    assert!(Info::decode(&bad).is_err(), "byte {at}");
                    // With a checksum that is right again, every field is still looked at.
                    let check = checksum(&bad).to_ne_bytes();
                    bad[CHECK..][..check.len()].copy_from_slice(&check);
                    if let Ok(info) = Info::decode(&bad) {
                        assert_eq!(info.encode(), bad, "byte {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_that_pass_the_end_are_refused() {
        for change in [
            (|i: &mut Info| i.bytes = 0) as fn(&mut Info),
            |i| i.bytes = 4 << 20,
            |i| i.bytes = u64::MAX,
            |i| i.skip = u64::MAX - 1,
            |i| i.fd_count = 0,
            |i| i.memory.pieces[1].bytes = u64::MAX,
            |i| i.memory.pieces.clear(),
            |i| i.memory.kind = SharedKind::CudaSegment,
            |i| i.memory.kind = SharedKind::CudaFabric,
            |i| *i = Info { fd_count: 2, ..by_fabric() },
            |i| {
                *i = by_fabric();
                i.memory.fabric.pop();
            },
        ] {
            let mut i = sample();
            change(&mut i);
            assert_eq!(Info::decode(&i.encode()).unwrap_err().code(), Code::InvalidArgument, "{i:?}");
        }
    }
}
