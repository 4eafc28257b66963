#!/bin/sh
# Measures Millpond beside other allocators and prints one table of goals and what was reached. Arguments are handed on:
# --quick (a minute), --only pair,growth,tail,threads,trace,capacity,memory, --trace FILE, --json FILE, --svg DIR.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh

mimalloc_is_there() { ldconfig -p | grep -q libmimalloc.so.2 || ls /usr/lib/*/libmimalloc.so.2; }

need_rust
need gcc c_compiler_works # Rust links with it
need libc6-dev c_compiler_works
need libmimalloc2.0 mimalloc_is_there
install_missing

exec cargo run --release --locked -q -p millpond-bench -- "$@"
