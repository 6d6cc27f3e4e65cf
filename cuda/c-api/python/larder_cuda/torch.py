"""Larder's memory for PyTorch.

    import larder_cuda.torch
    larder_cuda.torch.enable()     # before PyTorch has used a GPU
"""

import contextlib
import json
import math
import sys

import torch

from . import _library, memory
from ._library import address, check, error, library, path, text
from .reserved import Reservation

__all__ = [
    "CaptureWindow",
    "GrowingTensor",
    "OutOfMemoryError",
    "capture_window",
    "enable",
    "growing",
    "is_enabled",
]

#: What a program is told that would run PyTorch's kernels on the stand-in.
_NO_KERNELS = (
    "PyTorch cannot compute on the stand-in (LARDER_CUDA_DRIVER), because its kernels need a GPU: unset "
    "LARDER_CUDA_DRIVER if there is one; without one, the functions of larder_cuda itself work (malloc, free, step, "
    "Reservation, the counters), and `larder replay` plays recorded programs"
)

_enabled = None

#: Actions that are left out of the history.
_skipped = frozenset()


class OutOfMemoryError(_library.OutOfMemoryError, torch.OutOfMemoryError):
    """There was no memory. Once this module is imported, larder_cuda raises this class."""


_library.out_of_memory_class = OutOfMemoryError


def enable(counters=True):
    """Makes PyTorch allocate GPU memory from Larder. It cannot be undone; further calls do nothing.

    With `counters`, PyTorch's own functions (torch.cuda.memory_stats and those based on it, memory_summary,
    memory_snapshot, reset_peak_memory_stats, memory._record_memory_history) use Larder's counters. PyTorch has no
    hook for them, so the functions of torch._C that raise for every custom allocator are replaced.

    PyTorch's functions use the counters only once PyTorch has initialised a GPU. Until then memory_stats is empty,
    memory_summary raises KeyError and a snapshot has no devices. PyTorch cannot initialise the stand-in: its first use
    of a GPU raises, as it does without a driver. There, call the functions of larder_cuda itself, such as
    larder_cuda.memory_summary() and larder_cuda.memory_stats().
    """
    global _enabled
    if _enabled is not None:
        return
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError("this PyTorch knows no CUDA: install a build with CUDA")
    if torch.cuda.is_initialized():
        raise RuntimeError("PyTorch has used a GPU already: call larder_cuda.torch.enable() before")
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
    _check_driver_at_first_use()
    if counters:
        torch._C._cuda_memoryStats = memory.memory_stats_as_nested_dict
        torch._C._cuda_resetPeakMemoryStats = memory.reset_peak_memory_stats
        torch._C._cuda_resetAccumulatedMemoryStats = memory.reset_peak_memory_stats
        torch._C._cuda_memorySnapshot = _snapshot
        torch._C._cuda_record_memory_history = _record_history
        torch._C._cuda_record_memory_history_legacy = _record_history_legacy


def is_enabled():
    """Returns whether PyTorch allocates from Larder."""
    return _enabled is not None


def _check_driver():
    """Raises if Larder's driver is the stand-in, or cannot be loaded."""
    on_stand_in = library.larder_cuda_on_stand_in()
    if on_stand_in < 0:
        refusal = str(error())
        # Advice for other programs.
        without_advice = refusal.removesuffix(", or set LARDER_CUDA_DRIVER=stand-in")
        if without_advice != refusal:
            raise _library.Error(without_advice)
        raise _library.Error(f"{refusal}. PyTorch needs NVIDIA's driver: it cannot compute on the stand-in.")
    if on_stand_in:
        raise RuntimeError(_NO_KERNELS)


def _check_driver_at_first_use():
    """Makes PyTorch check the driver before it initialises CUDA. Loading the driver now would keep forked processes from
    using it."""
    initialise = torch.cuda._lazy_init

    def check_and_initialise():
        _check_driver()
        torch.cuda._lazy_init = initialise
        initialise()

    torch.cuda._lazy_init = check_and_initialise


def _history(device):
    events = json.loads(text("history_json", device))
    return [{**event, "frames": []} for event in events if event["action"] not in _skipped]


