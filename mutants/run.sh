#!/usr/bin/env bash
# Plants each defect of mutants/list.txt in a copy of the sources and watches the tests fail.
#
#   mutants/run.sh          all
#   mutants/run.sh WORD     only those whose name contains WORD
#
# A mutant that the tests let live, or whose text is no longer found, makes this fail.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:-}
root=$PWD
target=${CARGO_TARGET_DIR:-target}
case "$target" in /*) ;; *) target=$PWD/$target ;; esac
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/larder"
git ls-files -z --cached --others --exclude-standard | grep -zv '^benches/traces/' | xargs -0 cp --parents -t "$copy/larder"
cd "$copy/larder"
export CARGO_TARGET_DIR="$target/mutants"
log="$copy/log"

# The packages whose tests must catch a defect in a file.
packages() {
    case "$1" in
        benches/src/share/*) echo '-p larder-bench --lib share::' ;;
        benches/src/versus/*) echo '-p larder-bench --lib --test all versus' ;;
        cuda/control/*) echo '-p larder-control' ;;
        core/src/small/*) echo '-p larder-core -p larder --features larder/allocator-api2,larder/heap-profile' ;;
        std-shim/*) echo '-p larder --features allocator-api2,heap-profile' ;;
        cuda/*) echo '-p larder-cuda -p larder-cuda-stand-in' ;;
        *) echo '-p larder-core' ;;
    esac
}

run_tests() {
    # shellcheck disable=SC2046
    LARDER_CUDA_DRIVER=stand-in timeout 300 cargo test -q $(packages "$1") >"$log" 2>&1
}

healthy=''
# The tests of a file's packages pass before the first mutant of theirs.
check_healthy() {
    local these
    these=$(packages "$1")
    case "$healthy" in *"[$these]"*) return ;; esac
    if ! run_tests "$1"; then
        cat "$log" >&2
        echo 'the tests fail without any mutant' >&2
        exit 1
    fi
    healthy="$healthy[$these]"
}

caught=0
lived=()
while IFS=$'\t' read -r name file old new; do
    case "$name" in ''|'#'*) continue ;; esac
    case "$name" in *"$want"*) ;; *) continue ;; esac
    check_healthy "$file"
    cp "$file" "$copy/original"
    if ! OLD="$old" NEW="$new" perl -0777 -i -pe \
        'BEGIN { ($o, $n) = map { s/\\n/\n/gr } @ENV{qw(OLD NEW)} } $c = s/\Q$o\E/$n/; END { exit !$c }' "$file"; then
        lived+=("$name (its text is not in $file any more)")
    elif run_tests "$file"; then
        lived+=("$name")
    else
        caught=$((caught + 1))
        first=$(grep -m 1 -E '^error|^test .* FAILED|^---- ' "$log" | head -n 1 || true)
        if grep -q '^error.*could not compile' "$log"; then
            lived+=("$name (does not compile)")
            caught=$((caught - 1))
        fi
        printf 'caught  %-52s %s\n' "$name" "$first"
    fi
    cp "$copy/original" "$file"
done <"$root/mutants/list.txt"

echo "$caught mutants caught, ${#lived[@]} not"
if [ ${#lived[@]} -gt 0 ]; then
    printf 'NOT caught: %s\n' "${lived[@]}" >&2
    exit 1
fi
