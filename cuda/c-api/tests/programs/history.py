"""The recorded history of the package: `history.py FILE` writes a snapshot for `larder replay`."""

import ctypes
import json
import os
import pickle
import sys
import time

import larder_cuda
from larder_cuda._library import check, library, text

MIB = 1 << 20


def history(device=0):
    return json.loads(text("history_json", device))


def record(entries):
    check(library.larder_cuda_record_history(entries))


def actions(device=0):
    return [event["action"] for event in history(device)]


# Off until it is started.
larder_cuda.free(larder_cuda.malloc(MIB))
assert history() == []

record(100)
start = time.time_ns() // 1000
first = larder_cuda.malloc(MIB)
second = larder_cuda.malloc(2 * MIB, device=1)
larder_cuda.free(first)
larder_cuda.free(first)
larder_cuda.set_limit(64 * MIB)
try:
    larder_cuda.malloc(65 * MIB)
    raise AssertionError("64 MiB are all")
except larder_cuda.OutOfMemoryError:
    pass
alloc, requested, completed, refused = history()
assert [alloc["action"], requested["action"], completed["action"]] == ["alloc", "free_requested", "free_completed"]
for event in (alloc, requested, completed):
    assert (event["addr"], event["size"], event["stream"]) == (first, MIB, 0), event
    assert start <= event["time_us"] <= time.time_ns() // 1000
assert refused["action"] == "oom" and refused["size"] == 65 * MIB and "addr" not in refused
assert refused["device_free"] == 64 * MIB - larder_cuda.memory_reserved()
assert [(event["action"], event["addr"]) for event in history(1)] == [("alloc", second)]

# A ring of four: the newest, of all devices.
record(4)
assert history() == []
for size in (1, 2, 3):
    larder_cuda.free(larder_cuda.malloc(size * MIB))
assert actions() == ["free_completed", "alloc", "free_requested", "free_completed"]
assert [event["size"] for event in history()] == [2 * MIB, 3 * MIB, 3 * MIB, 3 * MIB]
larder_cuda.free(second, device=1)
assert actions() == ["free_requested", "free_completed"] == actions(1)

# A refused free leaves the block in use.
driver = ctypes.CDLL(os.environ["LARDER_CUDA_STAND_IN"])


def call(name, *arguments):
    code = getattr(driver, name)(*arguments)
    assert code == 0, f"{name}: {code}"


context, stream, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuStreamCreate", ctypes.byref(stream), 1)
larder_cuda.free(larder_cuda.malloc(MIB, stream=stream.value), stream=stream.value)
block = larder_cuda.malloc(MIB)
call("cuStreamBeginCapture_v2", stream, 0)
record(10)
larder_cuda.free(block, stream=2)
assert actions() == ["free_requested", "free_completed", "alloc"], actions()
call("cuStreamEndCapture", stream, ctypes.byref(graph))
larder_cuda.free(block)
assert actions()[3:] == ["free_requested", "free_completed"]

# A number without an end is cut.
record(sys.maxsize)
blocks = [larder_cuda.malloc(size * MIB) for size in (1, 2, 4)]
larder_cuda.free(blocks[1])
events = [{**event, "frames": []} for event in history()]
with open(sys.argv[1], "wb") as file:
    pickle.dump({"segments": larder_cuda.memory_snapshot(), "device_traces": [events]}, file)
record(0)
assert history() == []
larder_cuda.free(blocks[0])
assert history() == []
print(json.dumps({"passed": True}))
