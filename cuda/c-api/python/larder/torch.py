"""Larder's memory for PyTorch.

    import larder.torch
    larder.torch.enable()     # before PyTorch has used a GPU
"""

import contextlib

import torch

from . import memory
from ._library import address, check, error, library, path

_enabled = None


def enable(counters=True):
    """Makes PyTorch allocate GPU memory from Larder. It cannot be undone; further calls do nothing.

    With `counters`, PyTorch's own functions (torch.cuda.memory_stats and those based on it, memory_summary,
    memory_snapshot, reset_peak_memory_stats) return Larder's counters. PyTorch has no hook for them, so the
    functions of torch._C that raise for every custom allocator are replaced.
    """
    global _enabled
    if _enabled is not None:
        return
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError("this PyTorch knows no CUDA: install a build with CUDA")
    if torch.cuda.is_initialized():
        raise RuntimeError("PyTorch has used a GPU already: call larder.torch.enable() before")
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        path(), "larder_cuda_malloc_or_throw", "larder_cuda_free"
    )
    hooks = allocator.allocator()
    hooks.set_record_stream_fn(address("record_stream"))
    hooks.set_reset_fn(address("empty_cache"))
    hooks.set_memory_fraction_fn(address("set_memory_fraction"))
    torch.cuda.memory.change_current_allocator(allocator)
    # PyTorch calls it until the process ends.
    _enabled = allocator
    if counters:
        torch._C._cuda_memoryStats = memory.memory_stats_as_nested_dict
        torch._C._cuda_resetPeakMemoryStats = memory.reset_peak_memory_stats
        torch._C._cuda_resetAccumulatedMemoryStats = memory.reset_peak_memory_stats
        torch._C._cuda_memorySnapshot = _snapshot


def is_enabled():
    """Returns whether PyTorch allocates from Larder."""
    return _enabled is not None


def _snapshot(mempool_id=None):
    del mempool_id
    devices = range(torch.cuda.device_count())
    segments = [segment for device in devices for segment in memory.memory_snapshot(device)]
    return {
        "segments": segments,
        "device_traces": [[] for _ in devices],
        "allocator_settings": {},
        "external_annotations": [],
    }


class CaptureWindow:
    """The memory of a graph; see `capture_window`."""

    def __init__(self, number):
        self._number = number

    def close(self):
        """Closes the window after the capture."""
        check(library.larder_cuda_close_window(self._number))

    def end(self):
        """Frees the memory, once the graph no longer runs."""
        check(library.larder_cuda_end_window(self._number))


@contextlib.contextmanager
def capture_window(size, stream):
    """Sets `size` bytes aside for a capture of `stream`: open it around torch.cuda.graph(graph, stream=stream). The
    capture allocates from these bytes only. Call `end` of the window once the graph no longer runs.

        stream = torch.cuda.Stream()
        with larder.torch.capture_window(1 << 30, stream) as window:
            with torch.cuda.graph(graph, stream=stream):
                ...
    """
    number = library.larder_cuda_open_window(stream.device_index, stream.cuda_stream, size)
    if number == 0:
        raise error()
    window = CaptureWindow(number)
    try:
        yield window
    finally:
        window.close()
