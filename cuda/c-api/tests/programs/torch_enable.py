"""larder_cuda.torch.enable() with a PyTorch that has CUDA and may have no GPU: says "skipped" without one.
`torch_enable.py FILE` writes a snapshot for `larder replay`.

PyTorch's functions of C++ that need a GPU are not called, except for its allocator: cudart.c, which is preloaded, says
that there is a device.
"""

import json
import pickle
import sys

try:
    import torch
except ImportError:
    sys.exit(print("skipped: there is no PyTorch"))
if not hasattr(torch._C, "_cuda_customAllocator"):
    sys.exit(print("skipped: this PyTorch has no CUDA"))

import larder_cuda.torch

larder_cuda.torch.enable()
larder_cuda.torch.enable()
assert larder_cuda.torch.is_enabled()
current = torch.cuda.memory._get_current_allocator().allocator()
assert type(current).__name__ == "_CUDAPluggableAllocator", current

MIB = 1 << 20


def refused(function, error, *texts):
    try:
        function()
    except error as refusal:
        assert all(text in str(refusal) for text in texts), refusal
        return
    raise AssertionError(f"not refused: {texts}")


# PyTorch allocates, and learns of a lack of memory as from its own allocator.
allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
block = allocate(5 * MIB, 0)
refused(lambda: allocate(1 << 42, 0), torch.OutOfMemoryError, "CUDA out of memory. Larder")
refused(lambda: larder_cuda.malloc(1 << 42), torch.OutOfMemoryError, "CUDA out of memory. Larder")
refused(lambda: larder_cuda.malloc(1 << 42), larder_cuda.OutOfMemoryError, "CUDA out of memory. Larder")

# On the stand-in it does not compute, and says so.
for use in (lambda: torch.zeros(3, device="cuda"), lambda: torch.nn.Linear(2, 2).cuda(), torch.cuda.synchronize):
    refused(use, RuntimeError, "PyTorch cannot compute on the stand-in", "larder replay")

# PyTorch's functions ask for an initialised GPU first, Larder's own do not.
assert not torch.cuda.memory_stats()
assert larder_cuda.memory_stats()["allocated_bytes.all.current"] == 5 * MIB
assert "json" not in dir(larder_cuda.torch) and "enable" in dir(larder_cuda.torch)

# As if there were a GPU.
torch.cuda.memory.is_initialized = lambda: True
assert torch.cuda.memory_allocated(0) == 5 * MIB
free(block)
assert torch.cuda.memory_allocated(0) == 0
assert torch.cuda.max_memory_allocated(0) == 5 * MIB
assert torch.cuda.memory_reserved(0) >= 5 * MIB
torch.cuda.reset_peak_memory_stats(0)
assert torch.cuda.max_memory_allocated(0) == 0
assert "Allocated memory" in torch.cuda.memory_summary(0)
stats = torch.cuda.memory_stats(0)
assert stats["allocation.all.allocated"] == 1 and stats["num_ooms"] == 3
assert stats["num_device_alloc"] > 0
assert stats == larder_cuda.memory_stats(0)

# The history: off, of the newest events, without some actions, and off again.
actions = lambda: [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
assert torch.cuda.device_count() == 1 and actions() == []
torch.cuda.memory._record_memory_history(max_entries=2)
free(allocate(MIB, 0))
assert actions() == ["free_requested", "free_completed"]
torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=1)
assert actions() == []
free(allocate(MIB, 0))
assert actions() == ["free_completed"]
torch.cuda.memory._record_memory_history(skip_actions=["free_requested"])
blocks = [allocate(size * MIB, 0) for size in (1, 2, 4)]
free(blocks[1])
refused(lambda: allocate(1 << 42, 0), torch.OutOfMemoryError, "CUDA out of memory. ")
assert actions() == 3 * ["alloc"] + ["free_completed", "oom"]
torch.cuda.memory._dump_snapshot(sys.argv[1])
for enabled in ("state", None):
    torch.cuda.memory._record_memory_history(enabled)
    assert actions() == []
refused(lambda: torch.cuda.memory._record_memory_history("some"), ValueError, "enabled is 'some'")

from torch.cuda import _memory_viz

snapshot = torch.cuda.memory._snapshot()
assert "larder" not in _memory_viz.segsum(snapshot)
with open(sys.argv[1], "rb") as file:
    assert "# free completed for b 2.0MiB" in _memory_viz.trace(pickle.load(file))
print(json.dumps({"passed": True}))
