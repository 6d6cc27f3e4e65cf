"""The shared object, by ctypes; errors of it as exceptions."""

import ctypes
import os
from ctypes import c_char_p, c_double, c_int, c_size_t, c_ssize_t, c_uint64, c_void_p

#: Name, what it gives, what it takes: as include/larder_cuda.h has it.
_FUNCTIONS = {
    "malloc": (c_void_p, [c_ssize_t, c_int, c_void_p]),
    "free": (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    "record_stream": (None, [c_void_p, c_void_p]),
    "forget_stream": (c_int, [c_int, c_void_p]),
    "last_error": (c_char_p, []),
    "stats_json": (c_size_t, [c_int, c_void_p, c_size_t]),
    "snapshot_json": (c_size_t, [c_int, c_void_p, c_size_t]),
    "reset_peaks": (c_int, [c_int]),
    "empty_cache": (None, []),
    "set_limit": (c_int, [c_int, c_uint64]),
    "set_in_place": (c_int, [c_int]),
    "set_budget": (c_int, [c_int, c_uint64]),
    "set_memory_fraction": (None, [c_double, c_int]),
    "begin_step": (c_int, [c_int, c_void_p]),
    "end_step": (c_int, [c_int, c_void_p]),
    "open_window": (c_uint64, [c_int, c_void_p, c_uint64]),
    "close_window": (c_int, [c_uint64]),
    "end_window": (c_int, [c_uint64]),
    "want": (c_int, [c_uint64]),
}


class Error(RuntimeError):
    """What Larder refused, in its words."""


class OutOfMemoryError(Error, MemoryError):
    """There was no memory. The text begins with "CUDA out of memory."."""


def path():
    """Where the shared object is: as LARDER_CUDA_LIBRARY says, or in this package."""
    named = os.environ.get("LARDER_CUDA_LIBRARY")
    return named or os.path.join(os.path.dirname(os.path.abspath(__file__)), "liblarder_cuda.so")


def _load():
    library = ctypes.CDLL(path())
    for name, (gives, takes) in _FUNCTIONS.items():
        function = getattr(library, "larder_cuda_" + name)
        function.restype, function.argtypes = gives, takes
    return library


library = _load()


def address(name):
    """The address of a function, for whoever calls it from C++."""
    return ctypes.cast(getattr(library, "larder_cuda_" + name), c_void_p).value


def error():
    """The exception for what was refused last in this thread."""
    text = library.larder_cuda_last_error().decode(errors="replace")
    return (OutOfMemoryError if text.startswith("CUDA out of memory") else Error)(text)


def check(status):
    """Raises if a function answered with a refusal."""
    if status != 0:
        raise error()


def text(name, device):
    """A text that a function writes, whole."""
    function, room = getattr(library, "larder_cuda_" + name), 4096
    while True:
        buffer = ctypes.create_string_buffer(room)
        needed = function(device, buffer, room)
        if needed < room:
            return buffer.value.decode()
        # It may have grown meanwhile.
        room = 2 * needed
