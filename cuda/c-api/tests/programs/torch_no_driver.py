"""The first use of a GPU by PyTorch on Larder, without a driver: says "skipped" with one, or without PyTorch."""

import ctypes
import sys

try:
    import torch
except ImportError:
    sys.exit(print("skipped: there is no PyTorch"))
if not hasattr(torch._C, "_cuda_customAllocator"):
    sys.exit(print("skipped: this PyTorch has no CUDA"))
for name in ("libcuda.so.1", "libcuda.so"):
    try:
        ctypes.CDLL(name)
        sys.exit(print("skipped: there is a driver"))
    except OSError:
        pass

import larder_cuda.torch

larder_cuda.torch.enable()
try:
    torch.zeros(3, device="cuda")
    raise AssertionError("not refused")
except larder_cuda.Error as refusal:
    said = str(refusal)
assert said.endswith("install NVIDIA's driver"), said

# Programs without PyTorch can run on the stand-in.
try:
    larder_cuda.malloc(1)
    raise AssertionError("not refused")
except larder_cuda.Error as refusal:
    said = str(refusal)
assert said.endswith("or set LARDER_CUDA_DRIVER=stand-in"), said
