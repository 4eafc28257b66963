#!/bin/sh
# The main job, in one command: replays a recorded training program through the C API on the host device.
# Arguments are handed on to `millpond demo`.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh

need_rust
need gcc c_compiler_works # Rust links with it
need libc6-dev c_compiler_works
install_missing

exec cargo run --release --locked -p millpond-cli -- demo "$@"
