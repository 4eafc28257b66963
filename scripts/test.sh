#!/bin/sh
# Runs the tests: formatting, lints, Rust tests, C and C++ tests, packaging. It goes on after a failure, so that one
# run shows them all. The last line is `N passed, N failed`; the exit status is 0 only without failures.
# A check that is no test suite (formatting, a lint run) counts as one test.
#
#   scripts/test.sh [STAGE]...    all of them unless told
#
#   fast   what to run before each commit, some three minutes: formatting, lints, the contract of streams and memory. What of
#          this it leaves to `rust` stands below, beside the list of tests that it skips
#   rust   every Rust test
#   view   the pages of `millpond view`, in a headless Chromium, which it installs; skipped where none can be had
#   loom   every interleaving of a few threads, over the library's own locks and lists
#   site   the documentation as a site, with all its links; builds mdBook once where it is missing
#   crates the library and the command as a registry of crates would get them. These three run beside the others, and are told
#          last
#   c      CMake's build, C and C++ tests, examples, packaging, the checks for a GPU on the fake driver
#   python the Python packages, in fresh environments, with CuPy, Numba and cuda.core; needs c before it
#   hosts  PaddlePaddle's released wheels, and a framework beside them; needs c before it
#   torch  PyTorch's released wheel, without a GPU; skipped where it is not installed (6 GB), see scripts/torch.sh.
#          MILLPOND_TEST_TORCH="2.15.0 ..." installs these releases first, and nothing of them may be skipped
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/setup.sh

all="fast rust view loom site crates c python hosts torch"
for stage in "$@"; do
  case " $all all " in
    *" $stage "*) ;;
    *) fail "there is no stage $stage; the stages are: $all" ;;
  esac
done
stages=${*:-all}
[ "$stages" != all ] || stages=$all
wanted() { case " $stages " in *" $1 "*) ;; *) false ;; esac; }

# Who builds everything once gains nothing from Cargo's incremental builds, which need four times the disk. A clone that is
# worked in has them already, and keeps them.
if [ "$stages" = "$all" ] && [ ! -d target/debug/incremental ]; then
  export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
  # Nor from debug information: who looks for a failure builds with it. A panic names its line without.
  export CARGO_PROFILE_TEST_DEBUG="${CARGO_PROFILE_TEST_DEBUG:-none}"
  # Each part of a package has a copy of what it inlines; fewer parts, fewer copies.
  export CARGO_PROFILE_TEST_CODEGEN_UNITS="${CARGO_PROFILE_TEST_CODEGEN_UNITS:-4}"
fi

# What the tests make in the folder for temporary files goes with this one.
logs=$(mktemp -d) || exit 1
mkdir "$logs/tmp" "$logs/beside" || exit 1
export TMPDIR="$logs/tmp"
beside= # the process that runs what goes beside the stages
pytorch= # the one that runs PyTorch
fetching= # the one that installs it
trap 'kill $beside $pytorch $fetching 2>/dev/null; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

# The folders that a stage fills, each with its size in MiB as measured in a fresh clone.
room_for() {
  caches=${XDG_CACHE_HOME:-$HOME/.cache}
  case $1 in
    fast) wanted rust || echo 1300 target/debug ;;
    rust) printf '%s\n' "2100 target/debug" "100 target/tmp" ;;
    loom) echo 100 target/loom ;;
    site) echo 100 target/site ;;
    crates) echo 1100 target/crates ;;
    c) echo 900 build ;;
    python) echo 800 build/python ;;
    hosts) [ "${MILLPOND_TEST_PADDLE:-}" = none ] || printf '%s\n' "3200 $caches/millpond/paddle" "1050 $caches/millpond/wheels" ;;
    torch)
      wanted rust || echo 500 target/debug
      echo 200 target/torch
      for release in ${MILLPOND_TEST_TORCH:-}; do
        venv=${MILLPOND_TORCH_CACHE:-$caches/millpond-torch}/venv-$release
        [ -e "$venv/.done" ] || echo 7000 "$venv"
      done
      ;;
  esac
}

# Says how much of the disk is free and how much this run needs beside what is there already. Ends here where that cannot be.
check_room() {
  needed=0
  for stage in $stages; do
    room_for "$stage" >"$logs/room"
    while read -r size folder; do
      there=$(du -sm "$folder" 2>/dev/null | cut -f 1)
      [ "${there:-0}" -ge "$size" ] || needed=$((needed + size - ${there:-0}))
    done <"$logs/room"
  done
  free=$(df -Pm . | awk 'NR == 2 { print $4 }')
  echo "Disk: $free MiB are free; this run needs some $needed MiB."
  # With a little less than measured it may still fit.
  [ "$free" -ge $((needed * 8 / 10)) ] || fail "there is too little room: $free MiB of the disk are free, some $needed MiB are needed"
}

