#!/bin/sh
# Builds the Python packages of this repository, as wheels, into a folder: scripts/wheels.sh [--glibc 2.28] [FOLDER] (build/dist).
#
# The tag of a wheel is what its files need of the C library (python/backend.py): what this machine has, or with --glibc what is
# named. Then Zig links, which brings the C libraries of all releases as lists of their symbols; it is fetched with pip into a
# folder of the cache. Compilers, headers and libgcc stay this machine's, and a header that uses what the older library does
# not have fails the build.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh

zig_release=0.17.1
glibc=
if [ "${1:-}" = --glibc ]; then
  glibc=${2:?scripts/wheels.sh --glibc wants a release, as 2.28}
  shift 2
fi
folder=${1:-build/dist}

need_rust
need gcc c_compiler_works
need libc6-dev c_compiler_works
need g++ cxx_compiler_works
need cmake have cmake
need ninja-build have ninja
need python3 have python3
[ -z "$glibc" ] || need python3-venv python_venv_works
install_missing

# linker <file> <compiler> <zig's target> <its libraries>: a compiler that is this machine's, but links by Zig.
linker() {
  cat >"$1" <<EOF
#!/bin/sh
# Written by scripts/wheels.sh.
links=1
for word; do
  case \$word in
    -c | -E | -S | -r | -v | --version | -dump* | -print-*) links= ;;
  esac
done
[ -n "\$links" ] || exec $2 "\$@"
count=\$#
while [ \$count -gt 0 ]; do
  word=\$1
  shift
  count=\$((count - 1))
  case \$word in
    -lgcc_s | -lgcc | -lstdc++) ;; # named below: Zig has others under these names
    *) set -- "\$@" "\$word" ;;
  esac
done
exec "$zig/bin/python" -m ziglang cc -target $3 -Wno-unused-command-line-argument -Wl,--allow-shlib-undefined "\$@" $4
EOF
  chmod +x "$1"
}

if [ -n "$glibc" ]; then
  zig=${XDG_CACHE_HOME:-$HOME/.cache}/millpond/zig-$zig_release
  if [ ! -e "$zig/done" ]; then
    echo "Fetching Zig $zig_release with pip into $zig."
    rm -rf "$zig"
    python3 -m venv "$zig"
    "$zig/bin/python" -m pip --disable-pip-version-check install --quiet "ziglang==$zig_release" ||
      fail "pip could not install ziglang $zig_release"
    touch "$zig/done"
  fi
  machine=$(uname -m)
  tools=$PWD/build/glibc-$glibc
  mkdir -p "$tools"
  gcc_s=$(cc -print-file-name=libgcc_s.so.1)
  linker "$tools/cc" "$(command -v cc)" "$machine-linux-gnu.$glibc" "$gcc_s"
  linker "$tools/c++" "$(command -v c++)" "$machine-linux-gnu.$glibc" "$(c++ -print-file-name=libstdc++.so.6) $gcc_s -lm"
  variable=CARGO_TARGET_$(echo "$machine" | tr '[:lower:]' '[:upper:]')_UNKNOWN_LINUX_GNU_LINKER
  export "$variable=$tools/cc"
  build=build/release-$glibc
  # CMake takes what links for Clang, and would take LLVM's tools where it finds them, which cannot localise symbols.
  cmake --preset release -B "$build" -DCMAKE_C_COMPILER="$tools/cc" -DCMAKE_CXX_COMPILER="$tools/c++" \
    -DCMAKE_LINKER="$(command -v ld)" -DCMAKE_NM="$(command -v nm)" -DCMAKE_OBJCOPY="$(command -v objcopy)" \
    -DMILLPOND_CARGO_TARGET_DIR="$PWD/$build/cargo"
else
  build=build/release
  cmake --preset release
fi
cmake --build "$build"
rm -rf "$build/prefix"
cmake --install "$build" --prefix "$build/prefix"
MILLPOND_PREFIX=$PWD/$build/prefix exec python3 python/backend.py "$folder" python python/paddle torch
