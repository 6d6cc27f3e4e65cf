#!/usr/bin/env bash
# Runs real programs on liblarder.so and on whichever allocators Debian's packages have put on the machine:
# the same output as on glibc, CPU seconds and peak resident MiB, medians.
#
#   std-shim/preload/compare.sh [ROUNDS [PROGRAM..]]
#
# MIMALLOC_BENCH=FOLDER adds the programs that mimalloc-bench built there. What is not installed is left out, and
# said. Rounds alternate between the allocators. Needs GNU time. gcc compiles SQLite whole where cargo has unpacked
# the package libsqlite3-sys, else a file made here.
#
# Programs that run for a time and count what they did (larson, xmalloc-test, glibc-thread) are shown with the CPU
# seconds of 100 million operations. At the end stand geometric means over the programs: larder's seconds over those
# of the fastest other, its peak over the lowest other.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
shift || true
target=${CARGO_TARGET_DIR:-target}/malloc
cargo build --quiet --release --manifest-path std-shim/preload/Cargo.toml --target-dir "$target"
repository=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # the database's user comes here
libraries=/usr/lib/$(uname -m)-linux-gnu
cp "$target/release/liblarder.so" "$work"
declare -A allocators=(
    [glibc]=
    [larder]=$work/liblarder.so
    [mimalloc]=$libraries/libmimalloc.so.2
    [jemalloc]=$libraries/libjemalloc.so.2
    [tcmalloc]=$libraries/libtcmalloc_minimal.so.4
)
names=()
for name in glibc larder mimalloc jemalloc tcmalloc; do
    [ -z "${allocators[$name]}" ] || [ -e "${allocators[$name]}" ] || continue
    names+=("$name")
done

{
    echo 'create table t (k integer primary key, v text); begin;'
    seq 1 60000 | sed "s/.*/insert into t values (&, 'value & of a row that is somewhat long');/"
    echo 'commit; create index i on t (v); select count(*), max(v) from t where v like "%9%";'
    echo 'update t set v = v || k; select sum(length(v)) from t; select k from t order by v limit 3;'
} > "$work/program.sql"
{
    echo '#include <stdio.h>'
    for number in $(seq 4000); do
        echo "static int f$number(int a, const char *s) { int x[4] = {a, $number, a * 3, s[0]};" \
            "for (int i = 0; i < 4; i++) a += x[i] ^ (a << (i + $number % 5)); return a; }"
    done
    echo 'int main(void) { int a = 1;'
    for number in $(seq 4000); do echo "a = f$number(a, \"text\");"; done
    echo 'printf("%d\n", a); }'
} > "$work/program.c"
for sqlite in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/libsqlite3-sys-*/sqlite3/sqlite3.c; do
    [ ! -e "$sqlite" ] || cp "$sqlite" "$work/program.c"