need_rust
need_rust_component fmt rustfmt
need_rust_component clippy clippy
need g++ cxx_compiler_works
need gcc c_compiler_works
need libc6-dev c_compiler_works
need python3 have python3
if wanted rust || wanted c || wanted python || wanted hosts; then
  need cmake have cmake
  need ninja-build have ninja
  need pkg-config have pkg-config
  need libgtest-dev gtest_is_there
  need python3-venv python_venv_works
  case $(uname -m) in x86_64) need valgrind have valgrind ;; esac
fi
if wanted view; then
  need python3-venv python_venv_works
fi
need clang-format have clang-format
need pyflakes3 have pyflakes3
if wanted site; then need doxygen have doxygen; fi
install_missing
check_room
no_browser=
# Without it one example is left out.
if wanted c; then may_install libucx-dev pkg-config --exists ucx || echo "examples/ucx is left out: $lacking"; fi
if wanted view; then may_install chromium browser_starts || no_browser=$lacking; fi

passed=0
failed=0
skipped=0 # by name and with the reason, above in the output
failures=

# run <command...>: runs it with its output shown and kept in $log; returns its status.
log=$logs/output
run() {
  { "$@" </dev/null; echo $? >"$logs/status"; } 2>&1 | tee "$log"
  return "$(cat "$logs/status")"
}

# count_used: sets $used to the processor time [s] that the commands which have ended took. Not in a subshell, which has
# ended none.
used_in=$logs/used
count_used() {
  times >"$used_in"
  used=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "[ms]"); n += 60 * t[1] + t[2] } printf "%d\n", n }' "$used_in")
}

# heading <title>: what follows, until the next one, is timed under that name, with the processor time of what has ended.
title=
heading() {
  now=$(date +%s)
  count_used
  if [ -n "$title" ]; then
    printf '%5d s %5d s  %s\n' $((now - since)) $((used - used_before)) "$title"
    cat "$logs/parts" # of it
  fi >>"$logs/times"
  : >"$logs/parts"
  title=$1
  since=$now
  used_before=$used
  [ -z "$title" ] || printf '\n=== %s\n' "$title"
}

fail_one() {
  failed=$((failed + 1))
  failures="$failures
  $1"
}

# fail_some <number> <what>: of the tests that $log is about, which it names.
fail_some() {
  failed=$((failed + $1))
  failures="$failures
  $2: $1
$(failing_tests)"
}

# The names of the tests that failed, as Rust's tests, CTest, Python's unittest, and the scripts of this repository print
# them. The end of a long output is all that some readers get to see.
failing_tests() {
  sed -n -e 's/^test \(.*\) \.\.\. FAILED$/    \1/p' \
    -e '/(Skipped)$/d' -e 's/^[[:space:]]*[0-9]* - \(.* ([A-Z].*)\)$/    \1/p' \
    -e 's/^\(FAIL\|ERROR\): /    /p' \
    -e 's/^\(FAILED\|failed\):* \{1,\}\([^(].*\)/    \2/p' "$log" | head -n 40
}

# check <name> <command...>: one command that counts as one test.
check() {
  name=$1
  shift
  heading "$name"
  if run "$@"; then passed=$((passed + 1)); else fail_one "$name"; fi
}

# count <word> <what> <command...>: a script whose last line is `<word>: N passed, N failed, N skipped`.
count() {
  word=$1
  what=$2
  shift 2
  run "$@"
  status=$?
  sums=$(sed -n "s/^$word: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped\$/\1 \2 \3/p" "$log" | tail -n 1)
  if [ -n "$sums" ]; then
    set -- $sums
    passed=$((passed + $1))
    skipped=$((skipped + $3))
    [ "$2" -eq 0 ] || fail_some "$2" "$what"
  elif [ "$status" -ne 0 ]; then
    fail_one "$what: the checks did not run to their end"
  fi
}

# rust_tests <what> <option of cargo test>...: and what each program took, beside the rest.
rust_tests() {
  what=$1
  shift
  heading "cargo test: $what"
  run cargo test --locked --no-fail-fast "$@"
  status=$?
  sed -n -e 's/^ *Running \(unittests \)*\([^ ]*\) (.*/\2/p' -e 's/^ *Doc-tests \(.*\)/the documentation of \1/p' \
    -e 's/^test result: .* finished in \([0-9]*\)\..*/\1/p' "$log" |
    awk '/^[0-9]+$/ { if ($1 >= 5) printf "                %5d s  %s\n", $1, name; next } { name = $0 }' >"$logs/parts"
  sums=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$log" |
    awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')
  passed=$((passed + ${sums% *}))
  if [ "${sums#* }" -ne 0 ]; then
    fail_some "${sums#* }" "cargo test: $what"
  elif [ "$status" -ne 0 ]; then
    fail_one "cargo test: $what did not run to its end"
  fi
}

