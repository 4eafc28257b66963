# Sourced by the other scripts: finds Rust, and installs what is missing with apt-get. POSIX sh.
#
# Nothing that is present is installed again, and a line says what is about to be installed.

# fail <message>: the message on stderr, and the end.
fail() {
  echo "millpond: $*" >&2
  exit 1
}

# have <command>: whether it can be run.
have() { command -v "$1" >/dev/null 2>&1; }

# Rust is the one thing that must be there.
need_rust() {
  have cargo || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
  have cargo || fail "Rust is needed (cargo 1.88 or newer); install it from https://rustup.rs"
  version=$(cargo --version) || fail "cargo does not run"
  minor=$(echo "$version" | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
  if [ -n "$minor" ] && [ "$minor" -lt 88 ]; then
    fail "Rust 1.88 or newer is needed, here is $version; try: rustup update"
  fi
}

# need_rust_component <cargo command> <component>
need_rust_component() {
  cargo "$1" --version >/dev/null 2>&1 && return
  have rustup || fail "cargo $1 is missing; install the Rust component $2"
  echo "Installing the Rust component $2 with rustup."
  rustup component add "$2" </dev/null || fail "rustup could not install $2"
}

# need <Debian package> <test...>: notes the package as missing unless the test succeeds.
missing=
need() {
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}

# install_missing: installs what `need` noted.
install_missing() {
  [ -n "$missing" ] || return 0
  have apt-get || fail "these are missing, under their Debian names:$missing; please install them (no apt-get here)"
  as_root=
  if [ "$(id -u)" -ne 0 ]; then
    have sudo || fail "these Debian packages are missing:$missing; please install them (not root, and no sudo here)"
    as_root=sudo
    [ -t 0 ] || as_root="sudo -n"
  fi
  echo "Installing with ${as_root:+$as_root }apt-get:$missing"
  log=$(mktemp)
  # A stale list of packages is the usual reason for a failure, so it is renewed first.
  if ! {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
      $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
  } </dev/null >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    fail "apt-get could not install:$missing"
  fi
  rm -f "$log"
  missing=
}

# may_install <Debian package> <test...>: installs a package that the script can do without, unless the test succeeds
# already. Its status says whether the test succeeds now; if not, $lacking has the reason.
lacking=
may_install() {
  lacking=
  package=$1
  shift
  "$@" >/dev/null 2>&1 && return
  told=$(mktemp)
  # In a shell of its own: that is what a failure ends.
  if ! (missing=" $package" && install_missing) 2>"$told"; then
    lacking=$(tail -n 1 "$told")
  elif ! "$@" >/dev/null 2>&1; then
    lacking="the package $package is installed, but does not work"
  fi
  cat "$told" >&2
  rm -f "$told"
  [ -z "$lacking" ]
}

# A C library's headers come apart from the compiler: try to compile.
c_compiler_works() { echo 'int main(void) { return 0; }' | cc -x c - -o /dev/null; }
cxx_compiler_works() { printf '#include <string>\nint main() { return 0; }\n' | c++ -x c++ - -o /dev/null; }
gtest_is_there() { printf '#include <gtest/gtest.h>\n' | c++ -x c++ -std=c++17 -E - -o /dev/null; }

# The package has one name, the program has several. One that only stands for a snap is there, but does not start.
browser_starts() {
  for browser in chromium chromium-browser google-chrome google-chrome-stable; do
    if have $browser && $browser --version </dev/null; then return 0; fi
  done
  return 1
}

# Debian's Python comes without what makes environments.
python_venv_works() { python3 -c 'import ensurepip, venv'; }
