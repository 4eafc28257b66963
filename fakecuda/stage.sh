#!/bin/sh
# Builds the fake CUDA driver and puts it into a folder under the two names that programs ask for. Run your program with
# that folder in LD_LIBRARY_PATH.
#
#   fakecuda/stage.sh [--release] <folder>
set -eu
profile=debug
if [ "${1:-}" = --release ]; then
  profile=release
  shift
fi
[ $# -eq 1 ] || { echo "usage: fakecuda/stage.sh [--release] <folder>" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
if [ $profile = release ]; then
  # Without link-time optimisation: it takes long, and a driver for tests gains nothing from it.
  export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
  set -- --release
else
  set --
fi
cargo build --quiet --locked -p millpond-fakecuda "$@"
target=${CARGO_TARGET_DIR:-target}
cp "$target/$profile/libcuda.so" "$folder/libcuda.so.1.new"
mv "$folder/libcuda.so.1.new" "$folder/libcuda.so.1"
ln -sf libcuda.so.1 "$folder/libcuda.so"
