#!/usr/bin/env python3
"""Trains GPT-2 small or ResNet-50 under PyTorch's own allocator, its expandable segments, Larder's memory, Larder's
memory with steps, and PyTorch's own allocator within a limit that Larder keeps in front of the driver.

    python3 train_torch.py [--model gpt2|resnet50] [--steps N] [--limit-mib N]

Each runs in a process of its own, one after another, with the same seed and deterministic kernels. Prints a table of
losses, memory and step times. A process that fails is a line of the table. Without a GPU it trains two steps of a small
model on the host, and reports it.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ALLOCATORS = ("native", "expandable", "larder", "larder-steps", "limited")
MODELS = ("gpt2", "resnet50")


def gpt2(torch, width=768, layers=12, heads=12, vocabulary=50257):
    """Returns GPT-2, small by default, and a function that draws a batch. Lengths vary, as in real programs."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            parts = self.split(self.first(x)).view(batch, length, 3, heads, width // heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.join(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.last = nn.LayerNorm(width)
            self.apply(self.begin)

        @staticmethod
        def begin(part):
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=0.02)

        def forward(self, tokens):
            x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.last(x) @ self.words.weight.T

    def draw(random):
        length = 64 * int(torch.randint(1, 9, (1,), generator=random))
        tokens = torch.randint(vocabulary, (8, length + 1), generator=random)
        return tokens[:, :-1], tokens[:, 1:].flatten()

    return Gpt2(), draw


def resnet50(torch, stages=(3, 4, 6, 3), classes=1000):
    """Returns a ResNet, ResNet-50 by default, and a function that draws a batch. One in eight is smaller."""
    nn = torch.nn

    def convolution(before, after, size, stride=1):
        return nn.Sequential(
            nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)
        )

    class Bottleneck(nn.Module):
        def __init__(self, before, inner, stride):
            super().__init__()
            self.body = nn.Sequential(
                convolution(before, inner, 1),
                nn.ReLU(),
                convolution(inner, inner, 3, stride),
                nn.ReLU(),
                convolution(inner, 4 * inner, 1),
            )
            same = before == 4 * inner and stride == 1
            self.beside = nn.Identity() if same else convolution(before, 4 * inner, 1, stride)

        def forward(self, x):
            return nn.functional.relu(self.body(x) + self.beside(x))

    layers, width = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, count in enumerate(stages):
        for number in range(count):
            inner = 64 << stage
            layers.append(Bottleneck(width, inner, 2 if stage > 0 and number == 0 else 1))
            width = 4 * inner

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    def draw(random):
        batch = 48 if int(torch.randint(8, (1,), generator=random)) == 0 else 64
        return torch.randn(batch, 3, 224, 224, generator=random), torch.randint(classes, (batch,), generator=random)

    return nn.Sequential(*layers, Mean(), nn.Linear(width, classes)), draw


