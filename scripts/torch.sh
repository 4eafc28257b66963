#!/bin/sh
# Runs a released PyTorch wheel with CUDA on a machine without a GPU, over the fake driver and the CUDA runtime of
# torch/shim: by default the checks of torch/tests/real. The last line is `torch: N passed, N failed, N skipped`.
#
#   scripts/torch.sh [OPTION]... [WORD]...         checks whose name contains one of the words; all without words
#   scripts/torch.sh [OPTION]... -- COMMAND ...    this command instead, such as python program.py
#
#   --install        installs PyTorch where it is missing; about 6 GB, for half an hour at most
#   --fetch          only that
#   --library FILE   this libmillpond-torch.so; otherwise one is built from the sources, with debug checks
#   --release X.Y.Z  the release of PyTorch (2.15.0)
#
# MILLPOND_TORCH_CACHE is where PyTorch's environments are (~/.cache/millpond-torch), MILLPOND_TORCH_SECONDS how long it may
# take to install one (1800). Status 77: PyTorch is not there.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh

release=2.15.0
library=
install=
fetch=
while [ $# -gt 0 ]; do
  case $1 in
    --install) install=1 ;;
    --fetch) install=1 && fetch=1 ;;
    --library) library=$(realpath "$2") && shift ;;
    --release) release=$2 && shift ;;
    --) break ;;
    -*) fail "no such option: $1" ;;
    *) break ;;
  esac
  shift
done

venv=${MILLPOND_TORCH_CACHE:-$HOME/.cache/millpond-torch}/venv-$release
python=$venv/bin/python
made=target/torch
driver=$made/driver
shim=$made/shim-$release
mkdir -p "$driver" "$shim"

# Installed, and beside it the wheels of one package: 5.6 GiB for 2.15.0, and 6.9 GiB for the largest release that was tried.
room=8 # [GiB]
seconds=${MILLPOND_TORCH_SECONDS:-1800}

# Into an environment of its own; a half made one is made anew.
fetch_pytorch() {
  free=$(df -Pk "$(dirname "$venv")" | awk 'NR == 2 { print int($4 / 1048576) }')
  [ "$free" -ge "$room" ] || fail "torch $release needs $room GiB on the disk of $venv while it is installed, and $free are free"
  rm -rf "$venv"
  python3 -m venv "$venv"
  # Not compiled: of the many thousand files, programs compile what they import, and keep it (below).
  pip() { TMPDIR=$venv timeout "$seconds" "$python" -m pip install -q --no-compile --no-cache-dir --no-warn-conflicts "$@"; }
  # One after the other: pip has all wheels of one call on the disk before it unpacks the first.
  pip --no-deps "torch==$release" || fail "torch $release could not be installed in $seconds seconds"
  "$python" - >"$venv/needed" <<'END'
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for text in requires("torch"):
    needed = Requirement(text)
    if needed.marker is None or needed.marker.evaluate({"extra": ""}):
        needed.marker = None
        print(str(needed).replace(" ", ""))
END
  while read -r package; do
    pip "$package" || fail "$package, which torch $release needs, could not be installed in $seconds seconds"
  done <"$venv/needed"
  pip numpy || fail "numpy could not be installed"
  "$python" -m pip check || fail "torch $release is installed, but not what it needs"
  # The headers of the runtime come with PyTorch, but those of the compiler that they include do not.
  cuda=$("$python" -c 'import torch; print(torch.version.cuda)')
  case $cuda in
    13.*) headers=nvidia-cuda-crt==$cuda.* ;;
    12.*) headers=nvidia-cuda-nvcc-cu12==$cuda.* ;;
    *) fail "torch $release is built for CUDA $cuda" ;;
  esac
  pip --no-deps "$headers" || fail "the CUDA headers cannot be installed"
  : >"$venv/.done"
}

if [ ! -e "$venv/.done" ]; then
  if [ -z "$install" ]; then
    echo "SKIPPED: PyTorch $release is not in $venv; \`scripts/torch.sh --install\` fetches it (6 GB) and runs the checks"
    echo "torch: 0 passed, 0 failed, 1 skipped"
    exit 77
  fi
  mkdir -p "$(dirname "$venv")"
  # One at a time: who comes while another installs it waits, and finds it.
  exec 9>"$venv.lock"
  flock 9
  if [ ! -e "$venv/.done" ]; then
    began=$(date +%s)
    fetch_pytorch
    echo "PyTorch $release: installed in $(($(date +%s) - began)) s, $(du -sm "$venv" | cut -f 1) MiB"
  fi
  exec 9>&-
fi
[ -z "$fetch" ] || exit 0

# newer <made> <source>: whether it must be made again.
newer() { [ ! -e "$1" ] || [ -n "$(find "$2" -maxdepth 1 -newer "$1" -type f)" ]; }

packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ -d "$packages/nvidia/cu13" ]; then
  runtime=libcudart.so.13
  includes="-isystem $packages/nvidia/cu13/include"
else
  runtime=libcudart.so.12
  includes="-isystem $packages/nvidia/cuda_runtime/include -isystem $packages/nvidia/cuda_nvcc/include"
fi
flags="-std=c++17 -O1 -g -Wall -Wextra -fPIC"
if newer "$shim/$runtime" torch/shim; then
  printf '%s { global: cuda*; __cuda*; local: *; };\n' $runtime >"$shim/cudart.map"
  for half in cudart graphs; do
    g++ $flags $includes -c -o "$shim/$half.o" torch/shim/$half.cpp
  done
  link() {
    g++ -shared -Wl,-soname,$runtime "-Wl,--version-script=$shim/cudart.map" -o "$shim/new.so" "$shim/cudart.o" "$shim/graphs.o" "$@" \
      -ldl -lpthread
  }
  link
  # PyTorch's libraries load only if the runtime has everything they name. What the shim lacks is not supported.
  nm -D --defined-only "$shim/new.so" | awk '{ sub("@@", "@", $3); print $3 }' | sort -u >"$shim/has"
  nm -D --undefined-only "$packages"/torch/lib/*.so | awk '$2 ~ "@libcudart" { print $2 }' | sort -u >"$shim/wanted"
  lacking=$(comm -23 "$shim/wanted" "$shim/has" | sed 's/@.*//')
  if [ -n "$lacking" ]; then
    echo "Not supported by torch/shim:" $lacking
    for function in $lacking; do echo "extern \"C\" int $function() { return 801; }"; done >"$shim/lacking.cpp"
    g++ $flags -c -o "$shim/lacking.o" "$shim/lacking.cpp"
    link "$shim/lacking.o"
  fi
  mv "$shim/new.so" "$shim/$runtime"
fi
if newer "$driver/libnvidia-ml.so.1" torch/shim/nvml.cpp; then
  g++ $flags -shared -Wl,-soname,libnvidia-ml.so.1 -o "$driver/libnvidia-ml.so.1" torch/shim/nvml.cpp
fi

# What the Rust tests have built already: with debug checks, and optimised a little, for these programs allocate much.
need_rust
fakecuda/stage.sh --as-tests "$driver"
built=${CARGO_TARGET_DIR:-target}/debug
archive=$made/libmillpond.a
if newer "$archive" "$built/libmillpond.rlib"; then
  echo 'pub extern crate millpond;' >"$made/archive.rs"
  rustc --edition 2024 --crate-type staticlib --extern "millpond=$built/libmillpond.rlib" -L "dependency=$built/deps" \
    -o "$archive" "$made/archive.rs"
fi
if [ -z "$library" ]; then
  library=$PWD/$made/libmillpond-torch.so
  if newer "$library" "$archive" || newer "$library" torch || newer "$library" torch/python/millpond_torch || newer "$library" include/millpond; then
    g++ $flags -fvisibility=hidden -Iinclude -Itorch/python/millpond_torch -shared -o "$library" torch/*.cpp \
      "-Wl,--version-script=torch/exports.map" "$archive" -lpthread -ldl -lm
  fi
fi

# Also where the user has told Python to keep nothing: to compile what `import torch` reads takes as long as all else that it does,
# and each process would do that.
export PYTHONDONTWRITEBYTECODE=
# The wheel's libraries find their own libcudart first, by an RPATH; so the shim is preloaded.
export LD_LIBRARY_PATH="$PWD/$driver" PATH="$venv/bin:$PATH" PYTHONPATH="$PWD/torch/python"
export FAKECUDA_DRIVER="${FAKECUDA_DRIVER:-13020}" FAKECUDA_DEVICES="${FAKECUDA_DEVICES:-2}"
export FAKECUDA_CAPACITY="${FAKECUDA_CAPACITY:-8G}" FAKECUDA_STAGED="${FAKECUDA_STAGED:-1}"
# A thread of OpenMP's that waits for others' parts would turn in circles, which takes the processor from them.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
export MILLPOND_TORCH_RELEASE="$release"
export MILLPOND_TORCH_NATIVE="$PWD/$shim/libmillpond-native.so" MILLPOND_TORCH_CPU="$PWD/$shim/libmillpond-cpu.so"
if newer "$MILLPOND_TORCH_CPU" torch/python/millpond_torch; then rm -f "$MILLPOND_TORCH_CPU"; fi
export MILLPOND_TORCH_LIBRARY="$library" MILLPOND_TORCH_PRELOAD="$PWD/$shim/$runtime" MILLPOND_TORCH_ARCHIVE="$PWD/$archive"
if [ "${1:-}" = -- ]; then
  shift
  exec env LD_PRELOAD="$MILLPOND_TORCH_PRELOAD" "$@"
fi
exec "$python" torch/tests/real/run.py "$@"
