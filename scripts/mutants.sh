#!/bin/sh
# Breaks stream order and accounts on purpose, one small mutant at a time, and sees that a test fails for each: the lists
# in tests/mutants. Works on a copy under target/mutants. For developers; not part of `make test`.
#
#   scripts/mutants.sh [--look SUITE]... [WORD...]    only mutants whose name has all the words
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
install_missing
exec python3 tests/mutants/run.py "$@"
