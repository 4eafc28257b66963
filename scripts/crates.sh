#!/bin/sh
# What a registry of crates would get: packs the library and the command as `cargo publish` does, builds both from what was
# packed alone, and the library's documentation from there as docs.rs does (without a network, with every warning an error).
#
#   scripts/crates.sh [--list]     --list: says what is in the packages, and builds nothing
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
if [ "${1:-}" = --list ]; then
  for crate in millpond millpond-cli; do
    echo "$crate:"
    cargo package --locked --allow-dirty --list -p "$crate"
  done
  exit
fi

# The command needs a library of the same version, which no registry has yet: packed together, it gets this one.
cargo package --locked --allow-dirty --no-verify -p millpond -p millpond-cli
packed=${CARGO_TARGET_DIR:-target}/package
for crate in millpond millpond-cli; do
  [ -f "$packed/$crate-$version.crate" ] || fail "no $crate-$version.crate was made"
  size=$(wc -c <"$packed/$crate-$version.crate")
  [ "$size" -le 1500000 ] || fail "$crate-$version.crate has $size bytes"
  echo "$crate-$version.crate: $size bytes"
done

work=$(mktemp -d)
target=$PWD/target/crates
trap 'rm -rf "$work" "$target"' EXIT
for crate in millpond millpond-cli; do tar xzf "$packed/$crate-$version.crate" -C "$work"; done
# As if the registry had the library. In the profiles of this repository, as the tests are built: so what is not packed here, the
# packages of others, is what the tests have built already, if they have.
mkdir "$work/.cargo"
{
  printf '[patch.crates-io]\nmillpond = { path = "%s" }\n' "$work/millpond-$version"
  awk '/^\[/ { wanted = /^\[profile\./ } wanted' Cargo.toml
} >"$work/.cargo/config.toml"
# A copy of that, without anything of ours: the command that the tests have made stays theirs.
built=${CARGO_TARGET_DIR:-target}/debug
rm -rf "$target"
mkdir -p "$target/debug"
if [ -d "$built/deps" ]; then
  mkdir "$target/debug/deps"
  find "$built/deps" -maxdepth 1 -name '*.*' ! -name '*millpond*' ! -name '*.o' -exec cp -a -t "$target/debug/deps" {} +
  for folder in .fingerprint build; do
    mkdir "$target/debug/$folder"
    find "$built/$folder" -mindepth 1 -maxdepth 1 ! -name 'millpond*' -exec cp -a -t "$target/debug/$folder" {} +
  done
fi
# Built once and thrown away, and run for a moment: nobody gains from optimising it.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_OPT_LEVEL=0
(cd "$work/millpond-cli-$version" && cargo build --quiet --profile test --bin millpond --target-dir "$target")
"$target/debug/millpond" --version
(
  cd "$work/millpond-$version"
  RUSTDOCFLAGS="-D warnings --cfg docsrs" cargo doc --quiet --offline --no-deps --features capi --target-dir "$target"
)
[ -f "$target/doc/millpond/index.html" ] || fail "no documentation was made"
echo "both build from what was packed, and the library's documentation, too"