# Tests of the contract that `fast` leaves to `rust`, since they take half of its time: those that build the library once
# more and look at it from outside, devices of 16 TiB and more, and sums that only millions of requests reach.
left_to_the_whole="--skip unload:: --skip checkers::
  --skip sizes::all_of_a_device_of_16_tib --skip sizes::all_of_a_device_of_24_tib --skip sizes::all_of_a_device_of_40_tib
  --skip sizes::rounded_sizes_near_the_end_of_a_device_of_16_tib
  --skip sizes::the_largest_host_device_that_a_message_names_can_be_had
  --skip accounts::sums_of_ended_pools_do_not_begin_again
  --skip accounts::sums_of_very_large_blocks"

fast() {
  check "cargo fmt" cargo fmt --all --check
  check "clang-format" scripts/format.sh --dry-run --Werror
  check "pyflakes" pyflakes3 docs examples gpu python tests torch
  check "clippy" cargo clippy --locked --workspace --all-targets -- -D warnings
  check "clippy, as built into the plugin" \
    cargo clippy --locked --lib --no-default-features --features plugin -- -D warnings
  check "rustdoc" env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --lib -p millpond
  # All of the package runs below, and in full.
  if ! wanted rust; then
    # Of what is repeated for a time or a number of rounds, a part; random programs run for a second a kind of device, and
    # not for four.
    export MILLPOND_TEST_QUICK=1 MILLPOND_ORACLE_SECONDS=1
    rust_tests millpond --workspace --lib --test sources --test contract --test oracle -- $left_to_the_whole
    unset MILLPOND_TEST_QUICK MILLPOND_ORACLE_SECONDS
  fi
}

rust() {
  # All packages at once: one at a time, Cargo gives what they share the features that this one asks for, and compiles
  # the library and more again for each. What does not compile in one must not hide the tests of the others, though.
  heading "cargo test: compiling"
  run cargo test --locked --workspace --no-run
  compiled=$?
  : >"$logs/beside/compiled"
  if [ "$compiled" -eq 0 ]; then
    rust_tests "the programs" --workspace
  else
    failed_before=$failed
    for package in millpond millpond-bench millpond-cli millpond-fakecuda; do
      rust_tests $package -p $package
    done
    [ "$failed" -gt "$failed_before" ] || fail_one "the packages compile one by one, and not together"
  fi
  # The oldest Rust that is promised, where it is installed. What of the standard library is newer, clippy finds anywhere
  # (`incompatible_msrv`).
  oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  if have rustup && rustup toolchain list 2>/dev/null | grep -q "^$oldest[.-]"; then
    check "cargo check with Rust $oldest" cargo "+$oldest" check --locked --lib --bins --workspace --target-dir target/oldest
  else
    echo "SKIPPED: cargo check with Rust $oldest: that toolchain is not installed (rustup toolchain install $oldest)"
    skipped=$((skipped + 1))
  fi
  # Another processor's types differ (c_char is unsigned there); checked only where its standard library is installed.
  other=aarch64-unknown-linux-gnu
  if have rustup && rustup target list --installed 2>/dev/null | grep -q "^$other\$"; then
    check "cargo check for $other" cargo check --locked --lib --target $other
  fi
}

view() {
  # What cannot be had (a browser, a package with Perfetto's messages) is a line and a count.
  heading "The viewer, in a browser"
  if [ -n "$no_browser" ]; then
    echo "SKIPPED: the viewer, in a browser: $no_browser"
    skipped=$((skipped + 1))
    return
  fi
  count view "the viewer, in a browser" python3 tests/view/run.py --million --perfetto
}

# Released PaddlePaddle wheels, in environments that all clones share: their header is compiled against, and they load the
# plugin. MILLPOND_TEST_PADDLE names the releases (3.3.1 2.6.2 3.0.0 3.2.2), or is `none`.
releases=
for release in ${MILLPOND_TEST_PADDLE:-}; do
  releases="$releases --release $release"
done
has_paddle() { wanted hosts && [ "${MILLPOND_TEST_PADDLE:-}" != none ]; }

