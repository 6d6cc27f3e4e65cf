"""Builds the wheel: cargo's shared object beside the modules, without other tools (PEP 517, PEP 427).

maturin packs extension modules and cffi modules; this library is neither: ctypes opens it.

`LARDER_CUDA_LIBRARY` names a prebuilt shared object.
"""

import base64
import glob
import hashlib
import os
import platform
import re
import subprocess
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", "..", ".."))
SUMMARY = "GPU memory by Larder for PyTorch, CuPy and RMM"


def _version():
    with open(os.path.join(ROOT, "Cargo.toml")) as manifest:
        return re.search(r'^version = "(.*)"', manifest.read(), re.MULTILINE).group(1)


def _library():
    """Returns the path of the shared object, after a release build if needed."""
    named = os.environ.get("LARDER_CUDA_LIBRARY")
    if named:
        return named
    subprocess.run(["cargo", "build", "--release", "-p", "larder-cuda-c-api"], cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(target, "release", "liblarder_cuda.so")


def _metadata():
    with open(os.path.join(ROOT, "LICENSE-MIT"), "rb") as file:
        licence = file.read()
    fields = [
        ("Metadata-Version", "2.1"),
        ("Name", "larder-cuda"),
        ("Version", _version()),
        ("Summary", SUMMARY),
        ("License", "MIT OR Apache-2.0"),
        ("Requires-Python", ">=3.8"),
    ]
    text = "".join(f"{name}: {value}\n" for name, value in fields)
    tag = f"py3-none-linux_{platform.machine()}"
    wheel = f"Wheel-Version: 1.0\nGenerator: larder\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return tag, {"METADATA": text.encode(), "WHEEL": wheel.encode(), "LICENSE-MIT": licence}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel. Returns its name."""
    tag, metadata = _metadata()
    stem = f"larder_cuda-{_version()}"
    files = {f"{stem}.dist-info/{name}": content for name, content in metadata.items()}
    for module in sorted(glob.glob(os.path.join(HERE, "larder_cuda", "*.py"))):
        with open(module, "rb") as file:
            files[f"larder_cuda/{os.path.basename(module)}"] = file.read()
    with open(_library(), "rb") as file:
        files["larder_cuda/liblarder_cuda.so"] = file.read()
    record = f"{stem}.dist-info/RECORD"
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files[record] = "".join(lines + [f"{record},,\n"]).encode()
    wheel = f"{stem}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    """Refuses: the library is built from the repository, not from a source distribution."""
    raise NotImplementedError("build the wheel from a checkout of Larder: pip wheel cuda/c-api/python")
