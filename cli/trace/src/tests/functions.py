"""Functions for scripts/record.py: optimizers that read their step counters, and a plain function."""

import torch


def training(optimizer, **options):
    model, x = torch.nn.Linear(100, 100), torch.randn(8, 100)
    optimizer = optimizer(model.parameters(), **options)

    def closure():
        optimizer.zero_grad()
        loss = model(x + torch.randn(8, 100)).sum()
        loss.backward()
        return loss

    while True:
        yield
        optimizer.step(closure)
        assert torch.empty(1).device.type == "meta"


def adam():
    yield from training(torch.optim.Adam)


def adamw_foreach():
    yield from training(torch.optim.AdamW, foreach=True)


def radam():
    yield from training(torch.optim.RAdam, foreach=True)


def plain():
    print("was called")
