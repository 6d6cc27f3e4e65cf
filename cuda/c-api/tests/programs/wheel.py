"""The build of the wheel: its progress, and one sentence where it cannot succeed. cargo is played by a script."""

import contextlib
import io
import os
import sys
import tempfile
import zipfile

import backend

FOLDER = tempfile.TemporaryDirectory()
WHEELS = FOLDER.name


def play_cargo(version, build):
    """Puts a script in place of cargo; `build` is what it does with `cargo build`."""
    script = os.path.join(FOLDER.name, "cargo")
    with open(script, "w") as file:
        file.write(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "cargo {version} (abc 2026-01-01)"; exit; fi\n{build}\n')
    os.chmod(script, 0o755)
    os.environ["PATH"] = FOLDER.name + ":/usr/bin:/bin"


def refused(*words):
    """Checks the sentence with which a build ends. Returns what was written to the standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            backend.build_wheel(WHEELS)
        except SystemExit as end:
            line = end.code
            assert isinstance(line, str) and "\n" not in line and all(word in line for word in words), (words, line)
            return said.getvalue()
    raise AssertionError(f"not refused: {words}")


backend.TERMINAL = os.path.join(FOLDER.name, "no terminal", "")
os.environ["LARDER_CUDA_LIBRARY"] = "/nowhere/liblarder_cuda.so"
refused("/nowhere/liblarder_cuda.so", "no such file")
del os.environ["LARDER_CUDA_LIBRARY"]
platform, sys.platform = sys.platform, "darwin"
refused("Linux only", "darwin")
sys.platform = platform
os.environ["PATH"] = "/nowhere"
refused("no cargo", "rustup.rs", "LARDER_CUDA_LIBRARY")
play_cargo("1.87.0", "")
refused("cargo 1.87.0", "too old", backend._manifest("rust-version"))
play_cargo("1.88.0", 'echo "error: no space" >&2; exit 101')
said = refused("could not build", "its last lines")
assert "takes a few minutes" in said and said.endswith("error: no space\n"), said

# With a terminal, cargo's progress goes there, and its other lines still go to pip.
os.environ["CARGO_TARGET_DIR"] = target = os.path.join(FOLDER.name, "target")
os.makedirs(os.path.join(target, "release"))
build = (
    '[ "$CARGO_TERM_PROGRESS_WHEN" = always ] || exit 1\n'
    'printf "   Compiling libc v0.2\\n    Building [==>  ] 3/66: libc\\r    Building [====>] 66/66: larder\\r" >&2\n'
    f"echo library > {target}/release/liblarder_cuda.so"
)
play_cargo("1.88.0", build)
backend.TERMINAL = os.path.join(FOLDER.name, "terminal")
said = io.StringIO()
with contextlib.redirect_stderr(said):
    wheel = os.path.join(WHEELS, backend.build_wheel(WHEELS))
assert said.getvalue() == "   Compiling libc v0.2\n", said.getvalue()
with open(backend.TERMINAL, newline="") as file:
    shown = file.read()
assert "takes a few minutes" in shown and "\r    Building [==>  ] 3/66: libc" in shown and "66/66" in shown, shown

# The files about the wheel, which pip requests first, are those in the wheel.
folder = backend.prepare_metadata_for_build_wheel(FOLDER.name)
with zipfile.ZipFile(wheel) as packed, open(os.path.join(FOLDER.name, folder, "METADATA"), "rb") as file:
    assert packed.read("larder_cuda/liblarder_cuda.so") == b"library\n"
    assert packed.read(f"{folder}/METADATA") == file.read()
