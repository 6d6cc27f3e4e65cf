"""Reservations of the package, and larder_cuda.torch.growing(): with PyTorch if there is one with CUDA, which may have
no GPU, otherwise with as much of it as growing() needs."""

import ctypes
import gc
import json
import os
import sys
import types

try:
    import torch
except ImportError:
    torch = None
if torch is not None and not hasattr(torch._C, "_cuda_customAllocator"):
    torch = None


class Storage:
    """What a capsule's tensor owns."""

    def __init__(self, capsule):
        take = ctypes.pythonapi.PyCapsule_GetPointer
        take.restype, take.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.tensor = take(capsule, b"dltensor")
        rename = ctypes.pythonapi.PyCapsule_SetName
        rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
        rename(capsule, b"used_dltensor")
        words = (ctypes.c_uint64 * 8).from_address(self.tensor)
        self.address, self.size = words[0], ctypes.c_int64.from_address(words[3]).value
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(words[7])

    def __del__(self):
        self.deleter(self.tensor)


class Tensor:
    """As much of torch.Tensor as the test needs."""

    def __init__(self, storage, shape, dtype):
        self.storage, self.shape, self.dtype = storage, shape, dtype

    def view(self, how):
        if isinstance(how, tuple):
            return Tensor(self.storage, how, self.dtype)
        (size,) = self.shape
        return Tensor(self.storage, (size // how.itemsize,), how)

    def narrow(self, dimension, begin, count):
        assert (dimension, begin) == (0, 0)
        return Tensor(self.storage, (count, *self.shape[1:]), self.dtype)

    def data_ptr(self):
        return self.storage.address


def from_dlpack(tensor):
    assert tensor.__dlpack_device__() == (2, 0)
    storage = Storage(tensor.__dlpack__(stream=1, max_version=(1, 0)))
    return Tensor(storage, (storage.size,), None)


if torch is None:
    torch = types.ModuleType("torch")
    torch.bfloat16, torch.uint8 = types.SimpleNamespace(itemsize=2), types.SimpleNamespace(itemsize=1)
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: False)
    torch.from_dlpack = from_dlpack
    torch.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
    sys.modules["torch"] = torch
else:
    # As if there were a GPU: PyTorch asks for it before it takes a tensor, and for the stream of the tensor.
    torch.cuda._lazy_init = lambda: None
    torch.cuda.current_stream = lambda device=None: types.SimpleNamespace(cuda_stream=0)

import larder_cuda
import larder_cuda.torch

MIB = 1 << 20
driver = ctypes.CDLL(os.environ["LARDER_CUDA_STAND_IN"])


def call(name, *arguments):
    code = getattr(driver, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def fill(address, byte, size):
    call("cuMemsetD8_v2", ctypes.c_uint64(address), byte, ctypes.c_size_t(size))


def byte_at(address):
    byte = ctypes.c_uint8()
    call("cuMemcpyDtoH_v2", ctypes.byref(byte), ctypes.c_uint64(address), ctypes.c_size_t(1))
    return byte.value


def refused(function, error, text):
    try:
        function()
    except error as refusal:
        assert text in str(refusal), refusal
        return
    raise AssertionError(f"not refused: {text}")


call("cuInit", 0)
context = ctypes.c_void_p()
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)

# A reservation by itself.
own = larder_cuda.Reservation(4096 * MIB, 0, None)
assert own.unit_size == 4 * MIB and larder_cuda.memory_allocated(0) == 0
own.commit(0, 1)
fill(own.address, 3, own.unit_size)
own.commit(own.unit_size, own.unit_size, 0)
assert byte_at(own.address) == 3 and larder_cuda.memory_allocated(0) == 8 * MIB
refused(lambda: own.decommit(0, 3 * own.unit_size), larder_cuda.Error, "not committed")
refused(lambda: own.commit(own.size, 1), larder_cuda.Error, "outside of the reservation")
own.decommit(0, own.unit_size)
assert larder_cuda.memory_allocated(0) == 4 * MIB
own.end()
assert larder_cuda.memory_allocated(0) == 0
refused(own.end, larder_cuda.Error, "no such reservation")
refused(own.__dlpack__, larder_cuda.Error, "no such reservation")
refused(lambda: larder_cuda.Reservation(1 << 60, 0), larder_cuda.Error, "")

# A capsule that no library takes ends its reservation, too.
own = larder_cuda.Reservation(64 * MIB, 0)
own.commit(0, 10)
refused(lambda: own.__dlpack__(copy=True), BufferError, "not copied")
refused(lambda: own.__dlpack__(dl_device=(1, 0)), BufferError, "not copied")
capsule = own.__dlpack__()
refused(own.end, larder_cuda.Error, "ends with its tensor")
assert larder_cuda.memory_allocated(0) == 2 * MIB
del capsule
assert larder_cuda.memory_allocated(0) == 0

# PyTorch is refused on the stand-in; what follows runs no kernel of it.
refused(lambda: larder_cuda.torch.growing((1,), torch.uint8), RuntimeError, "PyTorch cannot compute on the stand-in")
larder_cuda.torch._check_driver = lambda: None

# Rows of 3 MiB: most of them begin inside of a unit of 4 MiB.
shape = (1024, 3, MIB // 2)
cache = larder_cuda.torch.growing(shape, torch.bfloat16, 0)
tensor, row = cache.tensor, 3 * MIB
unit = 4 * MIB
first = tensor.data_ptr()
assert tuple(tensor.shape) == shape and tensor.dtype is torch.bfloat16
assert cache.rows == 0 and tuple(cache.view().shape) == (0, *shape[1:]) and larder_cuda.memory_allocated(0) == 0
for rows in range(1, 20):
    cache.grow_to(rows)
    fill(first + (rows - 1) * row, rows, row)
    view = cache.view()
    assert tuple(view.shape) == (rows, *shape[1:]) and view.data_ptr() == first == cache.tensor.data_ptr()
    assert larder_cuda.memory_allocated(0) == -(-rows * row // unit) * unit
cache.grow_to(5)
assert cache.rows == 19 and all(byte_at(first + row * at) == at + 1 for at in range(19))
assert tuple(cache.view(7).shape) == (7, *shape[1:])
refused(lambda: cache.view(20), ValueError, "20 rows were requested, and 19 have memory")
refused(lambda: cache.view(-1), ValueError, "-1 rows")
refused(lambda: cache.grow_to(1025), ValueError, "room for 1024")
refused(lambda: cache.shrink_to(-1), ValueError, "-1 rows")

# Without memory, nothing changes.
held = larder_cuda.memory_allocated(0)
larder_cuda.set_limit(held + 2 * unit, 0)
for error in (larder_cuda.OutOfMemoryError, torch.OutOfMemoryError, MemoryError):
    refused(lambda: cache.grow_to(100), error, "CUDA out of memory. ")
assert cache.rows == 19 and larder_cuda.memory_allocated(0) == held
cache.grow_to(21)
larder_cuda.set_limit((1 << 64) - 1, 0)

# Down, with other rows than those of the way up, and up again.
for rows in (22, 9, 4, 30, 1, 0, 2):
    cache.grow_to(rows)
    cache.shrink_to(rows)
    assert cache.rows == rows and larder_cuda.memory_allocated(0) == -(-rows * row // unit) * unit
cache.grow_to(1024)
assert larder_cuda.memory_allocated(0) == 1024 * row
refused(lambda: cache.view(1025), ValueError, "call grow_to first")
cache.shrink_to(2)

# The last of the object, the tensor and the views frees the memory.
view = cache.view()
del cache, tensor
gc.collect()
assert larder_cuda.memory_allocated(0) == 2 * unit and byte_at(view.data_ptr()) is not None
del view
gc.collect()
assert larder_cuda.memory_allocated(0) == 0
larder_cuda.empty_cache()
assert larder_cuda.memory_reserved(0) == 0

# Small ones, and no rows at all.
small = larder_cuda.torch.growing((10,), torch.uint8, 0)
small.grow_to(10)
assert larder_cuda.memory_allocated(0) == 2 * MIB
none = larder_cuda.torch.growing([0, 4], torch.uint8, 0)
assert tuple(none.view().shape) == (0, 4)
del small, none
gc.collect()
assert larder_cuda.memory_allocated(0) == 0
findings = ctypes.create_string_buffer(4096)
driver.larder_stand_in_findings.restype = ctypes.c_size_t
assert driver.larder_stand_in_findings(findings, ctypes.c_size_t(len(findings))) == 0, findings.value
print(json.dumps({"passed": True}))
