"""The functions of the package `larder`, on a stand-in of 64 GiB."""

import json

import larder
from larder.memory import device_number

MIB = 1 << 20


class Named:
    """A device as PyTorch has it."""

    def __init__(self, index):
        self.index = index

    def __str__(self):
        return "cuda"


assert [device_number(device) for device in (None, 1, "cuda", "cuda:1", Named(1), Named(None))] == [0, 1, 0, 1, 1, 0]
assert larder.memory_allocated() == 0 and larder.memory_reserved(1) == 0

larder.set_in_place(1)
larder.set_budget(64 * MIB, 1)
try:
    larder.malloc(65 * MIB, device=1)
    raise AssertionError("64 MiB are all")
except larder.OutOfMemoryError:
    pass
larder.free(larder.malloc(64 * MIB, device=1), device=1)
for choose in (larder.set_in_place, lambda device: larder.set_budget(MIB * 64, device)):
    try:
        choose(1)
        raise AssertionError("it is in use")
    except larder.Error as error:
        assert "device 1 is in use" in str(error)

blocks = [larder.malloc(size * MIB) for size in (1, 2, 4)]
assert larder.malloc(0) == 0
larder.free(blocks.pop(1))
stats = larder.memory_stats()
assert stats["allocation.all.current"] == 2 and stats["allocation.all.freed"] == 1
assert stats["allocated_bytes.all.current"] == 5 * MIB == larder.memory_allocated()
assert stats["allocated_bytes.all.peak"] == 7 * MIB == larder.max_memory_allocated()
assert stats["reserved_bytes.all.current"] == larder.memory_reserved() == 8 * MIB
assert stats["requested_bytes.large_pool.current"] == 5 * MIB

segments = larder.memory_snapshot()
assert sum(segment["total_size"] for segment in segments) == larder.memory_reserved()
assert sum(segment["allocated_size"] for segment in segments) == 5 * MIB
used = [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]
assert sorted(block["address"] for block in used) == sorted(blocks)
assert [block["requested_size"] for block in used] == [MIB, 4 * MIB]
assert "5.00 MiB       7.00 MiB" in larder.memory_summary()

larder.reset_peak_memory_stats()
assert larder.max_memory_allocated() == 5 * MIB
for block in blocks:
    larder.free(block)
larder.empty_cache()
assert larder.memory_reserved() == 0

larder.set_per_process_memory_fraction(1 / 1024)
try:
    larder.malloc(65 * MIB)
    raise AssertionError("64 MiB are all")
except larder.OutOfMemoryError as error:
    assert str(error).startswith("CUDA out of memory. ")
assert larder.memory_stats()["num_ooms"] == 1
larder.set_limit(128 * MIB)
larder.free(larder.malloc(65 * MIB))
try:
    larder.set_per_process_memory_fraction(1.5)
    raise AssertionError("no share")
except ValueError:
    pass
try:
    larder.malloc(1, device=9)
    raise AssertionError("no device")
except larder.OutOfMemoryError:
    raise
except larder.Error:
    pass

with larder.step():
    with larder.step(0, None):
        larder.free(larder.malloc(MIB))
try:
    with larder.step():
        raise KeyError("the step ends all the same")
except KeyError:
    pass
larder.want(MIB)
print(json.dumps({"passed": True}))
