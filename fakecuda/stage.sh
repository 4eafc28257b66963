#!/bin/sh
# Builds the fake CUDA driver and puts it into a folder under the two names that programs ask for. Run your program with
# that folder in LD_LIBRARY_PATH.
#
#   fakecuda/stage.sh [--release | --as-tests] <folder>
#
# --as-tests: the one that `cargo test --workspace` has built, or builds it in the same way, with the other libraries
set -eu
kind=
case "${1:-}" in
  --release | --as-tests) kind=$1 && shift ;;
esac
[ $# -eq 1 ] || { echo "usage: fakecuda/stage.sh [--release | --as-tests] <folder>" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
profile=debug # the folder's name
case "$kind" in
  --release)
    # Without link-time optimisation: it takes long, and a driver for tests gains nothing from it.
    export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    profile=release
    set -- --release -p millpond-fakecuda
    ;;
  --as-tests) set -- --profile test --workspace --lib ;; # by itself its packages would have other features
  *) set -- -p millpond-fakecuda ;;
esac
cargo build --quiet --locked "$@"
target=${CARGO_TARGET_DIR:-target}
cp "$target/$profile/libcuda.so" "$folder/libcuda.so.1.new"
mv "$folder/libcuda.so.1.new" "$folder/libcuda.so.1"
ln -sf libcuda.so.1 "$folder/libcuda.so"
