#!/bin/sh
# The documentation as a site: the pages with mdBook, the reference of the C and C++ headers with doxygen, and that of
# the crate with rustdoc. Then every link of the pages is followed. The result is in target/site/book.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh

mdbook_version=0.5.4
need_rust
need doxygen have doxygen
need python3 have python3
install_missing
site=$PWD/target/site
if ! have mdbook; then
  # Kept for other checkouts, beside the wheels that the tests fetch.
  tools=${XDG_CACHE_HOME:-$HOME/.cache}/millpond/mdbook-$mdbook_version
  PATH=$tools/bin:$PATH
  if ! have mdbook; then
    echo "Building mdBook $mdbook_version with cargo, once; it stays in $tools."
    # Not optimised, and not to be debugged: it takes a moment for so few pages, and its own build much longer.
    CARGO_PROFILE_DEV_DEBUG=none CARGO_INCREMENTAL=0 \
      cargo install -q --debug --locked --no-default-features --features search --root "$tools" "mdbook@$mdbook_version" </dev/null
  fi
fi

rm -rf "$site/pages" "$site/book" "$site/reference"
mkdir -p "$site/pages" "$site/reference"
# The pages lie as in the repository, beside the files that they lead to, so that their links are right.
for path in README.md CHANGELOG.md CONTRIBUTING.md LICENSE-APACHE LICENSE-MIT docs include examples fakecuda/README.md \
  fakecuda/include gpu/README.md gpu/beliefs.txt traces/README.md bench/corpus torch/shim/README.md cli/third_party/uplot/LICENSE; do
  mkdir -p "$site/pages/$(dirname $path)"
  cp -R "$path" "$site/pages/$path"
done
# mdBook makes an index.html of a README.md, but leaves the links to it as they are.
find "$site/pages" -name README.md | while read -r page; do mv "$page" "${page%README.md}index.md"; done
find "$site/pages" -name '*.md' -exec sed -i -E 's#(\]\([^) ]*)README\.md#\1index.md#g' {} +
sed -E -e 's#README\.md#index.md#' -e 's#]\(\.\./\.\./#](#' -e 's#]\(\.\./#](docs/#' -e 's#]\(reference#](docs/site/reference#' docs/site/SUMMARY.md >"$site/pages/SUMMARY.md"
cp docs/site/book.toml "$site/book.toml"
mdbook build "$site"
doxygen docs/site/Doxyfile
mv "$site/reference/c" "$site/book/c"
RUSTDOCFLAGS="-D warnings" cargo doc -q --locked --no-deps --lib -p millpond --target-dir "$site/rust"
mv "$site/rust/doc" "$site/book/rust"
python3 docs/site/check.py "$site/book"
