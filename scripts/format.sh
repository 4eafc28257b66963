#!/bin/sh
# clang-format over every C and C++ file of ours, with the given options: `-i` formats, `--dry-run --Werror` checks. The
# generated header, the parts that it is made from and its copies have their generator's format.
set -eu
cd "$(dirname "$0")/.."
find include tests cpp_tests examples bench fakecuda gpu torch -type f \
  \( -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cpp' \) \
  ! -path 'include/millpond/millpond.h' ! -path 'tests/sources/*' ! -path 'tests/abi/*/include/*' -exec clang-format "$@" {} +
