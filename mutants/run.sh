#!/usr/bin/env bash
# Plants each defect of mutants/list.txt in a copy of the sources and watches the tests fail.
#
#   mutants/run.sh           all
#   mutants/run.sh WORD      only those whose name contains WORD
#   mutants/run.sh --check   builds nothing: every text is found exactly once, and no name is there twice
#
# A mutant that the tests let live, or whose text is no longer found, makes this fail. What mechanical
# operators plant is for cargo-mutants (.cargo/mutants.toml).
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:-}

check_texts() {
    perl -F'\t' -lane '
        BEGIN { sub wrong { print STDERR "mutants/list.txt: @_"; $wrong = 1 } }
        next if /^(#|$)/;
        my ($name, $file, $old) = @F;
        $count += 1;
        wrong("$name is there twice") if $names{$name}++;
        unless (exists $texts{$file}) {
            local ($/, *IN);
            $texts{$file} = open(IN, "<", $file) ? <IN> : "";
        }
        my $found = length($old // "") ? () = $texts{$file} =~ /\Q$old\E/g : 0;
        wrong("the text of $name is found $found times in $file") if $found != 1;
        END {
            wrong("$count mutants, 80 at most") if $count > 80;
            print "$count mutants, each found once" unless $wrong;
            exit($wrong // 0);
        }' mutants/list.txt
}

if [ "$want" = --check ]; then
    check_texts
    exit
fi

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

# The tests that must catch a mutant: loom models, or the packages of its file.
tests_of() {
    case "$1:$2" in
        order_*:core/src/small/*) echo 'loom small::' ;;
        order_*:core/src/prmalloc/*) echo 'loom prmalloc::' ;;
        order_*:core/src/sync/turn.rs) echo 'loom build_turn::' ;;
        order_*:core/src/vmem.rs) echo 'loom joint_bytes::' ;;
        order_*:core/src/sync/*) echo "loom $(basename "$2" .rs)::" ;;
        order_*) echo 'loom' ;;
        *:core/src/small/*) echo '-p larder-core -p larder --features larder/allocator-api2,larder/pprof' ;;
        *:std-shim/*) echo '-p larder --features allocator-api2,pprof' ;;
        *:cuda/*) echo '-p larder-cuda -p larder-cuda-stand-in' ;;
        *) echo '-p larder-core' ;;
    esac
}

# 0: they pass, 2: they do not build. Only tests are ended that hang.
# shellcheck disable=SC2086
run_tests() {
    local arguments=$1
    local -x LARDER_CUDA_DRIVER=stand-in
    case "$1" in
        loom*)
            local -x CARGO_TARGET_DIR=$CARGO_TARGET_DIR/loom
            arguments="--release --manifest-path loom-tests/Cargo.toml --test all ${1#loom}"
            ;;
    esac
    cargo test -q --no-run $arguments </dev/null >"$log" 2>&1 || return 2
    timeout 300 cargo test -q $arguments </dev/null >"$log" 2>&1
}

healthy=''
# Tests pass before the first mutant that they must catch.
check_healthy() {
    case "$healthy" in *"[$1]"*) return ;; esac
    if ! run_tests "$1"; then
        cat "$log" >&2
        echo 'the tests fail without any mutant' >&2
        exit 1
    fi
    healthy="$healthy[$1]"
}

caught=0
lived=()
while IFS=$'\t' read -r name file old new; do
    case "$name" in ''|'#'*) continue ;; esac
    case "$name" in *"$want"*) ;; *) continue ;; esac
    tests=$(tests_of "$name" "$file")
    check_healthy "$tests"
    cp "$file" "$copy/original"
    if OLD="$old" NEW="$new" perl -0777 -i -pe \
        'BEGIN { ($o, $n) = @ENV{qw(OLD NEW)} } $c = s/\Q$o\E/$n/; END { exit !$c }' "$file"; then
        outcome=0
        run_tests "$tests" || outcome=$?
        case "$outcome" in
            0) lived+=("$name") ;;
            2) lived+=("$name (does not compile)") ;;
            *)
                caught=$((caught + 1))
                first=$(grep -m 1 -E '^test .* FAILED|^---- |^error' "$log" | head -n 1 || true)
                printf 'caught  %-52s %s\n' "$name" "$first"
                ;;
        esac
    else
        lived+=("$name (its text is not in $file any more)")
    fi
    cp "$copy/original" "$file"
done <"$root/mutants/list.txt"

echo "$caught mutants caught, ${#lived[@]} not"
if [ ${#lived[@]} -gt 0 ]; then
    printf 'NOT caught: %s\n' "${lived[@]}" >&2
    exit 1
fi
if [ "$caught" -eq 0 ]; then
    echo "no mutant's name contains $want" >&2
    exit 1
fi
