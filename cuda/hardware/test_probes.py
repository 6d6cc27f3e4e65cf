#!/usr/bin/env python3
"""Tests that each probe of an unpacked archive sees the other answer where the stand-in behaves the other way.

    python3 cuda/hardware/test_probes.py FOLDER
"""

import os
import pathlib
import re
import subprocess
import sys

#: Beginnings of names of probes, what has the stand-in behave otherwise, and what is only said then.
OTHERWISE = [
    ("machine", {"LARDER_STAND_IN_VIRTUAL_MEMORY": "0"}, "FALLS: virtual memory is there"),
    ("reserve", {"LARDER_STAND_IN_ADDRESS_BYTES": "100GiB"}, "FALLS: 8 x the device can be reserved"),
    ("alias.", {"LARDER_STAND_IN_STALE_ALIASES": "1"}, "FALLS: two mappings of one handle are one memory"),
    ("unmap.", {"LARDER_STAND_IN_MAPPING_WAITS": "1"}, "FALLS: mapping and unmapping do not wait"),
    ("returns", {"LARDER_STAND_IN_LATE_MEMORY": "1"}, "FALLS: memory that is given back is free at once"),
    ("times.0", {"LARDER_STAND_IN_MAPPING_WAITS": "1"}, "FALLS: page calls take microseconds"),
    ("sleep.1", {"LARDER_STAND_IN_PINNED_BYTES": "1MiB"}, "FALLS: the host pins what sleeps"),
    ("capture.", {"LARDER_STAND_IN_CAPTURES": "strict"}, "capture spoilt"),
    ("capture.", {"LARDER_STAND_IN_CAPTURES": "lenient"}, "allowed in every mode"),
    ("capture.", {"LARDER_STAND_IN_CAPTURES": "merciless"}, "FALLS: a call in the relaxed mode spoils no capture"),
]
#: Decided by a GPU alone; and a function that the captured work itself is made of is never refused.
NOT_HERE = {
    "alias.early",
    "alias.waiting",
    "capture.cuMemAllocAsync-captured",
    "capture.cuMemsetD8Async",
    "capture.cuStreamGetCtx-captured",
    "capture.cuStreamIsCapturing-captured",
}


#: Have no verdict: they spoil captures, as documents say or as was seen.
SPOILS_ALWAYS = {"capture.cuCtxSynchronize", "capture.cuStreamGetId-captured"}


def said(folder, name, environment):
    environment = {
        **os.environ,
        "LARDER_CUDA_DRIVER": "stand-in",
        "LARDER_CUDA_STAND_IN": str(folder / "bin" / "liblarder_cuda_stand_in.so"),
        **environment,
    }
    command = [str(folder / "bin" / "driver_calls"), "--probe", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return "\n".join(re.findall("^answer: .*$", done.stdout, re.MULTILINE)) or f"nothing: {done.stderr}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    names = subprocess.run(
        [str(folder / "bin" / "driver_calls"), "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    cases = [
        (name, switched, words)
        for beginning, switched, words in OTHERWISE
        for name in names
        if (name == beginning or (beginning.endswith(".") and name.startswith(beginning))) and name not in NOT_HERE
    ]
    # One at a time: some measure.
    answers, verdicts = {}, {}
    for name, switched, words in cases:
        usually, otherwise = words in said(folder, name, {}), words in said(folder, name, switched)
        if name.startswith("capture.") and "FALLS" not in words:
            # Each capture probe is switched one way at least.
            answers[name] = answers.get(name, False) or usually != otherwise
        elif name not in SPOILS_ALWAYS:
            verdicts[name] = otherwise and not usually
    blind = sorted({name for seen in (answers, verdicts) for name, both in seen.items() if not both})
    count = len({*answers, *verdicts})
    print(f"{count} probes see both answers" if not blind else f"see one answer only: {', '.join(blind)}")
    sys.exit(1 if blind else 0)


if __name__ == "__main__":
    main()
