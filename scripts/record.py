#!/usr/bin/env python3
"""Records which tensors a PyTorch model allocates and frees, as a trace for `larder replay` (docs/guide/src/trace-format.md).

    pip install torch
    scripts/record.py gpt2s_train --steps 3 > gpt2s_train.trace
    scripts/record.py my_module:my_function > my.trace

Nothing is computed: all runs on PyTorch's device without memory (`meta`), so a model of any size is recorded on any
machine, and values cannot be looked at (`tensor.item()` fails, and so do the optimizers Adagrad, Adafactor, ASGD and
LBFGS). Recorded are the storages of tensors, with the length they begin with; not what kernels need while they run.
The step counters of optimizers are on the host, as in a program for a GPU. Pass `foreach=True` to an optimizer that has
it: PyTorch chooses it by itself on a GPU, but not here.

A function to record is a generator function. It makes its model, then yields before its first step and after each step:

    def my_function():
        model, x = torch.nn.Linear(1000, 1000), torch.randn(64, 1000)
        while True:
            yield
            model(x).sum().backward()
"""

import argparse
import importlib
import inspect
import os
import sys
import weakref

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class Recorder(TorchDispatchMode):
    """Notes each storage that an operation gives for the first time, and when nobody has it any more."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.live = {}  # by the address of the storage: a reference that tells of its end
        self.count = 0
        self.live_bytes = self.peak_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.note, result)
        return result

    def note(self, tensor):
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if tensor.device.type != "meta" or size == 0 or address in self.live:
            return
        block = self.count
        self.count += 1
        self.events.append(f"a {block} {size}")
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

        def ends(_):
            del self.live[address]
            self.live_bytes -= size
            self.events.append(f"f {block}")

        self.live[address] = weakref.ref(storage, ends)

    def run(self, function, steps):
        # Kept: what is live at the end is not freed there.
        self.work = function()
        with torch.device("meta"), self:
            for step in range(steps + 1):
                next(self.work)
                self.events.append(f"s {step}")

    def write(self, file, header):
        frees = sum(event.startswith("f") for event in self.events)
        header["allocs"] = (
            f"{self.count}  frees: {frees}  peak_live_bytes: {self.peak_bytes}"
            f"  live_at_end: {self.live_bytes}"
        )
        print("# alloc-trace v1: a <id> <bytes> | f <id> | s <step>", file=file)
        for key, value in header.items():
            print(f"# {key}: {value}", file=file)
        file.write("".join(f"{event}\n" for event in self.events))


def enter_host(optimizer, arguments, named):
    """Makes the step of an optimizer create its counters on the host, as in a program for a GPU: `step` reads their
    values. A closure still runs on the device without memory."""
    del optimizer

    def on_meta(argument):
        def closure():
            with torch.device("meta"):
                return argument()

        return closure if callable(argument) else argument

    torch.device("cpu").__enter__()
    return tuple(map(on_meta, arguments)), {name: on_meta(argument) for name, argument in named.items()}


def leave_host(optimizer, arguments, named):
    """Ends what `enter_host` began."""
    del optimizer, arguments, named
    torch.device("cpu").__exit__(None, None, None)


class Dropout(nn.Module):
    """As on a GPU: with a mask of bytes. PyTorch takes another way on the device without memory."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return torch.native_dropout(x, self.part, True)[0]


class Gelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.before_mlp = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), Gelu(), nn.Linear(4 * width, width), Dropout(dropout)
        )
        self.dropout = Dropout(dropout)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, -1)
        )
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = torch.where(mask, scores, torch.full([], float("-inf")))
        scores = scores.softmax(-1)
        mixed = (self.dropout(scores) @ v).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(mixed))
        return x + self.mlp(self.before_mlp(x))


class Gpt2(nn.Module):
    def __init__(self, words=50257, length=1024, width=768, heads=12, layers=12, dropout=0.1):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])
        x = self.dropout(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        logits = nn.functional.linear(self.norm(x), self.words.weight)
        guesses = logits[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(guesses, tokens[:, 1:].flatten())


def gpt2s_train():
    """GPT-2 small 124M (math attention, dropout 0.1), 4 x 512 words, fp32, AdamW foreach"""
    model = Gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step(tokens):
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    while True:
        yield
        tokens = torch.randint(0, 50257, (4, 512))
        step(tokens)
        del tokens


def images_infer():
    """A convolutional network that sorts images, a batch of another size in each step, fp32"""
    widths = [3, 64, 128, 256, 512]
    layers = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000)).eval()
    batch = 1
    while True:
        yield
        with torch.no_grad():
            model(torch.empty(batch, 3, 224, 224)).argmax(-1)
        batch = batch * 5 % 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "function",
        help="gpt2s_train, images_infer, or module:function; a generator function, which makes its model, then yields"
        " before its first step and after each step",
    )
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    module, _, name = arguments.function.rpartition(":")
    sys.path.insert(0, os.getcwd())
    function = getattr(importlib.import_module(module or "__main__"), name)
    # Checked before the call, which would run a plain function at once, and not on the device without memory.
    if not inspect.isgeneratorfunction(function):
        sys.exit(f"{arguments.function} is not a generator function: let it yield before its first step and after each step")
    register_optimizer_step_pre_hook(enter_host)
    register_optimizer_step_post_hook(leave_host)
    recorder = Recorder()
    try:
        recorder.run(function, arguments.steps)
    except StopIteration:
        sys.exit(f"{arguments.function} yields fewer than {arguments.steps + 1} times")
    header = {
        "name": name,
        "model": (function.__doc__ or arguments.function).splitlines()[0],
        "steps": arguments.steps,
        "recorded": f"torch {torch.__version__}, meta device, TorchDispatchMode + storage weakrefs"
        f" (scripts/record.py {arguments.function}); tensor storages only, single stream, no kernel workspaces",
    }
    recorder.write(sys.stdout, header)


if __name__ == "__main__":
    main()
