#!/bin/sh
# Runs Rust tests under AddressSanitizer, which finds what unsafe code must not do: the oracle unless told. The arguments are
# those of `cargo test`. Not part of `make test`: everything is built once more, into target/asan.
#
#   scripts/asan.sh [--test NAME | --lib] [-- FILTER...]
#
# All kinds of the oracle pass. Of other tests some fail under it that have no error: those that look at the process's heap,
# address space or locked memory, and those that count on nobody watching the device, since the sanitizer is told of blocks
# (docs/tools.md).
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
need gcc c_compiler_works
install_missing

# The sanitizer comes with the stable compiler; its option does not, but for this variable.
export RUSTC_BOOTSTRAP=1
target=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/asan" CARGO_INCREMENTAL=0
export CARGO_PROFILE_TEST_DEBUG=line-tables-only
# The standard library is built without it. The fake driver is a library of its own, and finds the sanitizer in the program:
# only that is exported, since what the program has of the driver itself would take the place of the library's own.
export RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=-Wl,--export-dynamic-symbol=__asan_*"
# What lives until the end of the process is no leak, and huge requests are refused, not an error.
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}"
[ $# -gt 0 ] || set -- --test oracle
exec cargo test --locked --target "$target" --no-fail-fast "$@"
