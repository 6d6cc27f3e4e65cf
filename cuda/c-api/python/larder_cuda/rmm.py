"""Larder's memory for RMM, and for cuDF and cuML: `larder_cuda.rmm.enable()`.

A C++ program passes larder_cuda_rmm_allocate and larder_cuda_rmm_deallocate to
rmm::mr::callback_memory_resource.
"""

import rmm

from ._library import error, library
from .memory import device_number


def _handle(stream):
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise TypeError("the streams of this RMM do not tell their handles: take a newer RMM")
    return protocol()[1]


def enable(device=None):
    """Makes Larder RMM's current resource of a device."""
    number = device_number(device)

    def allocate(size, stream):
        address = library.larder_cuda_malloc(size, number, _handle(stream))
        if address is None and size != 0:
            raise error()
        return address or 0

    def deallocate(address, size, stream):
        library.larder_cuda_free(address, size, number, _handle(stream))

    resource = rmm.mr.CallbackMemoryResource(allocate, deallocate)
    rmm.mr.set_per_device_resource(number, resource)
    return resource
