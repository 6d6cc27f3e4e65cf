"""Builds the wheel: cargo's shared object beside the modules, without other tools (PEP 517, PEP 427).

maturin packs extension modules and cffi modules; this library is neither: ctypes opens it.

`LARDER_CUDA_LIBRARY` names a prebuilt shared object.
"""

import base64
import contextlib
import glob
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", "..", ".."))
SUMMARY = "GPU memory by Larder for PyTorch, CuPy and RMM"
BUILD = ["cargo", "build", "--release", "-p", "larder-cuda-c-api"]
#: pip hides what a build prints unless it gets `-v`, so the progress goes to the terminal itself.
TERMINAL = "/dev/tty"
OTHERWISE = "or name a liblarder_cuda.so that is already built in LARDER_CUDA_LIBRARY"


def _manifest(field):
    with open(os.path.join(ROOT, "Cargo.toml")) as manifest:
        return re.search(rf'^{field} = "(.*)"', manifest.read(), re.MULTILINE).group(1)


def _check_system():
    """Ends the build with one sentence, which pip shows, where it cannot succeed."""
    if sys.platform != "linux":
        sys.exit(f"larder-cuda runs on Linux only, and this system is {sys.platform}.")
    named = os.environ.get("LARDER_CUDA_LIBRARY")
    if named:
        if not os.path.isfile(named):
            sys.exit(f"LARDER_CUDA_LIBRARY names {named}, and there is no such file.")
        return
    oldest = _manifest("rust-version")
    try:
        version = subprocess.run(["cargo", "--version"], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    except FileNotFoundError:
        sys.exit(f"There is no cargo: install Rust {oldest} or newer (https://rustup.rs), {OTHERWISE}.")
    except subprocess.CalledProcessError:
        sys.exit(f"cargo does not start: repair the installation of Rust, {OTHERWISE}.")
    found = re.search(r"(\d+)\.(\d+)", version)
    if [int(part) for part in found.groups()] < [int(part) for part in oldest.split(".")]:
        sys.exit(f"This is {version.strip()}, which is too old: `rustup update` to Rust {oldest} or newer, {OTHERWISE}.")


def _build():
    """Runs cargo. Its lines go to the standard error, and its progress to the terminal, if there is one."""
    progress = {"CARGO_TERM_PROGRESS_WHEN": "always", "CARGO_TERM_PROGRESS_WIDTH": "79", "CARGO_TERM_COLOR": "never"}
    with contextlib.ExitStack() as stack:
        try:
            terminal = stack.enter_context(open(TERMINAL, "w"))
        except OSError:
            terminal, progress = None, {}
            print("Building liblarder_cuda.so takes a few minutes.", file=sys.stderr, flush=True)
        if terminal:
            print("\n  cargo builds liblarder_cuda.so, which takes a few minutes:", file=terminal, flush=True)
        cargo = stack.enter_context(
            subprocess.Popen(
                BUILD, cwd=ROOT, env={**os.environ, **progress}, stderr=subprocess.PIPE, text=True, errors="replace"
            )
        )
        # Text mode makes a line of cargo's carriage returns, too.
        for line in cargo.stderr:
            if re.match(r"\s+Building \[", line):
                terminal.write(f"\r{line.rstrip()}\033[K")
                terminal.flush()
            elif line.strip():
                print(line.rstrip(), file=sys.stderr, flush=True)
        if terminal:
            terminal.write("\r\033[K")
    if cargo.returncode != 0:
        sys.exit(f"cargo could not build liblarder_cuda.so: its last lines, above, say why. Repair it, {OTHERWISE}.")


def _library():
    """Returns the path of the shared object, after a release build if needed."""
    _check_system()
    named = os.environ.get("LARDER_CUDA_LIBRARY")
    if named:
        return named
    _build()
    return os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release", "liblarder_cuda.so")


def _metadata():
    """Returns the wheel's tag, and the name and content of each file about the wheel."""
    with open(os.path.join(ROOT, "LICENSE-MIT"), "rb") as file:
        licence = file.read()
    fields = [
        ("Metadata-Version", "2.1"),
        ("Name", "larder-cuda"),
        ("Version", _manifest("version")),
        ("Summary", SUMMARY),
        ("License", "MIT OR Apache-2.0"),
        ("Requires-Python", ">=3.8"),
    ]
    text = "".join(f"{name}: {value}\n" for name, value in fields)
    tag = f"py3-none-linux_{platform.machine()}"
    wheel = f"Wheel-Version: 1.0\nGenerator: larder\nRoot-Is-Purelib: false\nTag: {tag}\n"
    folder = f"larder_cuda-{_manifest('version')}.dist-info"
    named = {"METADATA": text.encode(), "WHEEL": wheel.encode(), "LICENSE-MIT": licence}
    return tag, folder, named


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Writes the files about the wheel, so that pip names the build what it is. Returns their folder's name."""
    _check_system()
    _, folder, named = _metadata()
    os.mkdir(os.path.join(metadata_directory, folder))
    for name, content in named.items():
        with open(os.path.join(metadata_directory, folder, name), "wb") as file:
            file.write(content)
    return folder


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel. Returns its name."""
    tag, folder, named = _metadata()
    files = {f"{folder}/{name}": content for name, content in named.items()}
    for module in sorted(glob.glob(os.path.join(HERE, "larder_cuda", "*.py"))):
        with open(module, "rb") as file:
            files[f"larder_cuda/{os.path.basename(module)}"] = file.read()
    with open(_library(), "rb") as file:
        files["larder_cuda/liblarder_cuda.so"] = file.read()
    record = f"{folder}/RECORD"
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files[record] = "".join(lines + [f"{record},,\n"]).encode()
    wheel = f"larder_cuda-{_manifest('version')}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    """Refuses: the library is built from the repository, not from a source distribution."""
    raise NotImplementedError("build the wheel from a checkout of Larder: pip wheel cuda/c-api/python")
