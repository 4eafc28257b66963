//! Reads files of traces: the text format (`trace.rs`), as it is or in zstd's, and the records of other programs (`foreign.rs`).

use crate::foreign;
use crate::trace::Trace;
use anyhow::{Context, Result, anyhow, ensure};
use std::io::Read;
use std::path::Path;

/// The first bytes of a zstd frame; the file's name does not matter.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Traces are text of numbers, which zstd makes 5 to 60 times smaller. What claims to be much denser than that is refused
/// before it takes all memory; [B] what is less than that is taken in any case.
const MOST_DENSE: u64 = 1000;
const SMALL: u64 = 64 << 20;

/// The text in zstd's data, which is no longer than `most` [B].
fn unpacked(bytes: &[u8], most: u64) -> Result<String> {
    let mut text = String::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(bytes)
        .map_err(|e| anyhow!("the zstd data cannot be read: at byte 0: {e}"))?;
    let done = decoder.by_ref().take(most.saturating_add(1)).read_to_string(&mut text);
    // Of the block that is damaged.
    let at = decoder.decoder.bytes_read_from_source();
    done.map_err(|e| anyhow!("the zstd data is damaged or cut off: at byte {at}: {e}"))?;
    ensure!(text.len() as u64 <= most, "the zstd data has more than {most} bytes of text: that is no trace");
    Ok(text)
}

impl Trace {
    /// Reads a trace file, compressed or not.
    pub(crate) fn read(path: &Path) -> Result<Trace> {
        let bytes = std::fs::read(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                anyhow!(
                    "{}: no such file. Give the path of a .trace, .trace.zst, .pickle or .csv file",
                    path.display()
                )
            }
            _ => anyhow!("{}: cannot be read: {e}", path.display()),
        })?;
        let stem = path.file_name().and_then(|n| n.to_str()).unwrap_or("trace");
        let stem = stem.split('.').next().unwrap_or(stem);
        Trace::from_bytes(stem, &bytes).with_context(|| path.display().to_string())
    }

    /// Reads a trace from the bytes of a file, compressed or not. `name` serves where the header has none.
    pub(crate) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Trace> {
        if foreign::is_pickle(bytes) {
            return foreign::from_pickle(name, bytes);
        }
        if !bytes.starts_with(&ZSTD_MAGIC) {
            let text = std::str::from_utf8(bytes)
                .context("this is neither a text trace nor a zstd file, nor a pickle")?;
            return if foreign::is_csv(text) {
                foreign::from_csv(name, text)
            } else {
                Trace::parse(name, text)
            };
        }
        let most = (bytes.len() as u64).saturating_mul(MOST_DENSE).max(SMALL);
        Trace::parse(name, &unpacked(bytes, most)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_zstd_and_sees_damage() {
        let bytes = include_bytes!("../demo.trace.zst");
        let t = Trace::from_bytes("x", bytes).unwrap();
        assert_eq!(t.name, "fasterrcnn_train");
        assert_eq!((t.events.len(), t.allocs, t.left_live), (192_460, 96_230, 0));
        assert_eq!((t.peak_live_bytes, t.max_live_blocks), (1_981_984_222, 1006));
        assert_eq!(t.step_starts.len(), 45);
        let e = Trace::from_bytes("x", &bytes[..bytes.len() / 2]).unwrap_err();
        let text = format!("{e:#}");
        let at = text.split_once("zstd data is damaged or cut off: at byte ").unwrap().1;
        let at: usize = at.split(':').next().unwrap().parse().unwrap();
        assert!(at < bytes.len() / 2 && at > bytes.len() / 4, "{text}");
        // 128 KiB of one byte in each 4: a file of a megabyte would take all memory.
        let mut bomb = b"\x28\xb5\x2f\xfd\x00\x58".to_vec();
        (0..60).for_each(|_| bomb.extend(b"\x02\x00\x10#"));
        let e = unpacked(&bomb, 1 << 20).unwrap_err();
        assert!(format!("{e:#}").contains("no trace"), "{e:#}");
        let e = Trace::from_bytes("x", &[0xff, 0xfe, 0, 1]).unwrap_err();
        assert!(format!("{e:#}").contains("neither"), "{e:#}");
    }
}
