"""larder_cuda.rmm.enable() with an RMM that may have no GPU: says "skipped" without one."""

import json
import sys

try:
    import rmm
    from rmm.pylibrmm.stream import DEFAULT_STREAM
except ImportError:
    sys.exit(print("skipped: there is no RMM"))

import larder_cuda.rmm

resource = larder_cuda.rmm.enable(0)
assert rmm.mr.get_per_device_resource(0) is resource
block = resource.allocate(1000, DEFAULT_STREAM)
assert larder_cuda.memory_allocated(0) == 1024
resource.deallocate(block, 1000, DEFAULT_STREAM)
assert larder_cuda.memory_allocated(0) == 0
try:
    resource.allocate(1 << 50, DEFAULT_STREAM)
    raise AssertionError("a pebibyte")
except MemoryError as error:
    assert "CUDA out of memory. Larder" in str(error), error
print(json.dumps({"passed": True}))
