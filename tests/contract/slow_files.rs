//! Histories and recordings whose file takes nothing, as a pipe does whose reader stands still: no call waits for it
//! without end, and a reader that goes on has everything.

use crate::apart::*;
use crate::api::*;
use crate::observers::state;
use millpond::Code;
use millpond::runtime::{self, HistoryFile, HistoryOptions};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NONBLOCK: i32 = 0o4000;

/// A pipe with a reader that reads nothing yet.
fn pipe(name: &str) -> (PathBuf, File) {
    let path = std::env::temp_dir().join(format!("millpond-{}-{name}", std::process::id()));
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let reader = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&path).unwrap();
    (path, reader)
}

/// More than the pipe takes.
fn work(d: Device) {
    let pool = d.default_pool();
    for _ in 0..30_000 {
        let p = pool.alloc(512, NULL).unwrap();
        pool.free(p, NULL).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
}

fn start(d: Device, path: &Path, records: bool) {
    let options = HistoryOptions { file: Some(path.to_owned()), ..HistoryOptions::default() };
    match records {
        true => state(d).record_start(path).unwrap(),
        false => state(d).history_start(&options).unwrap(),
    }
}

/// What is left in the pipe; its writer has gone.
fn rest(reader: &mut File) -> Vec<u8> {
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap(); // an error while a writer has it open
    all
}

fn stops_in_time(records: bool) {
    let d = host(64 * MIB, true);
    let (path, mut reader) = pipe(if records { "stop-record" } else { "stop-history" });
    start(d, &path, records);
    let (took, ()) = timed(|| work(d));
    assert!(took < Duration::from_secs(20), "a request waits for the file, and not each one: {took:?}");
    let (took, done) = timed(|| if records { state(d).record_stop() } else { state(d).history_stop() });
    let e = done.unwrap_err();
    assert!(e.code() == Code::System && e.message().contains("given up: it lacks"), "{e}");
    assert!(took < Duration::from_secs(12), "{took:?}");
    let lacks: usize = e.message().split(' ').rev().nth(1).unwrap().parse().unwrap();
    let read = rest(&mut reader);
    if !records {
        let file = HistoryFile::parse(&read).unwrap();
        assert!(file.cut_off && file.events.len() + lacks >= 60_000, "{} and {lacks}", file.events.len());
    }
    // Another one can begin.
    start(d, &path, records);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_history_ends_though_its_reader_stands_still() {
    apart_for(60, || stops_in_time(false));
}

#[test]
fn a_recording_ends_though_its_reader_stands_still() {
    apart_for(60, || stops_in_time(true));
}

#[test]
fn the_library_ends_though_readers_stand_still() {
    apart_for(60, || {
        let d = host(64 * MIB, true);
        let (history, mut reads_history) = pipe("end-history");
        let (record, mut reads_record) = pipe("end-record");
        start(d, &history, false);
        start(d, &record, true);
        work(d);
        let (took, done) = timed(runtime::finalize);
        done.unwrap();
        assert!(took < Duration::from_secs(20), "{took:?}");
        rest(&mut reads_history);
        rest(&mut reads_record);
        std::fs::remove_file(history).unwrap();
        std::fs::remove_file(record).unwrap();
    });
}

/// One that is only slow has everything.
#[test]
fn a_reader_that_goes_on_has_everything() {
    apart_for(60, || {
        let d = host(64 * MIB, true);
        let (path, mut reader) = pipe("slow");
        start(d, &path, false);
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            let mut some = vec![0; 1 << 14];
            std::thread::sleep(Duration::from_secs(2));
            loop {
                match reader.read(&mut some) {
                    Ok(0) => return all,
                    Ok(n) => all.extend(&some[..n]),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        work(d);
        assert_eq!(state(d).history_stop().unwrap(), 0);
        let file = HistoryFile::parse(&reading.join().unwrap()).unwrap();
        let blocks = file.events.iter().filter(|e| !e.event.is_segment()).count();
        assert_eq!((file.cut_off, file.dropped, blocks), (false, 0, 60_000));
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn a_history_of_more_events_than_fit_is_told() {
    apart(|| {
        let d = host(64 * MIB, true);
        for events in [1 << 62, usize::MAX] {
            let options = HistoryOptions { events, ..HistoryOptions::default() };
            assert_eq!(state(d).history_start(&options).unwrap_err().code(), Code::OutOfMemory);
        }
    });
}
