#!/usr/bin/env python3
"""Trains a small model under PyTorch's own allocator, its expandable segments, Larder's memory, and PyTorch's own
allocator within a limit that Larder keeps in front of the driver.

    python3 train_torch.py [--steps N] [--limit-mib N]

Each in a process of its own, with the same seed and deterministic kernels. Says a table of losses, memory and
step times. Without a GPU it trains two steps on the host, and says so.
"""

import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ALLOCATORS = ("native", "expandable", "larder", "limited")
VOCABULARY, WIDTH, LAYERS, HEADS, BATCH = 8192, 512, 6, 8, 16


def build(torch, device):
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH),
        torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        torch.nn.Linear(WIDTH, VOCABULARY),
    )
    return model.to(device)


def train(torch, device, steps, around_step, wait):
    """Losses, and seconds of each step. Lengths of sequences differ, as programs' do."""
    model = build(torch, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    random = torch.Generator().manual_seed(2)
    losses, seconds = [], []
    for _ in range(steps):
        length = 64 * int(torch.randint(1, 9, (1,), generator=random))
        tokens = torch.randint(VOCABULARY, (BATCH, length + 1), generator=random).to(device)
        start = time.perf_counter()
        with around_step():
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        wait()
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def one(allocator, steps):
    """Trains under one allocator and says its figures as JSON."""
    import contextlib

    import torch

    around_step = contextlib.nullcontext
    if allocator == "larder":
        import larder.torch

        larder.torch.enable()
        around_step = larder.step
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    losses, seconds = train(torch, "cuda", steps, around_step, torch.cuda.synchronize)
    seconds = sorted(seconds[len(seconds) // 4 :])
    figures = {
        "losses": losses,
        "live": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "step_ms": 1000 * seconds[len(seconds) // 2],
    }
    print(json.dumps(figures))


def run(allocator, steps, limit):
    """The figures of an allocator, from a process of its own. The limit is that of the last, in bytes."""
    environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if allocator == "limited":
        from larder import _library

        environment["LD_PRELOAD"] = _library.path()
        environment["LARDER_CUDA_LIMIT"] = str(limit)
    environment["PYTHONPATH"] = os.pathsep.join([HERE, environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--allocator", allocator, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"training under `{allocator}` ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def without_gpu(torch):
    """As far as it goes."""
    import contextlib

    torch.set_num_threads(1)
    losses, _ = train(torch, "cpu", 2, contextlib.nullcontext, lambda: None)
    print("losses on the host:", " ".join(f"{loss:.4f}" for loss in losses))
    if torch.version.cuda is None:
        sys.exit("This PyTorch is a build without CUDA, so allocators are not compared: install one with CUDA.")
    sys.exit("There is no GPU that this PyTorch can use, so allocators are not compared: look at nvidia-smi.")


def first_line(error):
    return str(error).split("\n")[0]


def check_library():
    """Ends the program if Larder's library is missing, before anything is trained."""
    sys.path.insert(0, HERE)
    try:
        from larder import _library  # noqa: F401
    except (OSError, AttributeError) as error:
        advice = "build it with `cargo build --release -p larder-cuda-c-api`, and name it in LARDER_CUDA_LIBRARY"
        sys.exit(f"Larder's library cannot be loaded ({first_line(error)}): {advice}.")


def device_name(torch):
    """The GPU's name; ends the program if PyTorch finds it and cannot use it."""
    try:
        return torch.cuda.get_device_name()
    except (RuntimeError, AssertionError) as error:
        sys.exit(f"PyTorch cannot use the GPU: {first_line(error)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--limit-mib", type=int, default=8192)
    parser.add_argument("--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        import torch
    except ModuleNotFoundError as error:
        sys.exit(f"There is no module `{error.name}`: install PyTorch first, a build with CUDA.")
    except (ImportError, OSError) as error:
        sys.exit(f"PyTorch cannot be loaded: {first_line(error)}")
    if arguments.allocator:
        return one(arguments.allocator, arguments.steps)
    if not torch.cuda.is_available():
        without_gpu(torch)
    name = device_name(torch)
    check_library()
    print(f"PyTorch {torch.__version__}, {name}, {arguments.steps} steps")
    print(f"{'allocator':<12} {'last loss':>12} {'losses':>8} {'live MiB':>10} {'reserved MiB':>13} {'step ms':>9}")
    first = None
    for allocator in ALLOCATORS:
        figures = run(allocator, arguments.steps, arguments.limit_mib << 20)
        first = first or figures
        same = "same" if figures["losses"] == first["losses"] else "differ"
        print(
            f"{allocator:<12} {figures['losses'][-1]:>12.6f} {same:>8} {figures['live'] / 2**20:>10.0f} "
            f"{figures['reserved'] / 2**20:>13.0f} {figures['step_ms']:>9.2f}"
        )


if __name__ == "__main__":
    main()
