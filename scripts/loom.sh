#!/bin/sh
# Runs the models in tests/loom.rs: every interleaving of a few threads, with up to LOOM_MAX_PREEMPTIONS (3)
# preemptions, over the library's own code. Arguments go to the test program, such as the name of a model.
#
#   scripts/loom.sh [MODEL] [--nocapture]
#
# After a failure, LOOM_LOG=trace LOOM_LOCATION=1 scripts/loom.sh MODEL --nocapture shows what led to it.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
install_missing

# Apart from the ordinary build, since the flag rebuilds everything; link-time optimisation would cost a minute.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}"
# What loom writes its traces with is not optimised: that takes long, and no model spends time there.
plain=
for package in regex-automata regex-syntax tracing-subscriber; do
  plain="$plain --config profile.release.package.$package.opt-level=0"
done
# loom itself, in which the models spend their time, is compiled as one unit, so that its functions can be inlined.
plain="$plain --config profile.release.package.loom.codegen-units=1"
exec cargo test $plain --locked --release -p millpond --test loom -- "$@"
