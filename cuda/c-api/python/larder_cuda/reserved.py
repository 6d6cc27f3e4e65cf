"""Reservations: addresses that never change, with memory behind the committed parts only."""

import ctypes
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_char_p, c_int, c_uint64, c_void_p, py_object

from ._library import check, error, library
from .memory import device_number, stream_handle

#: kDLCUDA, and the name of a capsule whose tensor no library has taken. A capsule keeps the name's address.
_CUDA, _UNTAKEN = 2, b"dltensor"

_new_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_is_capsule = PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", c_uint64 * 6), ("context", c_void_p), ("deleter", CFUNCTYPE(None, c_void_p))]


@PYFUNCTYPE(None, c_void_p)
def _delete_untaken(capsule):
    """Deletes the tensor of a capsule, unless a library has taken it."""
    if _is_capsule(capsule, _UNTAKEN):
        tensor = _pointer(capsule, _UNTAKEN)
        _ManagedTensor.from_address(tensor).deleter(tensor)


class Reservation:
    """Addresses for `size` bytes that never change, without memory until it is committed.

    Memory comes and goes in units of `unit_size` bytes. Streams are handles, or PyTorch's or CuPy's streams; None is
    PyTorch's current stream, otherwise the default one. Call `end` when no work uses the memory, or make a tensor of
    all bytes, as of any object with DLPack: `torch.from_dlpack(reservation)`. The reservation then ends with the
    tensor. No work may access a part that is not committed. `larder_cuda.h` has the details.
    """

    def __init__(self, size, device=None, stream=None):
        self.size, self.device = size, device_number(device)
        address, unit_size = c_void_p(), c_uint64()
        self._number = library.larder_cuda_reserve(
            self.device, stream_handle(self.device, stream), size, address, unit_size
        )
        if self._number == 0:
            raise error()
        self.address, self.unit_size = address.value or 0, unit_size.value

    def commit(self, offset, size, stream=None):
        """Puts memory behind bytes, for work that is queued on the stream from now on. The contents are undefined."""
        check(library.larder_cuda_commit(self._number, offset, size, stream_handle(self.device, stream)))

    def decommit(self, offset, size, stream=None):
        """Undoes a commit. Work that uses these bytes must be queued on the stream."""
        check(library.larder_cuda_decommit(self._number, offset, size, stream_handle(self.device, stream)))

    def end(self):
        """Frees memory and addresses in the order of the reservation's stream."""
        check(library.larder_cuda_unreserve(self._number))

    def __dlpack_device__(self):
        return _CUDA, self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Returns all bytes as a tensor. Nothing is in them, so no stream has to wait."""
        del stream, max_version
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a reservation is not copied, because not all of it has memory")
        tensor = library.larder_cuda_reservation_tensor(self._number)
        if tensor is None:
            raise error()
        return _new_capsule(tensor, _UNTAKEN, ctypes.cast(_delete_untaken, c_void_p))
