#!/bin/sh
# Builds bench/cpp/host_calls.cpp against the static library, and runs it: two tables in Markdown.
#
#   bench/cpp/run.sh [ARCHIVE]     ARCHIVE: default build/libmillpond.a
set -eu
cd "$(dirname "$0")/../.."
. scripts/setup.sh

archive=${1:-build/libmillpond.a}
[ -f "$archive" ] || fail "there is no $archive; make it first with: make build"
need g++ cxx_compiler_works
install_missing

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
c++ -std=c++17 -O2 -Wall -Wextra -Iinclude bench/cpp/host_calls.cpp "$archive" -o "$work/host_calls" -lpthread -ldl -lm
"$work/host_calls"
