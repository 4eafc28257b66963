#!/bin/sh
# Builds the consumer with nothing but a compiler and pkg-config, from a prefix that was moved.
# Usage: run.sh <prefix> <libdir below it> <work directory> <version> <1: the shared library is there>; environment: CC, PKG_CONFIG, STATIC.
set -eu
prefix=$1 libdir=$2 work=$3 version=$4 shared=$5
common=$(cd "$(dirname "$0")/../../common" && pwd)
: "${CC:=cc}" "${PKG_CONFIG:=pkg-config}" "${STATIC:=}"
fail() { echo "pkg-config: $*" >&2; exit 1; }

rm -rf "$work"
mkdir -p "$work"
# The prefix has a space in its name, which not every pkg-config quotes; a link gives it a plain one.
ln -s "$prefix" "$work/prefix"
export PKG_CONFIG_PATH="$work/prefix/$libdir/pkgconfig"

[ "$("$PKG_CONFIG" --modversion millpond)" = "$version" ] || fail "not version $version"
eval "plugins=$("$PKG_CONFIG" --variable=plugindir millpond)"
[ -f "$plugins/libmillpond-plugin.so" ] || fail "no plugin in plugindir: $plugins"

# What pkg-config prints is quoted for the shell, hence eval.
build() {
  program=$work/$1 flags=$2
  eval "\"\$CC\" -DMILLPOND_EXPECTED_VERSION='\"$version\"' -o \"\$program\" \"\$common/main.c\" \"\$common/use_millpond.c\" $flags"
  "$program"
}
build dynamic "$("$PKG_CONFIG" --cflags --libs millpond)"
case $STATIC in
  '' | 0 | FALSE | OFF) ;;
  *) build static "-static $("$PKG_CONFIG" --static --cflags --libs millpond)" ;;
esac

# A shared library made this way keeps Millpond to itself as well.
eval "\"\$CC\" -shared -fPIC -DMILLPOND_EXPECTED_VERSION='\"$version\"' -o \"\$work/lib.so\" \"\$common/use_millpond.c\" $("$PKG_CONFIG" --cflags --libs millpond)"
if nm -D --defined-only "$work/lib.so" | grep ' millpond_'; then fail "a shared library exports Millpond's functions"; fi

# The shared library instead.
if [ "$shared" = 1 ]; then
  build shared "$("$PKG_CONFIG" --cflags --libs millpond-shared) -Wl,-rpath,\"$prefix/$libdir\""
  readelf -d "$work/shared" | grep -q 'libmillpond\.so\.0' || fail "millpond-shared links something else"
  if readelf -d "$work/dynamic" | grep -q 'libmillpond'; then fail "millpond links the shared library"; fi
fi