done
cat > "$work/postgres.sh" <<'SHELL'
# Makes a database in the folder $1 and runs transactions that are the same each time.
set -eu
PATH=$(ls -d /usr/lib/postgresql/*/bin 2> /dev/null | tail -1):$PATH
export PGHOST=$1 PGUSER=larder
initdb -D "$1/data" -U larder -N > /dev/null
pg_ctl -D "$1/data" -w -l "$1/log" -o "-c listen_addresses='' -k $1 -F" start > /dev/null
pgbench -i -q -s 4 postgres 2> /dev/null
pgbench -n -c 4 -j 2 -t 1000 --random-seed=1 postgres > /dev/null
pgbench -n -c 4 -j 2 -t 4000 -S --random-seed=1 postgres > /dev/null
psql -qAt postgres -c 'select count(*), sum(delta) from pgbench_history' \
    -c 'select sum(abalance), md5(string_agg(abalance::text, $$ $$ order by aid)) from pgbench_accounts' \
    -c 'select n % 1000, count(*), max(md5(n::text)) from generate_series(1, 200000) n group by 1 order by 3 limit 3'
pg_ctl -D "$1/data" -w -m fast stop > /dev/null
SHELL
# What a hypervisor took of the machine's free memory comes back when it is touched, at whoever's expense: so memory is
# touched before each run (benches/versus-worker/src/ready.rs says more).
cat > "$work/ready.py" <<'PYTHON'
import mmap
memory = mmap.mmap(-1, 512 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
for at in range(0, len(memory), mmap.PAGESIZE):
    memory[at] = 1
PYTHON
command -v python3 > /dev/null || echo 'no python3 here: memory is not touched before each run'
as_user=
[ "$(id -u)" != 0 ] || as_user="setpriv --reuid=nobody --regid=nogroup --clear-groups"
cat core/src/*/*.rs core/src/*.rs std-shim/src/*/*.rs > "$work/text"
for _ in 1 2 3 4 5 6; do cat "$work/text" "$work/text" > "$work/longer"; mv "$work/longer" "$work/text"; done
git clone --quiet --bare . "$work/repository" 2> /dev/null || true

# Each prints what must be equal. What stands behind $MEASURED is measured without the shell around it, whose own heap
# would be the peak of a small program; of the others, all.
declare -A programs=(
    [python]="PYTHONMALLOC=malloc python3 $repository/std-shim/preload/program.py 60000"
    [python-tests]="python3 -m test test_json test_re test_dict test_list test_set test_bytes test_thread test_fork1 test_gc test_capi | grep -E '^(Total tests|Result)'"
    [perl]="perl -e 'my %h; for my \$i (1..400000) { \$h{\"k\$i\"} = \"v\$i\" x 3 } my \$s = 0; \$s += length \$h{\$_} for sort keys %h; print \$s'"
    [node]="node -e 'let a = []; for (let i = 0; i < 300000; i++) a.push({i, s: \"x\" + i}); console.log(JSON.stringify(a).length)'"
    [gcc]="gcc -O1 -c $work/program.c -o $work/program.o && cksum < $work/program.o"
    [sqlite]="sqlite3 :memory: < $work/program.sql"
    [git]="git -C $work/repository repack -adfq --threads=2 && git -C $work/repository fsck 2>&1 | sort"
    [xz]="xz -3 -T2 -c $work/text | xz -dc | cksum"
    [zstd]="zstd -q -9 -T2 -c $work/text | zstd -dcq | cksum"
    [sort]="sort --parallel=2 -S 64M $work/text | cksum"
    [cargo]="cargo build --quiet --offline --release -p larder-core --target-dir $work/cargo; rm -rf $work/cargo; echo built"
    [redis]="cd $work && (redis-server --save '' --port 7391 --daemonize no > /dev/null & sleep 0.5; redis-benchmark -p 7391 -q -r 100000 -n 200000 -P 16 lpush a 1 2 3 4 5 lrange a 1 5 > /dev/null; redis-benchmark -p 7391 -q -r 100000 -n 200000 -P 16 -t set > /dev/null; redis-cli -p 7391 dbsize | wc -c; redis-cli -p 7391 shutdown nosave; wait)"
)
programs[postgres]="$as_user mkdir -m 700 $work/public/database && $as_user bash $work/postgres.sh $work/public/database; rm -rf $work/public/database"
mkdir -m 1777 "$work/public"
order=(python python-tests perl node gcc sqlite git xz zstd sort cargo redis postgres)
if [ -n "${MIMALLOC_BENCH:-}" ]; then
    bench=$(realpath "$MIMALLOC_BENCH")
    bench_sources=$(realpath "$bench/../../bench")
    add() {
        order+=("$1")
        programs[$1]="cd $bench && \$MEASURED $2 > /dev/null 2>&1; echo \$?"
    }
    # How many operations a program has said that it did, in 100 millions; $3 is for awk.
    add_counted() {
        order+=("$1")
        programs[$1]="cd $bench && \$MEASURED $2 2>&1 | awk '$3' > $work/operations; wc -l < $work/operations"
    }
    add cfrac "./cfrac 17545186520507317056371138836327483792789528"
    add espresso "./espresso $bench_sources/espresso/largest.espresso"
    add barnes "./barnes < $bench_sources/barnes/input"
    add alloc-test1 "./alloc-test 1"
    add alloc-testN "./alloc-test 2"
    add glibc-simple "./glibc-simple"
    add malloc-large "./malloc-large"
    add mstress "./mstress 2 50 25"
    add mleak10 "./mleak 5"
    add mleak100 "./mleak 50"
    add rptest "./rptest 2 0 1 2 500 1000 100 8 16000"
    add cache-scratch "./cache-scratch 2 1000 1 2000000 2"
    add cache-thrash "./cache-thrash 2 1000 1 2000000 2"
    for larson in larson larson-sized; do
        add_counted $larson "./$larson 2 8 1000 5000 100 4141 2" '/^Throughput/ { print $3 * 2 / 1e8 }'
    done
    add_counted xmalloc-test "./xmalloc-test -w 2 -t 2 -s 64" '/free.sec/ { print $4 * 2 / 100 }'
    add_counted glibc-thread "./glibc-thread 2" '/iterations$/ { print $1 / 1e8 }'
    ! command -v ruby > /dev/null || add rbstress "ruby $bench_sources/rbstress/stress_mem.rb 2"
fi

median() { sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }

printf '%-14s' program
for name in "${names[@]}"; do printf '%20s' "$name"; done
echo
for program in "${@:-${order[@]}}"; do
    first=${programs[$program]}
    tool=$(echo "$first" | grep -oE '(python3|perl|node|gcc|sqlite3|git|xz|zstd|sort|cargo|redis-server|postgres|\./[a-z0-9-]+)' | head -1)
    case $tool in
        ./*) ;;
        postgres) ls /usr/lib/postgresql/*/bin/pgbench > /dev/null 2>&1 || { echo "postgres: none here"; continue; } ;;
        *) command -v "$tool" > /dev/null || { echo "$program: no $tool here"; continue; } ;;
    esac
    rm -f "$work"/*.times "$work"/*.output
    for _ in $(seq "$rounds"); do
        for name in "${names[@]}"; do
            echo 1 > "$work/operations"
            python3 "$work/ready.py" 2> /dev/null || true
            # The allocator is the program's, not that of what measures it.
            measured="/usr/bin/time -o $work/time -f %U@%S@%M env LD_PRELOAD=${allocators[$name]}"
            case $first in
                *'$MEASURED'*) run=(env MEASURED="$measured" bash) ;;
                *) read -ra run <<< "$measured bash" ;;
            esac
            LD_PRELOAD= "${run[@]}" -c "cd $repository; $first" > "$work/$name.output" 2> /dev/null || true
            tail -1 "$work/time" | tr @ ' ' | paste -d ' ' - "$work/operations" >> "$work/$name.times"
        done
    done
    printf '%-14s' "$program"
    for name in "${names[@]}"; do
        cpu=$(awk 'NF == 4 { print ($1 + $2) / $4 }' "$work/$name.times" | median)
        peak=$(awk 'NF == 4 { print $3 / 1024 }' "$work/$name.times" | median)
        echo "$program $name $cpu $peak" >> "$work/medians"
        same=$(cmp -s "$work/glibc.output" "$work/$name.output" && echo ' ' || echo '!')
        printf '%12.2f/%6.1f%s' "$cpu" "$peak" "$same"
    done
    echo
done
echo '! another output than on glibc'
awk '
    $2 == "larder" { cpu[$1] = $3; peak[$1] = $4; next }
    { if (!($1 in fastest) || $3 < fastest[$1]) fastest[$1] = $3; if (!($1 in lowest) || $4 < lowest[$1]) lowest[$1] = $4 }
    END {
        for (name in cpu) if (fastest[name] * cpu[name] > 0) { count++; time += log(cpu[name] / fastest[name]); size += log(peak[name] / lowest[name]) }
        if (count) printf "larder over the best other, %d programs: CPU %.3f, peak %.3f\n", count, exp(time / count), exp(size / count)
    }' "$work/medians"
