"""train_torch.py without what it needs: it ends with one line, whatever is missing. PyTorch itself is played."""

import importlib.util
import os
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
SPEC = importlib.util.spec_from_file_location("train_torch", os.path.join(HERE, "../../python/train_torch.py"))


def pytorch(cuda="12.8", gpu=True, fault=None):
    """A PyTorch of this CUDA; what asks it for the GPU's name may meet a fault."""

    def device_name():
        if fault:
            raise fault
        return "GPU"

    return types.SimpleNamespace(
        __version__="2.11.0",
        version=types.SimpleNamespace(cuda=cuda),
        set_num_threads=lambda _: None,
        cuda=types.SimpleNamespace(is_available=lambda: gpu, get_device_name=device_name),
    )


class Broken:
    """Finds a PyTorch whose own libraries cannot be loaded."""

    def find_spec(self, name, *_):
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open shared object file")


def last_line(torch):
    program = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(program)
    program.train = lambda *_: ([1.0], [1.0])
    sys.modules["torch"] = torch
    if isinstance(torch, Broken):
        del sys.modules["torch"]
        sys.meta_path.insert(0, torch)
    try:
        program.main()
    except SystemExit as end:
        return end.code
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not torch]


sys.argv = ["train_torch.py"]
line = last_line(None)
assert "cannot train on the stand-in" in line and "larder replay" in line and "\n" not in line, line
del os.environ["LARDER_CUDA_DRIVER"]
os.environ["LARDER_CUDA_LIBRARY"] = "/nowhere/liblarder_cuda.so"
for torch, words in [
    (None, "install PyTorch"),
    (Broken(), "libcudart.so.12"),
    (pytorch(cuda=None, gpu=False), "without CUDA"),
    (pytorch(gpu=False), "no GPU"),
    (pytorch(fault=RuntimeError("CUDA error: busy\nmore of it")), "CUDA error: busy"),
    (pytorch(), "LARDER_CUDA_LIBRARY"),
]:
    line = last_line(torch)
    assert isinstance(line, str) and words in line and "\n" not in line, (words, line)
