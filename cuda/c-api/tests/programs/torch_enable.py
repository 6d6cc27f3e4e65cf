"""larder_cuda.torch.enable() with a PyTorch that has CUDA and may have no GPU: says "skipped" without one.

PyTorch's functions of C++ that need a GPU are not called; what it would call is called through ctypes.
"""

import json
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

# As if there were a GPU: PyTorch asks before it looks at counters.
torch.cuda.memory.is_initialized = lambda: True
block = larder_cuda.malloc(5 << 20)
assert torch.cuda.memory_allocated(0) == 5 << 20
larder_cuda.free(block)
assert torch.cuda.memory_allocated(0) == 0
assert torch.cuda.max_memory_allocated(0) == 5 << 20
assert torch.cuda.memory_reserved(0) >= 5 << 20
torch.cuda.reset_peak_memory_stats(0)
assert torch.cuda.max_memory_allocated(0) == 0
assert "Allocated memory" in torch.cuda.memory_summary(0)
stats = torch.cuda.memory_stats(0)
assert stats["allocation.all.allocated"] == 1 and stats["num_ooms"] == 0
assert stats["num_device_alloc"] > 0
assert stats == larder_cuda.memory_stats(0)

from torch.cuda import _memory_viz

snapshot = larder_cuda.torch._snapshot()
snapshot["segments"] = larder_cuda.memory_snapshot(0)
assert "larder" not in _memory_viz.segsum(snapshot)
print(json.dumps({"passed": True}))
