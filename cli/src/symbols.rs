//! Names for addresses of code: which address of a module's own a place in its file has, and what binutils' `addr2line`
//! calls it.
//!
//! The kernel tells where parts of a file are mapped, by their offsets in it. What tools for programs take are the addresses
//! for which the file was linked; its program headers say what belongs to what. Whatever a file contains, reading it ends
//! with a result.

use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Program headers that are read of a file at most.
const MOST_HEADERS: u16 = 256;

/// A part of a module's file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    offset: u64,
    bytes: u64,
    address: u64,
}

/// The parts of a module's file that are loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Module(Vec<Load>);

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let found: [u8; N] = bytes.get(at..at.checked_add(N)?)?.try_into().ok()?;
    Some(found.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

impl Module {
    /// Reads the headers of a file of 64 bits. None for what cannot be read, or is no such file.
    pub(crate) fn read(path: &Path) -> Option<Module> {
        // Not what would wait, as a pipe.
        if !std::fs::metadata(path).ok()?.is_file() {
            return None;
        }
        let mut head = Vec::new();
        std::fs::File::open(path).ok()?.take(1 << 16).read_to_end(&mut head).ok()?;
        Module::parse(&head)
    }

    fn parse(head: &[u8]) -> Option<Module> {
        // The magic, 64 bits, the lowest byte first.
        if !head.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let table = usize::try_from(number::<8>(head, 32)?).ok()?;
        let size = number::<2>(head, 54)? as usize;
        let count = number::<2>(head, 56)?.min(MOST_HEADERS.into()) as usize;
        let mut loads = Vec::new();
        for n in 0..count {
            let at = table.checked_add(n * size)?;
            if number::<4>(head, at)? == 1 {
                let field = |offset| number::<8>(head, at.checked_add(offset)?);
                loads.push(Load { offset: field(8)?, address: field(16)?, bytes: field(32)? });
            }
        }
        Some(Module(loads))
    }

    /// The address for which the code at an offset was linked.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let load = self.0.iter().find(|l| l.offset <= offset && offset - l.offset < l.bytes)?;
        load.address.checked_add(offset - load.offset)
    }
}

/// The names of functions at addresses for which a module was linked, with file and line where that is known: of what was
/// inlined there the innermost first, and last the function that it was inlined into. An address without a name is left
/// out.
pub(crate) fn names(module: &str, addresses: &[u64]) -> Result<HashMap<u64, Vec<String>>> {
    let mut child = Command::new("addr2line")
        .args(["-a", "-i", "-C", "-f", "-s", "-e", module])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("addr2line cannot be run; it is part of binutils")?;
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        bail!("addr2line has no pipes");
    };
    let questions: String = addresses.iter().map(|a| format!("{a:#x}\n")).collect();
    let mut answers = Vec::new();
    std::thread::scope(|s| {
        // It may end early, without reading everything.
        s.spawn(move || drop(input.write_all(questions.as_bytes())));
        output.read_to_end(&mut answers)
    })
    .context("addr2line")?;
    child.wait().context("addr2line")?;
    let answers = String::from_utf8_lossy(&answers);
    Ok(named(&answers, addresses))
}

/// What `addr2line -a -i` answers: each address in a line of its own, then two lines for each function there.
fn named(answers: &str, addresses: &[u64]) -> HashMap<u64, Vec<String>> {
    let is_address = |l: &str| {
        l.strip_prefix("0x").is_some_and(|d| d.len() >= 8 && d.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let mut named = HashMap::new();
    let mut asked = addresses.iter();
    let mut lines = answers.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(&address) = asked.next().filter(|_| is_address(line)) else { break };
        let mut all: Vec<String> = Vec::new();
        while let Some(function) = lines.next_if(|l| !is_address(l)) {
            let place = lines.next().unwrap_or("?");
            match (function, place.starts_with('?')) {
                ("??", _) => {}
                (_, true) => all.push(function.to_owned()),
                // "file.c:7 (discriminator 2)": which of several pieces of code it is, is nothing to read.
                _ => all.push(format!("{function} at {}", place.split(" (").next().unwrap_or(place))),
            }
        }
        if !all.is_empty() {
            named.insert(address, all);
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_file_are_read_and_damage_does_no_harm() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let head = &bytes[..bytes.len().min(1 << 16)];
        let whole = Module::parse(head).unwrap();
        assert!(whole.0.len() >= 2);
        for l in &whole.0 {
            assert_eq!(whole.address(l.offset), Some(l.address));
            assert!(whole.address(l.offset + l.bytes - 1).is_some());
        }
        assert_eq!(whole.address(u64::MAX), None);
        assert!(Module::parse(b"#!/bin/sh\n").is_none());
        for n in 0..1000 {
            let mut bad = head[..n.max(6)].to_vec();
            if let Some(b) = bad.get_mut(n / 2) {
                *b = 0xff;
            }
            let _ = Module::parse(&bad);
        }
    }

    /// A function of this very program is found by its place in the file.
    #[test]
    fn a_function_has_a_name() {
        let code = headers_of_a_file_are_read_and_damage_does_no_harm as fn() as usize as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let modules: Vec<_> = maps.lines().filter_map(crate::history::module).collect();
        let m = modules.iter().find(|m| m.start <= code && code < m.end).unwrap();
        let address = Module::read(Path::new(&m.path)).unwrap().address(code - m.start + m.offset).unwrap();
        let names = names(&m.path, &[0, address]).unwrap();
        let last = names[&address].last().unwrap();
        assert!(last.contains("headers_of_a_file") && last.contains("symbols.rs:"), "{names:?}");
    }

    #[test]
    fn what_was_inlined_is_told_before_what_it_is_in() {
        let said = "0x0000000000001010\ninner(int)\na.h:3\nouter()\nb.c:9 (discriminator 2)\n0x0000000000001020\n??\n??:0\n\
                    0x0000000000001030\nplain\n??:?\n";
        let names = named(said, &[0x1010, 0x1020, 0x1030]);
        assert_eq!(names[&0x1010], ["inner(int) at a.h:3", "outer() at b.c:9"]);
        assert_eq!(names.get(&0x1020), None);
        assert_eq!(names[&0x1030], ["plain"]);
        assert!(named("", &[1]).is_empty() && named("nonsense\nx", &[1]).is_empty());
    }
}
