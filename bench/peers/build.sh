#!/bin/sh
# Builds the adapter for the external harness: Millpond's static library and two shared objects beside it.
#
#   PEERS_DIR=/path/of/the/harness bench/peers/build.sh
#   /path/of/the/harness/run.sh --add millpond=$PWD/target/peers/millpond.so,host
#
# PEERS_DIR holds include/peer_adapter.h, the only file of the harness that is needed.
set -eu
cd "$(dirname "$0")/../.."
. scripts/setup.sh
: "${PEERS_DIR:?set PEERS_DIR to the harness (it has include/peer_adapter.h)}"
[ -f "$PEERS_DIR/include/peer_adapter.h" ] || fail "no include/peer_adapter.h in $PEERS_DIR"
need_rust
need g++ cxx_compiler_works
install_missing

target=${CARGO_TARGET_DIR:-target}
out=$target/peers
mkdir -p "$out"
cargo rustc --release --locked --lib -p millpond --crate-type staticlib
adapter() { # adapter <output> <flags...>: exports the peer_* functions and nothing else
  name=$1
  shift
  ${CXX:-g++} -std=c++17 -O2 -g -Wall -Wextra -fPIC -shared -fvisibility=hidden -Iinclude -I"$PEERS_DIR/include" \
    "$@" bench/peers/millpond_adapter.cpp "$target/release/libmillpond.a" -Wl,--exclude-libs,ALL -Wl,--gc-sections \
    -o "$out/$name" -lpthread -ldl -lm
}
adapter millpond.so
adapter millpond_fake.so -DMILLPOND_PEER_FAKE
echo "$out/millpond.so (options host, segments), $out/millpond_fake.so (option fake)"
