//! Two processes that share memory: this one exports, and a child that executes this same test program imports and
//! obeys lines on its standard input. The descriptors go along by inheritance, the bytes as text in a variable.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block is one call of the C API, or of the system"
)]

use millpond::capi::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::ptr::null_mut;

const INFO: &str = "MILLPOND_TEST_INFO";
const COUNT: &str = "MILLPOND_TEST_FDS";
const KIND: &str = "MILLPOND_TEST_TYPE";
/// Where the descriptors lie in the child.
const FIRST: c_int = 200;

pub fn message() -> String {
    unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_str().unwrap().to_owned()
}

#[track_caller]
pub fn ok(status: C_Status) {
    assert_eq!(status, C_Status::SUCCESS, "{}: {}", millpond_last_error_code(), message());
}

#[track_caller]
pub fn fails(status: C_Status, want: u32) {
    assert_ne!(status, C_Status::SUCCESS);
    assert_eq!(millpond_last_error_code(), want, "{}", message());
}

/// What is sent. The descriptors are closed when it is dropped.
pub struct Sent {
    pub info: Vec<u8>,
    pub fds: Vec<c_int>,
}

impl Drop for Sent {
    fn drop(&mut self) {
        for &fd in &self.fds {
            assert_eq!(unsafe { libc::close(fd) }, 0);
        }
    }
}

/// Bytes with a checksum that fits them again, so that what they say is looked at.
pub fn sealed(mut info: Vec<u8>) -> Vec<u8> {
    const CHECK: usize = 120;
    let check = crc32fast::hash(&[&info[..CHECK], &info[CHECK + 4..]].concat());
    info[CHECK..CHECK + 4].copy_from_slice(&check.to_ne_bytes());
    info
}

#[track_caller]
pub fn export(p: *mut c_void) -> Sent {
    let (mut bytes, mut count) = (0, 0);
    ok(unsafe { millpond_export_get_size(p, &mut bytes, &mut count) });
    let (mut info, mut fds) = (vec![0u8; bytes], vec![-1; count]);
    ok(unsafe { millpond_export(p, info.as_mut_ptr().cast(), bytes, fds.as_mut_ptr(), count) });
    Sent { info, fds }
}

pub fn import(device: *mut millpond_device, sent: &Sent) -> C_Status {
    let mut p = null_mut();
    import_to(device, &sent.info, &sent.fds, &mut p)
}

pub fn import_to(
    device: *mut millpond_device,
    info: &[u8],
    fds: &[c_int],
    out: &mut *mut c_void,
) -> C_Status {
    unsafe { millpond_import(device, info.as_ptr().cast(), info.len(), fds.as_ptr(), fds.len(), out) }
}

pub fn read(device: *mut millpond_device, p: *mut c_void, bytes: usize) -> Vec<u8> {
    let mut to = vec![0u8; bytes];
    ok(unsafe { millpond_copy(device, MILLPOND_COPY_D2H, to.as_mut_ptr().cast(), p, bytes) });
    to
}

pub fn write(device: *mut millpond_device, p: *mut c_void, from: &[u8]) {
    let at = from.as_ptr().cast_mut().cast();
    ok(unsafe { millpond_copy(device, MILLPOND_COPY_H2D, p, at, from.len()) });
}

/// Bytes that differ at every place and for every seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mix = |i: u64| (i ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 56;
    (0..bytes as u64).map(|i| mix(i) as u8).collect()
}

pub struct Importer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Importer {
    /// A child that runs the test of that name, and has imported the block, of `bytes` bytes, on device 0 of the type.
    /// The descriptors here are closed.
    #[track_caller]
    pub fn start(test: &str, kind: &str, sent: Sent, bytes: usize, vars: &[(&str, &str)]) -> Importer {
        let text: String = sent.info.iter().map(|b| format!("{b:02x}")).collect();
        let fds = sent.fds.clone();
        let mut c = crate::apart::program(test);
        c.env(INFO, text).env(COUNT, fds.len().to_string()).env(KIND, kind).envs(vars.iter().copied());
        c.stdin(Stdio::piped()).stdout(Stdio::piped());
        unsafe {
            c.pre_exec(move || {
                for (to, fd) in (FIRST..).zip(&fds) {
                    if libc::dup2(*fd, to) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let mut child = c.spawn().unwrap();
        drop(sent);
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut importer = Importer { child, to, from };
        assert_eq!(importer.ask(&format!("size {bytes}")), "good");
        importer
    }

    /// The answer to a command.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        writeln!(self.to.as_mut().unwrap(), "{command}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the importer ended at {command:?}");
            // The test harness of the child writes lines of its own.
            if let Some(at) = line.find("answer: ") {
                return line[at + 8..].trim().to_owned();
            }
        }
    }

    /// Ends by itself, and well.
    #[track_caller]
    pub fn end(mut self) {
        drop(self.to.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap(); // SIGKILL
        self.child.wait().unwrap();
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn is_importer() -> bool {
    std::env::var_os(INFO).is_some()
}

/// The child: `prepare` makes the library ready, then the lines are obeyed.
pub fn obey(prepare: impl FnOnce()) {
    unsafe { libc::alarm(120) };
    prepare();
    let text = std::env::var(INFO).unwrap();
    let digit = |i| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
    let info: Vec<u8> = (0..text.len()).step_by(2).map(digit).collect();
    let count: c_int = std::env::var(COUNT).unwrap().parse().unwrap();
    let fds: Vec<c_int> = (FIRST..FIRST + count).collect();
    let kind = CString::new(std::env::var(KIND).unwrap()).unwrap();
    let (mut device, mut p) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(kind.as_ptr(), 0, &mut device) });
    ok(import_to(device, &info, &fds, &mut p));
    fds.iter().for_each(|&fd| assert_eq!(unsafe { libc::close(fd) }, 0));
    let mut size = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (verb, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: u64 = number.parse().unwrap();
        let good = match verb {
            "size" => {
                size = number as usize;
                // Fills and ranges know the end of the block.
                let past = unsafe { millpond_memset(device, p.wrapping_byte_add(size), 1, 1) };
                past != C_Status::SUCCESS
            }
            "has" => read(device, p, size) == pattern(number, size),
            "write" => {
                write(device, p, &pattern(number, size));
                true
            }
            "fill" => {
                ok(unsafe { millpond_memset(device, p, number as u8, size) });
                true
            }
            "close" => {
                ok(unsafe { millpond_import_close(p) });
                fails(unsafe { millpond_import_close(p) }, MILLPOND_E_UNKNOWN_POINTER);
                true
            }
            other => panic!("{other}"),
        };
        println!("\nanswer: {}", if good { "good" } else { "bad" });
    }
}
