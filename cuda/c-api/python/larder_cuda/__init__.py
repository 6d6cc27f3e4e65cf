"""GPU memory by Larder, for PyTorch, CuPy, RMM and Python programs.

    import larder_cuda.torch
    larder_cuda.torch.enable()          # before the first tensor on a GPU

    for batch in batches:
        with larder_cuda.step():        # repeated allocations get planned places; a job obeys its control file
            train(batch)

    print(larder_cuda.memory_summary())

Counters have the names of those in torch.cuda. See docs/guide/src/pytorch.md.
"""

from ._library import Error, OutOfMemoryError, error as _error, library as _functions
from .memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_peak_memory_stats,
    set_budget,
    set_in_place,
    set_limit,
    set_per_process_memory_fraction,
    step,
    want,
)
from .reserved import Reservation

__all__ = [
    "Error",
    "OutOfMemoryError",
    "Reservation",
    "empty_cache",
    "free",
    "malloc",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_peak_memory_stats",
    "set_budget",
    "set_in_place",
    "set_limit",
    "set_per_process_memory_fraction",
    "step",
    "want",
]


def malloc(size, device=0, stream=None):
    """Allocates memory for work that is queued on the stream (its handle, None for the default stream) from now
    on. Returns its address, 0 for no bytes."""
    address = _functions.larder_cuda_malloc(size, device, stream)
    if address is None and size != 0:
        raise _error()
    return address or 0


def free(address, device=0, stream=None):
    """Frees memory. Work that uses it must be queued on the stream."""
    _functions.larder_cuda_free(address, 0, device, stream)
