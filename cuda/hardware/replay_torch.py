#!/usr/bin/env python3
"""Replays recorded traces through an allocator of Python programs: what it holds from the driver, and its time.

    python3 replay_torch.py --allocator torch-native TRACE...

    torch-native        PyTorch's caching allocator
    torch-expandable    the same, started with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    larder-python       liblarder_cuda.so, by its Python package

Prints a line of JSON for each trace, with the names of `larder replay --json`; `pieces` counts what was taken from the driver
and given back. Traces are format v1, plain or packed
with gzip.
"""

import argparse
import gzip
import json
import os
import sys
import time


def events(path):
    """The events of a trace: (id, bytes) of an allocation, (id, None) of a free."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if packed else open)(path, "rt") as file:
        for line in file:
            words = line.split()
            if words and words[0] == "a":
                yield int(words[1]), int(words[2])
            elif words and words[0] == "f":
                yield int(words[1]), None


class Torch:
    """PyTorch's caching allocator, as programs in C++ reach it."""

    def __init__(self):
        try:
            import torch
        except ImportError:
            sys.exit("there is no PyTorch: install a build with CUDA")
        if not torch.cuda.is_available():
            sys.exit(f"PyTorch {torch.__version__} finds no GPU that it can use")
        self.torch = torch
        torch.cuda.init()
        torch.empty(1, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        # What torch.cuda.caching_allocator_alloc and _delete call, without the change of the device around it.
        raw = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
        self.alloc = lambda size: torch.cuda.caching_allocator_alloc(size, 0, stream)
        if raw is not None:
            self.alloc = lambda size: raw(size, stream)
        self.free = getattr(
            torch._C, "_cuda_cudaCachingAllocator_raw_delete", torch.cuda.caching_allocator_delete
        )

    def begin(self):
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()
        self.before = self.pieces()

    def pieces(self):
        """Segments and mapped ranges that were taken from the driver and given back."""
        stats = self.torch.cuda.memory_stats()
        return stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0)

    def figures(self):
        return self.torch.cuda.max_memory_reserved(), self.pieces() - self.before


class Larder:
    """Larder's memory, by its functions of C."""

    def __init__(self):
        import larder_cuda

        self.larder = larder_cuda
        self.alloc = larder_cuda.malloc
        self.free = larder_cuda.free
        larder_cuda.free(larder_cuda.malloc(1))

    def begin(self):
        self.larder_cuda.empty_cache()
        self.larder_cuda.reset_peak_memory_stats()
        self.before = self.pieces()

    def pieces(self):
        """Handles that were taken from the driver and given back."""
        stats = self.larder_cuda.memory_stats()
        return stats["num_device_alloc"] + stats["num_device_free"]

    def figures(self):
        return self.larder_cuda.max_memory_reserved(), self.pieces() - self.before


def replay(allocator, path):
    """One trace; gives everything back."""
    program = list(events(path))
    allocator.begin()
    alloc, free = allocator.alloc, allocator.free
    places, live, peak, sizes = {}, 0, 0, {}
    for name, size in program:
        if size is None:
            live -= sizes[name]
        else:
            sizes[name] = size
            live += size
            peak = max(peak, live)
    start = time.perf_counter()
    for name, size in program:
        if size is None:
            free(places.pop(name))
        else:
            places[name] = alloc(size)
    took = time.perf_counter() - start
    reserved, pieces = allocator.figures()
    for place in places.values():
        free(place)
    # What the loop takes by itself.
    start = time.perf_counter()
    for name, size in program:
        if size is None:
            places.pop(name, None)
        else:
            places[name] = size
    took -= time.perf_counter() - start
    return {
        "peak_live_bytes": peak,
        "peak_reserved_bytes": reserved,
        "pieces": pieces,
        "ns_per_operation": 1e9 * took / len(program),
        "completed": True,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocator", required=True, choices=["torch-native", "torch-expandable", "larder-python"])
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    given = parser.parse_args()
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
    if (given.allocator == "torch-expandable") != ("expandable_segments:True" in settings):
        sys.exit("expandable segments are PYTORCH_CUDA_ALLOC_CONF's to switch on, before PyTorch starts")
    allocator = Larder() if given.allocator == "larder-python" else Torch()
    for path in given.traces:
        figures = {"trace": os.path.basename(path).split(".")[0], "allocator": given.allocator}
        try:
            figures.update(replay(allocator, path))
        except (OSError, RuntimeError) as error:
            # A file that is not there, or no memory; what the trace holds is given back with the process.
            figures["error"] = str(error).splitlines()[0]
        print(json.dumps(figures), flush=True)
        if "error" in figures:
            break


if __name__ == "__main__":
    main()
