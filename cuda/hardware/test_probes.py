#!/usr/bin/env python3
"""Tests that the probes and the conformance tests of an unpacked archive that decide something see the other answer
where the stand-in behaves the other way.

    python3 cuda/hardware/test_probes.py FOLDER
"""

import os
import pathlib
import re
import subprocess
import sys

PROBES, TESTS = "driver_calls", "test-conformance"
#: A program, a beginning of names in it, what has the stand-in behave otherwise, and what falls only then.
OTHERWISE = [
    (PROBES, "machine", "VIRTUAL_MEMORY=0", "virtual memory is there"),
    (PROBES, "unmap.", "MAPPING_WAITS=1", "mapping and unmapping do not wait"),
    (PROBES, "times.0", "MAPPING_WAITS=1", "page calls take microseconds"),
    (PROBES, "sleep.1", "PINNED_BYTES=1MiB", "the host pins what sleeps"),
    (TESTS, "virtual_memory::aliases::", "STALE_ALIASES=1", "two mappings of one handle are one memory"),
    (TESTS, "virtual_memory::reservation::eight_times_", "ADDRESS_BYTES=100GiB", "8 x the device can be reserved"),
    (TESTS, "virtual_memory::physical::physical_memory_is_taken_", "LATE_MEMORY=1", "memory that is given back is free"),
    (TESTS, "capturing::calls::unsafe_calls_", "CAPTURES=lenient", "an unsafe call spoils strict captures"),
    (TESTS, "capturing::calls::unsafe_calls_", "CAPTURES=merciless", "an unsafe call spoils strict captures"),
    (TESTS, "capturing::calls::other_calls_", "CAPTURES=merciless", "a call in the relaxed mode spoils no capture"),
    (TESTS, "capturing::calls::safe_calls_", "CAPTURES=strict", "a call that Larder makes in any mode"),
    (TESTS, "capturing::calls::what_captures_", "CAPTURES=lenient", "the call spoils every capture"),
]
#: Decided by a GPU alone, or by what the stand-in has no switch for.
NOT_HERE = {
    "virtual_memory::aliases::a_dependent_launch_that_waits_reads_what_a_kernel_wrote",
    "cuMemAllocAsync-captured during a capture",
    "cuStreamGetCtx-captured during a capture",
    "cuStreamIsCapturing-captured during a capture",
    "cuStreamQuery-captured during a capture",
    "cuStreamSynchronize-captured during a capture",
}


def run(folder, program, words, switch=None):
    """What a program says."""
    environment = {
        **os.environ,
        "LARDER_CUDA_DRIVER": "stand-in",
        "LARDER_CUDA_STAND_IN": str(folder / "bin" / "liblarder_cuda_stand_in.so"),
    }
    if switch:
        name, value = switch.split("=")
        environment[f"LARDER_STAND_IN_{name}"] = value
    command = [str(folder / "bin" / program), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def fallen(folder, program, name, switch=None):
    """Each question with its verdict, and whether the program failed."""
    words = ["--probe", name] if program == PROBES else ["--exact", name, "--nocapture"]
    done = run(folder, program, words, switch)
    found = re.findall(r"answer: (.*?) \| .* \| (\S.*)$", done.stdout, re.MULTILINE)
    return dict(found) or {f"nothing: {done.stderr}": ""}, done.returncode != 0


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    names = {}
    for program in (PROBES, TESTS):
        said = run(folder, program, ["--list"]).stdout
        names[program] = [line.removesuffix(": test") for line in said.splitlines()]
    count, blind = 0, []
    # One at a time: some measure.
    for program, beginning, switch, words in OTHERWISE:
        wanted = [name for name in names[program] if name.startswith(beginning) and name not in NOT_HERE]
        # `times.0` and `sleep.1` are whole names.
        wanted = [beginning] if beginning in wanted else wanted
        count += len(wanted)
        for name in wanted:
            usually, failed = fallen(folder, program, name)
            otherwise, failed_then = fallen(folder, program, name, switch)
            lines = [f"FALLS: {words}" in verdict for verdict in otherwise.values()]
            if program == PROBES:
                # Some of its lines say something else.
                sees = any(lines)
            else:
                # Each call sees it, and the test fails of it.
                known = [line for line, question in zip(lines, otherwise) if question not in NOT_HERE]
                sees = all(known) and failed_then
            if failed or not sees or any(f"FALLS: {words}" in verdict for verdict in usually.values()):
                blind.append(f"{name} with {switch}")
        if not wanted:
            blind.append(f"{beginning}: nothing is named so")
    print(f"{count} probes and tests see both answers" if not blind else f"see one answer only: {', '.join(blind)}")
    sys.exit(1 if blind else 0)


if __name__ == "__main__":
    main()
