"""train.c once more, by the package `larder_cuda`: `train.py TRACE`."""

import ctypes
import json
import os
import sys

import larder_cuda

driver = ctypes.CDLL(os.environ["LARDER_CUDA_STAND_IN"])


def call(name, *arguments):
    code = getattr(driver, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def new_stream(device):
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream.value


def play(events, players):
    held = [{} for _ in players]
    for kind, block, size in events:
        for blocks, (device, stream) in zip(held, players):
            if kind == "a":
                blocks[block] = larder_cuda.malloc(size, device, stream)
            elif kind == "f":
                larder_cuda.free(blocks.pop(block), device, stream)
    # What the run left.
    for blocks, (device, stream) in zip(held, players):
        for block in sorted(blocks):
            larder_cuda.free(blocks[block], device, stream)


events = []
with open(sys.argv[1]) as trace:
    for line in trace:
        words = line.split()
        if words and words[0] in "afs":
            events.append((words[0], int(words[1]), int(words[2]) if len(words) > 2 else 0))

call("cuInit", 0)
other, first, second = (1, new_stream(1)), (0, new_stream(0)), (0, new_stream(0))
play(events, [first, other])
said = {
    "first": larder_cuda.max_memory_reserved(0),
    "other": larder_cuda.memory_stats(1)["reserved_bytes.all.peak"],
}
larder_cuda.empty_cache()
larder_cuda.reset_peak_memory_stats(0)
play(events, [second])
stats = larder_cuda.memory_stats(0)
said["again"] = stats["reserved_bytes.all.peak"]
said["live"] = larder_cuda.memory_allocated(0) + larder_cuda.memory_allocated(1)
said["allocations"] = stats["allocation.all.allocated"]
said["frees"] = stats["allocation.all.freed"]
said["findings"] = driver.larder_stand_in_findings(None, ctypes.c_uint64(0))
print(json.dumps(said))
