"""The functions of the package `larder_cuda`, on a stand-in of 64 GiB."""

import json

import larder_cuda
from larder_cuda.memory import device_number

MIB = 1 << 20


class Named:
    """A device as PyTorch has it."""

    def __init__(self, index):
        self.index = index

    def __str__(self):
        return "cuda"


assert [device_number(device) for device in (None, 1, "cuda", "cuda:1", Named(1), Named(None))] == [0, 1, 0, 1, 1, 0]
assert larder_cuda.memory_allocated() == 0 and larder_cuda.memory_reserved(1) == 0

larder_cuda.set_in_place(1)
larder_cuda.set_budget(64 * MIB, 1)
try:
    larder_cuda.malloc(65 * MIB, device=1)
    raise AssertionError("64 MiB are all")
except larder_cuda.OutOfMemoryError:
    pass
larder_cuda.free(larder_cuda.malloc(64 * MIB, device=1), device=1)
for choose in (larder_cuda.set_in_place, lambda device: larder_cuda.set_budget(MIB * 64, device)):
    try:
        choose(1)
        raise AssertionError("it is in use")
    except larder_cuda.Error as error:
        assert "device 1 is in use" in str(error)

blocks = [larder_cuda.malloc(size * MIB) for size in (1, 2, 4)]
assert larder_cuda.malloc(0) == 0
larder_cuda.free(blocks.pop(1))
stats = larder_cuda.memory_stats()
assert stats["allocation.all.current"] == 2 and stats["allocation.all.freed"] == 1
assert stats["allocated_bytes.all.current"] == 5 * MIB == larder_cuda.memory_allocated()
assert stats["allocated_bytes.all.peak"] == 7 * MIB == larder_cuda.max_memory_allocated()
assert stats["reserved_bytes.all.current"] == larder_cuda.memory_reserved() == 8 * MIB
assert stats["requested_bytes.large_pool.current"] == 5 * MIB

segments = larder_cuda.memory_snapshot()
assert sum(segment["total_size"] for segment in segments) == larder_cuda.memory_reserved()
assert sum(segment["allocated_size"] for segment in segments) == 5 * MIB
used = [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]
assert sorted(block["address"] for block in used) == sorted(blocks)
assert [block["requested_size"] for block in used] == [MIB, 4 * MIB]
assert "5.00 MiB       7.00 MiB" in larder_cuda.memory_summary()

larder_cuda.reset_peak_memory_stats()
assert larder_cuda.max_memory_allocated() == 5 * MIB
for block in blocks:
    larder_cuda.free(block)
larder_cuda.empty_cache()
assert larder_cuda.memory_reserved() == 0

larder_cuda.set_per_process_memory_fraction(1 / 1024)
try:
    larder_cuda.malloc(65 * MIB)
    raise AssertionError("64 MiB are all")
except larder_cuda.OutOfMemoryError as error:
    assert str(error).startswith("CUDA out of memory. ")
assert larder_cuda.memory_stats()["num_ooms"] == 1
larder_cuda.set_limit(128 * MIB)
larder_cuda.free(larder_cuda.malloc(65 * MIB))
try:
    larder_cuda.set_per_process_memory_fraction(1.5)
    raise AssertionError("no share")
except ValueError:
    pass
try:
    larder_cuda.malloc(1, device=9)
    raise AssertionError("no device")
except larder_cuda.OutOfMemoryError:
    raise
except larder_cuda.Error:
    pass

with larder_cuda.step():
    with larder_cuda.step(0, None):
        larder_cuda.free(larder_cuda.malloc(MIB))
try:
    with larder_cuda.step():
        raise KeyError("the step ends all the same")
except KeyError:
    pass
larder_cuda.want(MIB)
print(json.dumps({"passed": True}))
