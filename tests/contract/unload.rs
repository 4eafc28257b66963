//! A shared library that links Millpond's archive is closed by the program that has loaded it, at any moment and
//! without a word to Millpond: the threads of its streams, which may be about to start, to work or to end, do not run
//! into code that is gone. Each try is a process of its own, forked by a small program in C.

use crate::apart::*;
use crate::compilers::{self, Scratch};
use std::process::Command;

/// The shared library: what a framework would do inside.
const LIBRARY: &str = r#"
#include <millpond/millpond.h>
#include <stddef.h>
static millpond_device *device;
enum { COUNT = STREAMS };
static C_Stream streams[COUNT];
static void nothing(void *data, C_Status status) { (void)data, (void)status; }
int begin(int work) {
  void *block;
  if (millpond_device_get("host", 0, &device) != C_SUCCESS) return 1;
  for (int i = 0; i < COUNT; ++i) {
    if (millpond_stream_create(device, &streams[i]) != C_SUCCESS) return 2;
    if (!work) continue;
    if (millpond_alloc(device, 1 << 20, &block) != C_SUCCESS) return 3;
    if (millpond_memset_async(device, streams[i], block, 1, 1 << 20) != C_SUCCESS) return 4;
    if (millpond_stream_add_callback(device, streams[i], nothing, NULL) != C_SUCCESS) return 5;
  }
  return 0;
}
int end_streams(void) {
  for (int i = 0; i < COUNT; ++i)
    if (millpond_stream_destroy(device, streams[i]) != C_SUCCESS) return 6;
  return 0;
}
"#;

/// The program: `unload LIBRARY WHAT TRIES`, where WHAT is 0: only streams; 1: with work; 2: and their end. It
/// tells how many tries went wrong.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static int (*begin)(int), (*end_streams)(void);
static int what, failed;
/* On a thread that is gone when the library is closed: a thread that has used it may hold it. */
static void *use(void *nothing) {
  failed = begin(what >= 1);
  if (failed == 0 && what >= 2) failed = end_streams();
  return nothing;
}
static int once(const char *path) {
  pthread_t user;
  alarm(20);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 10;
  begin = (int (*)(int))dlsym(library, "begin");
  end_streams = (int (*)(void))dlsym(library, "end_streams");
  if (pthread_create(&user, NULL, use, NULL) != 0 || pthread_join(user, NULL) != 0) return 12;
  if (failed != 0) return failed;
  if (dlclose(library) != 0) return 11;
  usleep(3000); /* whatever still runs, runs now */
  return 0;
}
int main(int argc, char **argv) {
  int tries = argc > 3 ? atoi(argv[3]) : 1, wrong = 0;
  for (int i = 0; i < tries; ++i) {
    pid_t child = fork();
    what = atoi(argv[2]);
    if (child == 0) _exit(once(argv[1]));
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 100;
    if (status == 0) continue;
    if (++wrong <= 3) {
      if (WIFSIGNALED(status)) printf("try %d: signal %d\n", i, WTERMSIG(status));
      else printf("try %d: status %d\n", i, WEXITSTATUS(status));
    }
  }
  printf("%d of %d tries went wrong\n", wrong, tries);
  return wrong != 0;
}
"#;

fn tries(streams: u32, what: u32, count: u32) {
    let scratch = Scratch::new(&format!("unload-{streams}-{what}"));
    let (library, archive) = (scratch.path("libuser.so"), compilers::archive());
    let out = library.to_str().unwrap();
    let hidden = "-Wl,--exclude-libs,libmillpond.a,--gc-sections"; // as the package's own link options are
    let many = format!("-DSTREAMS={streams}");
    let flags = [
        "-shared",
        "-fPIC",
        &many,
        archive.to_str().unwrap(),
        "-pthread",
        "-ldl",
        "-lm",
        "-lgcc_s",
        hidden,
        "-o",
        out,
    ];
    compilers::compile_ok("-std=c11", &scratch.write("user.c", LIBRARY), &flags);
    let program = scratch.path("unload");
    let source = scratch.write("unload.c", PROGRAM);
    // A function from `dlsym` is an object pointer for -Wpedantic.
    let flags = ["-Wno-pedantic", "-pthread", "-ldl", "-o", program.to_str().unwrap()];
    compilers::compile_ok("-std=c11", &source, &flags);
    let done = Command::new(&program)
        .arg(&library)
        .args([what.to_string(), count.to_string()])
        .env("MILLPOND_HOST_CAPACITY", "64M")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
}

/// A stream's thread is just starting.
#[test]
fn a_library_that_is_closed_when_a_stream_starts() {
    apart_for(300, || tries(1, 0, 300));
}

/// Some of several are.
#[test]
fn a_library_that_is_closed_when_its_streams_start() {
    apart_for(300, || tries(2, 0, 600));
}

/// They may be at work.
#[test]
fn a_library_that_is_closed_when_its_streams_are_at_work() {
    apart_for(300, || tries(1, 1, 400));
}

/// They are about to end.
#[test]
fn a_library_that_is_closed_when_its_streams_end() {
    apart_for(300, || tries(1, 2, 300));
}
