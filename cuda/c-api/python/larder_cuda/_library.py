"""The shared object, by ctypes, with its errors as exceptions."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_ssize_t, c_uint64, c_void_p

#: Name, type of the result, types of the arguments: as in include/larder_cuda.h.
_FUNCTIONS = {
    "malloc": (c_void_p, [c_ssize_t, c_int, c_void_p]),
    "free": (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    "record_stream": (None, [c_void_p, c_void_p]),
    "forget_stream": (c_int, [c_int, c_void_p]),
    "last_error": (c_char_p, []),
    "on_stand_in": (c_int, []),
    "stats_json": (c_size_t, [c_int, c_void_p, c_size_t]),
    "snapshot_json": (c_size_t, [c_int, c_void_p, c_size_t]),
    "record_history": (c_int, [c_uint64]),
    "history_json": (c_size_t, [c_int, c_void_p, c_size_t]),
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
    "reserve": (c_uint64, [c_int, c_void_p, c_uint64, POINTER(c_void_p), POINTER(c_uint64)]),
    "commit": (c_int, [c_uint64, c_uint64, c_uint64, c_void_p]),
    "decommit": (c_int, [c_uint64, c_uint64, c_uint64, c_void_p]),
    "unreserve": (c_int, [c_uint64]),
    "reservation_tensor": (c_void_p, [c_uint64]),
    "want": (c_int, [c_uint64]),
}


class Error(RuntimeError):
    """A refusal, with Larder's text."""


class OutOfMemoryError(Error, MemoryError):
    """There was no memory. The text begins with "CUDA out of memory."."""


#: The class that is raised if there is no memory. larder_cuda.torch makes it a torch.OutOfMemoryError, too.
out_of_memory_class = OutOfMemoryError


def path():
    """Returns the path of the shared object: LARDER_CUDA_LIBRARY, otherwise the one in this package."""
    named = os.environ.get("LARDER_CUDA_LIBRARY")
    return named or os.path.join(os.path.dirname(os.path.abspath(__file__)), "liblarder_cuda.so")


def _load():
    try:
        library = ctypes.CDLL(path())
        for name, (gives, takes) in _FUNCTIONS.items():
            function = getattr(library, "larder_cuda_" + name)
            function.restype, function.argtypes = gives, takes
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"the library of larder_cuda cannot be used ({error}): install the package again from a checkout of Larder "
            "(pip install ./cuda/c-api/python), or name the liblarder_cuda.so of this version in LARDER_CUDA_LIBRARY"
        ) from None
    return library


library = _load()


def address(name):
    """Returns the address of a function, for calls from C++."""
    return ctypes.cast(getattr(library, "larder_cuda_" + name), c_void_p).value


def error():
    """Returns the exception for this thread's last refusal."""
    text = library.larder_cuda_last_error().decode(errors="replace")
    return (out_of_memory_class if text.startswith("CUDA out of memory") else Error)(text)


def check(status):
    """Raises if a function returned a refusal."""
    if status != 0:
        raise error()


def text(name, device):
    """Returns the whole text that a function writes."""
    function, room = getattr(library, "larder_cuda_" + name), 4096
    while True:
        buffer = ctypes.create_string_buffer(room)
        needed = function(device, buffer, room)
        if needed < room:
            return buffer.value.decode()
        # The text may have grown since the call.
        room = 2 * needed