# Most stages leave a processor idle at times: a test waits, or is the last one. What measures no time and waits for nobody runs
# beside them, one after the other and at the lowest priority: first what CMake builds, for `c` and all that comes after it,
# and before that the environments with PaddlePaddle's headers.
run_beside() {
  child=
  trap 'kill $child 2>/dev/null; exit 143' TERM
  used_in=$logs/used-beside
  if wanted c; then
    one build build_with_cmake
    built=$ended
  fi
  if wanted loom; then one loom low scripts/loom.sh; fi
  if wanted site; then one site low sh scripts/site.sh; fi
  if has_archive && [ "$built" -eq 0 ]; then
    one instructions low bench/callgrind/count.sh build/rust/libmillpond.a
  fi
  if wanted crates; then
    # It takes what the tests have built.
    while wanted rust && [ ! -f "$logs/beside/compiled" ]; do sleep 1; done
    one crates low scripts/crates.sh
  fi
}

# Whether there is an archive whose instructions are counted. The limits are for this processor family.
has_archive() { wanted c && [ "$(uname -m)" = x86_64 ]; }

low() {
  nice -n 19 "$@" &
  child=$!
  wait "$child"
}

# one <name> <command...>: leaves its output, and then its status and what it took, under that name.
one() {
  result=$logs/beside/$1
  shift
  began=$(date +%s)
  count_used
  used_by_others=$used
  "$@" >"$result.log" 2>&1 </dev/null
  ended=$?
  count_used
  echo "$ended $(($(date +%s) - began)) $((used - used_by_others))" >"$result.new"
  mv "$result.new" "$result"
}

build_with_cmake() {
  includes=
  if has_paddle; then
    low python3 tests/paddle/run.py --includes $releases >"$logs/wheels" 2>&1
    cat "$logs/wheels"
    includes=$(sed -n 's/^includes: //p' "$logs/wheels")
  fi
  low cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DMILLPOND_BUILD_TESTS=ON \
    "-DMILLPOND_PADDLE_INCLUDES=$includes" -DMILLPOND_BUILD_EXAMPLES=ON -DMILLPOND_INSTALL=ON \
    -DMILLPOND_BUILD_FAKE_CUDA=OFF && low cmake --build build
}

# ended_beside <name>: waits for it, shows its output, and returns its status.
ended_beside() {
  while [ ! -f "$logs/beside/$1" ] && kill -0 "$beside" 2>/dev/null; do sleep 1; done
  cat "$logs/beside/$1.log"
  read -r ended took used_by_it <"$logs/beside/$1" || return 1
  printf '%16s%5d s %5d s  by itself\n' "" "$took" "$used_by_it" >>"$logs/parts"
  return "$ended"
}

# What ran beside the stages, and is none that is told above.
told_last() {
  if wanted loom; then check "loom models" ended_beside loom; fi
  if wanted site; then check "the documentation as a site" ended_beside site; fi
  # A gate that no noise disturbs.
  if has_archive && [ -n "$is_built" ]; then check "instructions of a warm pair" ended_beside instructions; fi
  if wanted crates; then check "the crates, as a registry would get them" ended_beside crates; fi
}

