#!/usr/bin/env bash
# Runs what lies beside it on a GPU, part by part: conformance, all tests, then what only hardware can tell.
# cuda/carry.sh packs it.
#
#   ./run                     on the real driver
#   ./run stand-in            on the stand-in, to try the folder
#   ./run real --minutes 8    ends within 8 minutes; call it again to go on
#   ./run real --again        runs anew what did not pass
#
# A part is a test, in a process of its own, or a program; each has a limit of time, at most 8 minutes. What is
# done is written down and not run again, so the script may be killed at any point and called again. All is in
# results-real (or results-stand-in): table.txt has a line for each part, summary.txt what counts, logs/ what
# was printed. LARDER_RESULTS names another folder.
#
# Exit code: 0 if all parts are done and none failed, 1 if some failed, 75 if parts are left.
set -uo pipefail
cd "$(dirname "$0")" || exit 2

driver=real minutes=0 again=
while [ $# -gt 0 ]; do
    case "$1" in
        real | stand-in) driver=$1 ;;
        --minutes) minutes=${2:?--minutes wants a number}; shift ;;
        --again) again=yes ;;
        *) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift
done
export LARDER_CUDA_DRIVER=$driver CUDA_MODULE_LOADING=EAGER
unset LARDER_CUDA_STAND_IN
results=${LARDER_RESULTS:-$PWD/results-$driver}
mkdir -p "$results/parts" "$results/logs" "$results/lists" || exit 2
began=$SECONDS
shopt -s nullglob

# What runs is noted, so that a killed run leaves nobody beside the next one. A number may be another
# process's by now: only one of ours is ended.
end_left_over() {
    local pid name
    [ -s "$results/running" ] || return 0
    read -r pid name <"$results/running"
    if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qxF "LARDER_PART=$results/$name"; then
        echo "ends $name, which a former run left behind"
        kill "$pid" 2>/dev/null
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
            [ -e "/proc/$pid" ] || break
            sleep 1
        done
        kill -9 "$pid" 2>/dev/null
    fi
    rm -f "$results/running"
}

# part NAME SECONDS COMMAND...: runs it unless it is done. A part is done when its line is in parts/, which
# comes there whole by renaming.
part() {
    local name=$1 limit=$2 line="$results/parts/$1" log="$results/logs/$1.log" most=$2 room start code status time
    shift 2
    if [ -e "$line" ]; then
        [ "$again" = yes ] || return 0
        grep -qE '^(passed|skipped) ' "$line" && return 0
    fi
    if [ "$minutes" -gt 0 ]; then
        room=$((minutes * 60 - (SECONDS - began)))
        if [ "$room" -lt 5 ]; then
            left=$((left + 1))
            return 0
        fi
        [ "$room" -ge "$limit" ] || limit=$room
    fi
    begun=$((begun + 1))
    start=$(date +%s%3N)
    LARDER_PART="$results/$name" timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null &
    echo "$! $name" >"$results/running"
    wait $!
    code=$?
    rm -f "$results/running"
    time=$(($(date +%s%3N) - start))
    status=failed
    if [ "$code" -eq 0 ]; then
        status=passed
        grep -qE '^(test .* \.\.\. )?skipped|^test .* \.\.\. ignored' "$log" && status=skipped
    elif [ "$time" -ge $((limit * 1000)) ]; then
        status=timeout
        if [ "$limit" -lt "$most" ] && [ "$begun" -gt 1 ]; then
            # It had less than its time: the next call gives it more.
            left=$((left + 1))
            return 0
        fi
    fi
    printf '%s %d.%03d %d %s\n' "$status" $((time / 1000)) $((time % 1000)) "$code" "$name" >"$line.new"
    mv "$line.new" "$line"
    case $status in
        failed | timeout) printf '%-8s %6d.%03d s  %s\n' "$status" $((time / 1000)) $((time % 1000)) "$name" ;;
    esac
}
left=0
begun=0