def _snapshot(mempool_id=None):
    del mempool_id
    devices = range(torch.cuda.device_count())
    segments = [segment for device in devices for segment in memory.memory_snapshot(device)]
    return {
        "segments": segments,
        "device_traces": [_history(device) for device in devices],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _record_history(
    enabled="all",
    context=None,
    stacks=None,
    max_entries=sys.maxsize,
    clear=False,
    compiled=False,
    annotations=False,
    skip=(),
):
    """Starts a history without stacks, or ends it. "state" records nothing, because PyTorch only adds stacks to the
    segments then."""
    del context, stacks, clear, compiled, annotations
    global _skipped
    if enabled not in (None, "state", "all"):
        raise ValueError(f'enabled is {enabled!r}: pass None, "state" or "all"')
    check(library.larder_cuda_record_history(max_entries if enabled == "all" else 0))
    _skipped = frozenset(skip)


def _record_history_legacy(enabled, context=True, max_entries=1, *others):
    del context, others
    _record_history("all" if enabled else None, max_entries=max_entries)


def __dir__():
    return __all__


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
        with larder_cuda.torch.capture_window(1 << 30, stream) as window:
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


class GrowingTensor:
    """A tensor that grows and shrinks at one address; see `growing`.

    `tensor` has the shape for which there are addresses, `rows` is the number of its first rows that have memory.
    """

    def __init__(self, max_shape, dtype, device=None, stream=None):
        _check_driver()
        max_shape = tuple(max_shape)
        self._row_size = math.prod(max_shape[1:]) * dtype.itemsize
        self._reservation = Reservation(max_shape[0] * self._row_size, device, stream)
        self.tensor = torch.from_dlpack(self._reservation).view(dtype).view(max_shape)
        self.rows = 0

    def _committed_size(self, rows):
        """Returns the size of the units that the first rows touch."""
        unit_size, size = self._reservation.unit_size, self._reservation.size
        return min(-(-rows * self._row_size // unit_size) * unit_size, size)

    def grow_to(self, rows, stream=None):
        """Puts memory behind the first rows, for work that is queued on the stream (by default the current one) from
        now on. The new rows are undefined. Fewer rows than now change nothing. Raises OutOfMemoryError, which is a
        torch.OutOfMemoryError, with nothing changed, if there is no memory."""
        if rows > self.tensor.shape[0]:
            raise ValueError(f"{rows} rows are too many: the tensor has room for {self.tensor.shape[0]}")
        if rows <= self.rows:
            return
        begin, end = self._committed_size(self.rows), self._committed_size(rows)
        self._reservation.commit(begin, end - begin, stream)
        self.rows = rows

    def shrink_to(self, rows, stream=None):
        """Frees the memory behind all but the first rows. Work that uses it must be queued on the stream (by default
        the current one), or be ordered before work that is already queued there. More rows than now change nothing."""
        if rows < 0:
            raise ValueError(f"{rows} rows cannot be")
        if rows >= self.rows:
            return
        begin, end = self._committed_size(rows), self._committed_size(self.rows)
        self._reservation.decommit(begin, end - begin, stream)
        self.rows = rows

    def view(self, rows=None):
        """Returns a view of the first rows, by default of all that have memory."""
        rows = self.rows if rows is None else rows
        if not 0 <= rows <= self.rows:
            raise ValueError(f"{rows} rows were requested, and {self.rows} have memory: call grow_to first")
        return self.tensor.narrow(0, 0, rows)


def growing(max_shape, dtype, device=None, stream=None):
    """Makes a tensor that can grow to `max_shape` in its first dimension, at one address and without a copy: a cache
    whose size follows the traffic. Views, and graphs that were captured, stay valid while it grows. It has no memory
    yet.

        cache = larder_cuda.torch.growing((1 << 20, 8, 128), torch.bfloat16)
        cache.grow_to(4096)
        cache.view().zero_()                # the 4096 rows that have memory
        kernel(cache.tensor, rows=4096)     # a kernel of your own may take the whole tensor
        cache.shrink_to(1024)

    PyTorch does not know that only the first rows of `cache.tensor` have memory. Nothing may access more: no `zero_()`,
    `clone()`, `cpu()`, `print` or `torch.save` of the whole tensor, nor torch.save of a view, which saves the whole
    storage. An access of other rows is an illegal access, after which the process cannot use the device. The same goes
    for a view, or the launch of a graph, that uses rows after shrink_to has freed them. In a capture, grow_to and
    shrink_to are refused.

    All memory is freed when the object, the tensor and all views are gone, in the order of `stream`: by default the
    stream that is current now. Work on other streams must be ordered before work of that stream by then; record_stream
    has no effect. One thread at a time may call grow_to and shrink_to.
    """
    return GrowingTensor(max_shape, dtype, device, stream)
