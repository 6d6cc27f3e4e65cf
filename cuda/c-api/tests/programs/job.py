"""job.c once more, by the package `larder_cuda`: `job.py MIB FILE`."""

import os
import sys
import time

import larder_cuda

BYTES = (1 << 20) - 256
blocks, file = int(sys.argv[1]), sys.argv[2]
step = 0
while not os.path.exists(file):
    with larder_cuda.step():
        held = [larder_cuda.malloc(BYTES) for _ in range(blocks)]
        for block in held:
            larder_cuda.free(block)
    step += 1
    print(step, flush=True)
    time.sleep(0.001)