# Every test of a program, each in a process of its own. The list of a program that cannot even say its tests
# is a part that fails.
tests() {
    local program=$1 limit=$2 list="$results/lists/$1" name
    if [ ! -e "$list" ]; then
        if ! timeout 60 "bin/test-$program" --list --format terse >"$list.new" 2>/dev/null; then
            part "$program.list" 60 "bin/test-$program" --list --format terse
            return 0
        fi
        mv "$list.new" "$list"
    fi
    while read -r name <&3; do
        case $name in *': test') name=${name%: test} ;; *) continue ;; esac
        part "$program.$name" "$limit" "bin/test-$program" --exact "$name" --nocapture --test-threads=1
    done 3<"$list"
}

machine() {
    cat packed.txt
    echo "driver: $driver, $(date -u +%Y-%m-%dT%H:%MZ)"
    uname -srm
    ldd --version 2>/dev/null | head -n 1
    nvidia-smi --query-gpu=name,driver_version,memory.total,mig.mode.current,compute_mode --format=csv 2>/dev/null
    nvidia-smi topo -m 2>/dev/null
    return 0
}

write_tables() {
    local failed log
    find "$results/parts" -type f ! -name '*.new' -exec cat {} + | sort -k4 \
        | awk '{ printf "%-8s %9.3f s  code %3d  %s\n", $1, $2, $3, $4 }' >"$results/table.txt"
    {
        cat "$results/machine.txt"
        echo
        echo 'parts by program: passed, skipped, failed, out of time'
        awk '{ split($6, name, "."); count[name[1], $1]++; seen[name[1]] = 1 }
            END { for (one in seen) printf "%-14s %5d %5d %5d %5d\n", one, count[one, "passed"],
                count[one, "skipped"], count[one, "failed"], count[one, "timeout"] }' "$results/table.txt" | sort
        echo
        echo 'what did not pass'
        grep -vE '^(passed|skipped)' "$results/table.txt" || echo 'nothing'
        for log in times alias alias-checked captures unmap host-pairs train; do
            [ -e "$results/logs/$log.log" ] || continue
            printf '\n== %s\n' "$log"
            cat "$results/logs/$log.log"
        done
        for log in "$results"/logs/replay-*.log; do
            [[ $log != *-json.log ]] || continue
            printf '\n== %s\n' "$(basename "$log" .log)"
            cat "$log"
        done
    } >"$results/summary.new"
    mv "$results/summary.new" "$results/summary.txt"
    failed=$(grep -cvE '^(passed|skipped)' "$results/table.txt")
    echo "$(wc -l <"$results/table.txt") parts done, $failed of them failed, $left left; $results/summary.txt"
    [ "$left" -eq 0 ] || return 75
    [ "$failed" -eq 0 ]
}

end_left_over
rm -f "$results"/parts/*.new
[ -e "$results/machine.txt" ] || { machine >"$results/machine.new" && mv "$results/machine.new" "$results/machine.txt"; }

tests conformance 60
tests loading 120
tests larder_cuda 60
tests all 240
for program in bin/test-*; do
    case "$(basename "$program")" in
        test-conformance | test-loading | test-larder_cuda | test-all) ;;
        *) tests "$(basename "$program" | sed 's/^test-//')" 120 ;;
    esac
done

most=$((8 << 30))
[ "$driver" = real ] || most=$((1 << 30))
part times 480 bin/driver_calls --max-bytes "$most"
part times-json 480 bin/driver_calls --max-bytes "$most" --json
part alias 240 bin/driver_calls --alias
if command -v compute-sanitizer >/dev/null && [ "$driver" = real ]; then
    part alias-checked 480 compute-sanitizer --tool memcheck --error-exitcode 9 bin/driver_calls --alias
    part train-checked 480 compute-sanitizer --tool memcheck --error-exitcode 9 bin/train
else
    part alias-checked 10 echo 'skipped: there is no compute-sanitizer'
fi
part captures 240 bin/driver_calls --captures
part unmap 120 bin/driver_calls --unmap
part train 240 bin/train
part host-pairs 240 bin/host_pairs --bench
for allocator in device device-budget device-planned cudarc cuda-async; do
    replay=(bin/larder replay traces/*.zst --driver "$driver" --allocator "$allocator")
    part "replay-$allocator" 480 "${replay[@]}"
    part "replay-$allocator-11" 480 "${replay[@]}" --passes 11
    part "replay-$allocator-json" 480 "${replay[@]}" --json
done
write_tables