is_built=
c() {
  heading "CMake: configure, build, what was left of it"
  if ended_beside build; then
    passed=$((passed + 1))
    is_built=1
  else
    fail_one "CMake build (and so none of its tests ran)"
    return
  fi
  if wanted torch; then begin_torch; fi

  heading "ctest"
  # The one of the Rust tests, which gpu/check and PyTorch run with, too.
  run fakecuda/stage.sh --as-tests build/fakecuda || fail_one "the fake driver"
  run ctest --test-dir build --output-on-failure --no-tests=error -j 2
  status=$?
  # "94% tests passed, 1 tests failed out of 17"
  sums=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests* failed out of \([0-9]*\).*/\1 \2/p' "$log" | tail -n 1)
  if [ -n "$sums" ]; then
    # CTest counts a test that was skipped among those that passed.
    sed -n 's/^SKIPPED: /&/p' build/Testing/Temporary/LastTest.log
    idle=$(grep -c '^ *[0-9]*/[0-9]* Test .*\*\*\*Skipped ' "$log")
    passed=$((passed + ${sums#* } - ${sums% *} - idle))
    skipped=$((skipped + idle))
    [ "${sums% *}" -eq 0 ] || fail_some "${sums% *}" ctest
  elif [ "$status" -ne 0 ]; then
    fail_one "ctest did not run to its end"
  fi

  # What runs on a machine with a GPU, in part on the fake driver.
  check "gpu/build on the fake driver" gpu/build --fake --from build build/gpu-check
  check "gpu/check on the fake driver" build/gpu-check/check --fake
}

python() {
  # The command as the Rust tests have made it, with the example that gives it their features; optimising it would take
  # longer than the tests.
  heading "The Python packages"
  if ! run cargo build --locked --profile test --workspace --bin millpond --example view_samples; then
    fail_one "the Python packages: no command"
    return
  fi
  count python "the Python packages" python3 python/tests/run.py build --command target/debug/millpond
  rm -rf build/python # each run makes it anew
}

hosts() {
  if wanted torch && [ -z "$pytorch" ]; then begin_torch; fi
  has_paddle || return 0
  # A wheel that cannot be had is a line and a count.
  heading "PaddlePaddle"
  count paddle "PaddlePaddle" python3 tests/paddle/run.py build/plugin $releases

  # The package for pip, in environments of its own.
  heading "millpond-paddle"
  count millpond-paddle "millpond-paddle" python3 python/paddle/tests/run.py build $releases

  # A framework that links Millpond, with numpy, and in one process with PaddlePaddle and the plugin. The release is
  # the one that its run.py names, in the environment made above.
  heading "A framework build beside its clients"
  count framework "the framework build" python3 tests/framework/run.py \
    build/tests/packaging/example/framework/libtiny.so clients --plugin-dir build/plugin
}

# Releases of PyTorch that must be there: fetched beside the first stages.
begin_fetch() {
  {
    for release in $MILLPOND_TEST_TORCH; do nice -n 10 scripts/torch.sh --fetch --release "$release"; done
  } >"$logs/fetch" 2>&1 </dev/null &
  fetching=$!
}

# Most of the time it keeps one processor busy, and takes as long as all that comes after CMake's build: beside those, it
# ends with them.
begin_torch() {
  if [ -z "${MILLPOND_TEST_TORCH:-}" ]; then
    nice -n 19 scripts/torch.sh >"$logs/torch" 2>&1 </dev/null &
  else
    {
      for release in $MILLPOND_TEST_TORCH; do nice -n 19 scripts/torch.sh --install --release "$release"; done
    } >"$logs/torch" 2>&1 </dev/null &
  fi
  pytorch=$!
}

torch() {
  # Nobody's test run should fetch 6 GB: without the wheel it is a line and a count, unless it was asked for.
  heading "PyTorch's released wheel, over the fake driver: what was left of it"
  [ -n "$pytorch" ] || begin_torch
  wait "$pytorch"
  ended=$?
  pytorch=
  skipped_before=$skipped
  if [ -z "${MILLPOND_TEST_TORCH:-}" ]; then
    count torch "PyTorch's released wheel" as_it_was "$ended" "$logs/torch"
    return
  fi
  wait "$fetching"
  fetching=
  cat "$logs/fetch"
  # Each release ends with a line of its own.
  all=$(grep -c '^torch: [0-9]* passed, [0-9]* failed, [0-9]* skipped$' "$logs/torch")
  awk '/^torch: [0-9]* passed/ { p += $2; f += $4; s += $6; next } { print }
    END { printf "torch: %d passed, %d failed, %d skipped\n", p, f, s }' "$logs/torch" >"$logs/torch-all"
  count torch "PyTorch's released wheels" as_it_was "$ended" "$logs/torch-all"
  [ "$all" -eq "$(echo $MILLPOND_TEST_TORCH | wc -w)" ] ||
    fail_one "PyTorch's released wheels: $all of the releases $MILLPOND_TEST_TORCH ran to their end"
  [ "$skipped" -eq "$skipped_before" ] || fail_one "PyTorch's released wheels: a check was skipped, and none may be"
}

# as_it_was <status> <output>: a command that has run already.
as_it_was() {
  cat "$2"
  return "$1"
}

if wanted torch && [ -n "${MILLPOND_TEST_TORCH:-}" ]; then begin_fetch; fi
run_beside &
beside=$!
for stage in fast rust view c python hosts; do
  if wanted "$stage"; then "$stage"; fi
done
told_last
if wanted torch; then torch; fi
heading ""

left=$(ls -A "$TMPDIR")
[ -z "$left" ] || printf 'Left in the folder for temporary files, which goes now:\n%s\n' "$(echo "$left" | sed 's/^/    /')"

# What runs beside other stages has its own times below its name.
printf '\n=== Time, and processor time (of what ran beside: where it ended)\n'
cat "$logs/times"
[ -z "$failures" ] || printf '\nFailed:%s\n' "$failures"
[ "$skipped" -eq 0 ] || printf '\n%s skipped: look for SKIPPED and Skipped above\n' "$skipped"
printf '\n%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
