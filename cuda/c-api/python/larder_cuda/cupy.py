"""Larder's memory for CuPy: `larder_cuda.cupy.enable()`."""

import cupy

from ._library import error, library

#: The stream of each block, on which it is freed: CuPy passes none.
_streams = {}


def _malloc(size, device):
    if size == 0:
        return 0
    stream = cupy.cuda.get_current_stream().ptr
    address = library.larder_cuda_malloc(size, device, stream)
    if address is None:
        raise error()
    _streams[address] = stream
    return address


def _free(address, device):
    library.larder_cuda_free(address, 0, device, _streams.pop(address, None))


def enable():
    """Makes CuPy allocate new arrays in Larder's memory, each in the order of the stream that is current at its
    allocation. The program orders other streams that use an array, as with CuPy's own pool."""
    allocator = cupy.cuda.PythonFunctionAllocator(_malloc, _free)
    cupy.cuda.set_allocator(allocator.malloc)