def train(torch, build, device, steps, around_step, wait):
    """Trains a model. Returns the losses, and the seconds of each step."""
    torch.manual_seed(1)
    # Operations without a deterministic kernel warn and differ.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    model, draw = build(torch)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    random = torch.Generator().manual_seed(2)
    losses, seconds = [], []
    for _ in range(steps):
        inputs, targets = (part.to(device) for part in draw(random))
        start = time.perf_counter()
        with around_step():
            outputs = model(inputs)
            loss = torch.nn.functional.cross_entropy(outputs.flatten(0, -2), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        wait()
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def one(model, allocator, steps):
    """Trains under one allocator after a line on standard input. Prints the figures as JSON."""
    import torch

    around_step = contextlib.nullcontext
    if allocator.startswith("larder"):
        import larder_cuda.torch

        larder_cuda.torch.enable()
        if allocator == "larder-steps":
            around_step = larder_cuda.step
    # All processes of a model start together, because imports take longest; each waits for its turn.
    if not sys.stdin.readline():
        return None
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    losses, seconds = train(torch, globals()[model], "cuda", steps, around_step, torch.cuda.synchronize)
    seconds = sorted(1000 * second for second in seconds[len(seconds) // 4 :])
    stats = torch.cuda.memory_stats()
    figures = {
        "losses": losses,
        "live": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        # Quartiles.
        "step_ms": [seconds[len(seconds) * part // 4] for part in (1, 2, 3)],
        # Created by the driver and released: PyTorch's segments and mapped ranges, Larder's handles.
        "pieces": stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0),
    }
    return print(json.dumps(figures))


def start(model, allocator, steps, limit):
    """Starts a process that waits for its turn. `limit` is for the last allocator, in bytes."""
    environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if allocator == "limited":
        from larder_cuda import _library

        environment["LD_PRELOAD"] = _library.path()
        environment["LARDER_CUDA_LIMIT"] = str(limit)
    environment["PYTHONPATH"] = os.pathsep.join([HERE, environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--model", model, "--allocator", allocator, "--steps", str(steps)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process, limit):
    """Gives a process its turn. Returns its figures, or its error."""
    try:
        said, wrong = process.communicate("\n", timeout=limit)
    except subprocess.TimeoutExpired:
        # A process that hangs in the kernel is left.
        process.kill()
        return {"error": f"took longer than {limit} s"}
    if process.returncode != 0:
        last = [line.strip() for line in wrong.splitlines() if line.strip()]
        return {"error": f"ended with {process.returncode}: {last[-1] if last else 'without a word'}"}
    return json.loads(said.splitlines()[-1])


def without_gpu(torch):
    """Trains a small model on the host, then ends the program with the reason."""
    torch.set_num_threads(1)

    def small(torch):
        return gpt2(torch, width=64, layers=2, heads=2, vocabulary=512)

    losses, _ = train(torch, small, "cpu", 2, contextlib.nullcontext, lambda: None)
    print("losses of a small GPT-2 on the host:", " ".join(f"{loss:.4f}" for loss in losses))
    if torch.version.cuda is None:
        sys.exit("This PyTorch is a build without CUDA, so allocators are not compared: install one with CUDA.")
    sys.exit("There is no GPU that this PyTorch can use, so allocators are not compared: look at nvidia-smi.")


def first_line(error):
    return str(error).split("\n")[0]


def check_library():
    """Ends the program if Larder's library is missing, before anything is trained."""
    sys.path.insert(0, HERE)
    try:
        from larder_cuda import _library  # noqa: F401
    except ImportError as error:
        sys.exit(f"Larder cannot be used: {first_line(error)}.")


def device_name(torch):
    """Returns the GPU's name. Ends the program if PyTorch finds the GPU and cannot use it."""
    try:
        return torch.cuda.get_device_name()
    except (RuntimeError, AssertionError) as error:
        sys.exit(f"PyTorch cannot use the GPU: {first_line(error)}")


def check_driver():
    """Ends the program if Larder is told to use the stand-in."""
    if os.environ.get("LARDER_CUDA_DRIVER") == "stand-in":
        sys.exit(
            "PyTorch cannot train on the stand-in, because its kernels need a GPU: unset LARDER_CUDA_DRIVER if there is "
            "one; without one, `larder replay benches/traces/*.trace.zst` compares the allocators on recorded programs."
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--limit-mib", type=int, default=32768)
    parser.add_argument("--seconds", type=int, default=60, help="a process that takes longer is ended")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each allocator in place of the table")
    parser.add_argument("--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    check_driver()
    try:
        import torch
    except ModuleNotFoundError as error:
        sys.exit(f"There is no module `{error.name}`: install PyTorch first, a build with CUDA.")
    except (ImportError, OSError) as error:
        sys.exit(f"PyTorch cannot be loaded: {first_line(error)}")
    if given.allocator:
        return one(given.model, given.allocator, given.steps)
    if not torch.cuda.is_available():
        without_gpu(torch)
    name = device_name(torch)
    check_library()
    if not given.json:
        print(f"PyTorch {torch.__version__}, {name}, {given.model}, {given.steps} steps")
        print(f"{'allocator':<12} {'last loss':>12} {'losses':>8} {'live MiB':>10} {'reserved MiB':>13} {'step ms':>9}")
    waiting = [(name, start(given.model, name, given.steps, given.limit_mib << 20)) for name in ALLOCATORS]
    first = None
    for allocator, process in waiting:
        figures = finish(process, given.seconds)
        if given.json:
            print(json.dumps({"model": given.model, "allocator": allocator, **figures}), flush=True)
            continue
        if "error" in figures:
            print(f"{allocator:<12} {figures['error']}", flush=True)
            continue
        first = first or figures
        same = "same" if figures["losses"] == first["losses"] else "differ"
        print(
            f"{allocator:<12} {figures['losses'][-1]:>12.6f} {same:>8} {figures['live'] / 2**20:>10.0f} "
            f"{figures['reserved'] / 2**20:>13.0f} {figures['step_ms'][1]:>9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
