#!/usr/bin/env bash
# Counts what a reader meets: lines, public types, errors, forwarders, words. One row each.
#
#   ./counts.sh           of this tree
#   ./counts.sh COMMIT    of another one
#
# Rough by design: patterns over text, not a parser, and the same ones for every commit.
set -euo pipefail
cd "$(dirname "$0")"
tree=$PWD
if [ $# -gt 0 ]; then
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    git archive "$1" | tar -x -C "$tree"
fi
cd "$tree"

# Rust files of ours; not what is measured or built apart.
sources() {
    find core std-shim cuda cli benches model loom-tests fuzz examples -name '*.rs' \
        -not -path '*/target/*' -not -path '*/corpus/*' "$@"
}
is_test='/tests?/|_tests?\.rs$|/tests\.rs$|^(model|loom-tests|fuzz)/'
# Prints a file up to its first module of tests, without the lines that declare modules of tests in other files.
product() {
    sources | grep -vE "$is_test" | xargs awk '
        FNR == 1 { on = 1; held = "" }
        held != "" {
            if ($0 ~ /^#\[/) { held = held "\n" $0; next }
            if ($0 !~ /^(pub(\([a-z]*\))? )?(mod|use) .*;$/) on = 0
            held = ""
            next
        }
        on && /^#\[cfg\(test\)\]/ { held = $0; next }
        on'
}
all_lines=$(sources | xargs cat | wc -l)
product_lines=$(product | wc -l)

row() { printf '%-58s %7d\n' "$1" "$2"; }
row 'lines of Rust, not of tests' "$product_lines"
row 'lines of Rust, of tests, model, loom models, fuzzers' $((all_lines - product_lines))
row 'lines of scripts and expected output of tests' \
    "$(find core std-shim cuda cli \( -name '*.txt' -o -name snapshot.json \) -not -path '*/target/*' -print0 | xargs -0 cat | wc -l)"
row 'public types and traits of the core' \
    "$(find core/src -name '*.rs' | xargs grep -hE '^pub (struct|enum|union|trait|type) ' | wc -l)"
row 'error types (…Error, …Rejected)' \
    "$(product | grep -cE '^ *pub (struct|enum|type) [A-Za-z]*(Error|Rejected)\b')"
row 'public block types (…Block)' "$(product | grep -cE '^pub (struct|enum) [A-Za-z]*Block\b')"
row 'functions whose body is one call of a field' \
    "$(product | perl -0ne 'print scalar(() = /\bfn [^{};]*\{\s*(?:self(?:\.\w+)+|\(\*+self\))\.\w+\([^;{}]*\)\s*\}/g)')"
row 'type names that several files define' \
    "$(product | grep -ohE '^ *(pub(\([a-z:]*\))? )?(struct|enum|union) [A-Z][A-Za-z]*' | awk '{ print $NF }' | sort | uniq -d | wc -l)"
row 'doc comments that begin "The same", "As [" or "As above"' \
    "$(sources | xargs grep -hE '^ *//[/!] (The same|As \[|As above)' | wc -l)"
row 'words of README, CONTRIBUTING, CHANGELOG and docs/*.md' "$(cat ./*.md docs/*.md | wc -w)"
row 'words of the guide' "$(cat docs/guide/src/*.md | wc -w)"
row 'rows of the glossary' "$(sed -n '/^## Words/,/^## Where/p' CONTRIBUTING.md | grep -cE '^\| [a-z]')"
row 'decisions' "$(grep -cE '^(#+ |\*\*)?[0-9]+\. ' docs/DECISIONS.md)"
row 'test programs (files and folders in tests/)' \
    "$(find core std-shim cuda cli benches loom-tests -path '*/tests/*' \( -path '*/tests/*.rs' -o -name main.rs \) -not -path '*/src/*' -not -path '*/target/*' | grep -cE '/tests/[^/]+\.rs$|/tests/[^/]+/main\.rs$')"
