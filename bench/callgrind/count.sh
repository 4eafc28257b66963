#!/bin/sh
# Counts the instructions of a warm pair (millpond_pool_alloc and millpond_pool_free, through the C API; without a stream; by
# place; a node of a list) with callgrind and compares them with bench/instructions.txt: times are noisy, instructions are not.
# More than 3 % above it fails, and so does a node that needs more than 1.5 times what `new` does, and a pair that costs more
# after a history than before it.
#
#   bench/callgrind/count.sh [--bless] [ARCHIVE [BARE]]
#
# ARCHIVE: the static library, default build/rust/libmillpond.a. BARE: the same without the counters of the statistics
# (RUSTFLAGS="--cfg millpond_no_counters"); only with it is told what they cost.
#
# The pair through the entry points that PyTorch calls (libmillpond-torch.so's, linked with the archive) is counted beside
# it, and must not take more than twice as many.
#
# --bless writes the counts of today. Run it when a change is worth its instructions, and say so in the commit.
set -eu
cd "$(dirname "$0")/../.."
. scripts/setup.sh

limits=bench/instructions.txt
bless=
[ "${1:-}" != --bless ] || { bless=1; shift; }
archive=${1:-build/rust/libmillpond.a}
bare=${2:-}
[ -f "$archive" ] || fail "there is no $archive; make it first with: make build"
need valgrind have valgrind
need gcc c_compiler_works
need g++ cxx_compiler_works
install_missing

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -std=c11 -O2 -Iinclude bench/callgrind/pair.c "$archive" -o "$work/pair" -lpthread -ldl -lm
[ -z "$bare" ] || cc -std=c11 -O2 -Iinclude bench/callgrind/pair.c "$bare" -o "$work/bare" -lpthread -ldl -lm

# As CMake has compiled it, where the archive is that of a build.
torch=
for source in torch/*.cpp; do
  object=$(dirname "$archive")/../torch/CMakeFiles/millpond_torch_objects.dir/${source#torch/}.o
  if [ -f "$object" ]; then torch="$torch $object"; else torch="$torch $source"; fi
done
c++ -std=c++17 -O2 -Iinclude -Itorch -Itorch/python/millpond_torch bench/callgrind/torch_pair.cpp $torch "$archive" \
  -o "$work/torch_pair" -lpthread -ldl -lm

c++ -std=c++17 -O2 -Iinclude bench/callgrind/cpp.cpp "$archive" -o "$work/cpp" -lpthread -ldl -lm

# The pairs that warm a program; twice as many are counted.
pairs=1000

# collected <function,function,...> <program> [argument...]: instructions inside the functions for a pair, of those pairs
# that follow the first ones
collected() {
  (
    cd "$work"
    options=$(echo ",$1" | sed 's/,/ --toggle-collect=/g')
    shift
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --zero-before=counts_from_here $options "./$@" 2>&1
  ) | sed -n 's/.*Collected : *\([0-9]*\).*/\1/p' >"$work/count"
  read -r count <"$work/count" || fail "callgrind did not count"
  echo $(((count + pairs) / (2 * pairs)))
}

# whole <way> <count>: instructions of the whole program
whole() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$work/cpp" "$@" 2>&1 |
    sed -n 's/.*Collected : *\([0-9]*\).*/\1/p'
}

# per_way <way>: what one more of them takes, with the loop around it
per_way() {
  few=$(whole "$1" 20000)
  many=$(whole "$1" 60000)
  [ -n "$few" ] && [ -n "$many" ] || fail "callgrind did not count"
  echo $(((many - few + 20000) / 40000))
}

# per_pair <program> <mapping> <bytes> [how]
per_pair() {
  collected millpond_pool_alloc,millpond_pool_free,millpond_alloc,millpond_free "$1" "$2" "$3" $pairs ${4+"$4"}
}

