#!/usr/bin/env bash
# Makes docs/guide/book of the guide. Needs `cargo install mdbook`; --no-default-features is enough.
set -euo pipefail
cd "$(dirname "$0")"
mdbook build
# Links to other files of the repository lead out of the book, to Markdown as it is.
find book -name '*.html' -exec sed -i -E 's#(href="\.\./\.\./[^"]*)\.html#\1.md#g' {} +
echo 'open docs/guide/book/index.html'
