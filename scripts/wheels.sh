#!/bin/sh
# Builds the Python packages of this repository, as wheels, into a folder: scripts/wheels.sh [FOLDER] (build/dist).
#
# The tag of a wheel is what its files need of the C library (python/backend.py), so what is built here runs on systems as
# new as this one. For manylinux_2_28 run it where the C library is that old, in the image of that name.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh

need_rust
need gcc c_compiler_works
need libc6-dev c_compiler_works
need g++ cxx_compiler_works
need cmake have cmake
need ninja-build have ninja
need python3 have python3
install_missing

folder=${1:-build/dist}
cmake --preset release
cmake --build --preset release
rm -rf build/release/prefix
cmake --install build/release --prefix build/release/prefix
MILLPOND_PREFIX=$PWD/build/release/prefix exec python3 python/backend.py "$folder" python python/paddle torch