compiler=$(rustc --version | cut -d' ' -f2)
{
  echo "# Instructions of a warm pair through the C API; written by bench/callgrind/count.sh --bless, x86-64 only."
  echo "# rustc $compiler"
  for device in mapping:1 segments:0; do
    for bytes in 512 4096 1048576 67108864; do
      echo "${device%:*} $bytes $(per_pair pair "${device#*:}" "$bytes")"
    done
  done
  # In a segment that is not the first.
  for bytes in 512 1048576; do
    echo "far $bytes $(per_pair pair 0 "$bytes" far)"
  done
  # With a history, which is two events; with one that goes to a file; with one that has 16 callers of each event; after
  # one has ended; and with histograms of latencies.
  for how in history file frames over latency; do
    for bytes in 512 1048576; do
      echo "$how $bytes $(per_pair pair 1 "$bytes" "$how")"
    done
  done
  for bytes in 512 1048576; do
    echo "far-history $bytes $(per_pair pair 0 "$bytes" far-history)"
  done
  # Small and large blocks in turn, also in a segment that is not the first.
  echo "turns 1048576 $(per_pair pair 1 1048576 turns)"
  echo "far-turns 1048576 $(per_pair pair 0 1048576 far-turns)"
  # Through PyTorch's entry points.
  for bytes in 512 1048576; do
    echo "torch $bytes $(collected millpond_torch_alloc,millpond_torch_free torch_pair "$bytes" $pairs)"
  done
  # Without a stream, while nothing is queued.
  for bytes in 512 4096; do
    echo "unordered $bytes $(per_pair pair 1 "$bytes" unordered)"
  done
  echo "place 4096 $(per_way place)"
  echo "node 24 $(per_way node)"
} >"$work/now"

# counted <row> <bytes>: what was counted now
counted() {
  sed -n "s/^$1 $2 \([0-9]*\)\$/\1/p" "$work/now"
}

status=0
for bytes in 512 1048576; do
  pair=$(counted mapping $bytes)
  echo "a pair with a history, $bytes bytes: $(counted history $bytes) instructions (goal: $((2 * pair)))"
  if [ "$(counted over $bytes)" -gt "$pair" ]; then
    echo "a pair after a history, $bytes bytes: $(counted over $bytes) instructions, and $pair before one"
    status=1
  fi
  [ -z "$bare" ] || echo "of that for statistics, $bytes bytes: $((pair - $(per_pair bare 1 "$bytes"))) of $pair"
done

if [ -n "$bless" ]; then
  cp "$work/now" "$limits"
  cat "$limits"
  exit $status
fi

# Another compiler may need a few instructions more or less; that is not ours to answer for.
allowed=3
grep -q "^# rustc $compiler\$" "$limits" || allowed=15
while read -r device bytes count; do
  case $device in \#*) continue ;; esac
  limit=$(sed -n "s/^$device $bytes \([0-9]*\)\$/\1/p" "$limits")
  [ -n "$limit" ] || fail "$limits has no line for $device $bytes"
  most=$((limit + limit * allowed / 100))
  if [ "$count" -gt "$most" ]; then
    echo "$device, $bytes bytes: $count instructions a pair, more than $limit and $allowed %"
    status=1
  else
    echo "$device, $bytes bytes: $count instructions a pair (limit $most)"
  fi
done <"$work/now"
for bytes in 512 1048576; do
  native=$(sed -n "s/^mapping $bytes //p" "$work/now")
  through=$(sed -n "s/^torch $bytes //p" "$work/now")
  if [ "$through" -gt $((2 * native)) ]; then
    echo "torch, $bytes bytes: $through instructions a pair, more than twice the native pair's $native"
    status=1
  fi
done
node=$(sed -n 's/^node 24 //p' "$work/now")
heap=$(per_way heap)
if [ $((node * 2)) -gt $((heap * 3)) ]; then
  echo "a node of a list: $node instructions, more than 1.5 times the $heap of new"
  status=1
else
  echo "a node of a list: $node instructions, $heap by new"
fi
exit $status
