"""Loads a run of `scratch` into an `nn.Sequential`, and prints its accuracy on the test images.

Run: `cargo run --release -p scratch -- --gpus 2 --data DIR --out RUN`, then
`pip install torch safetensors numpy` and `python sequential_lenet.py RUN DIR`. The accuracy is the last one that
`scratch` printed.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from real_steps import read_split


def sequential(path):
    """The book's LeNet with the parameters of `model.safetensors`: linear layers are (inputs, outputs) there."""
    net = nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    p = load_file(path)
    for layer, (w, b) in zip([0, 3, 7, 9], [("W1", "b1"), ("W2", "b2"), ("W3", "b3"), ("W4", "b4")]):
        weight = p[w] if layer < 7 else p[w].T
        net[layer].load_state_dict({"weight": weight, "bias": p[b]})
    return net


def main(run, data):
    net = sequential(Path(run) / "model.safetensors")
    X, y = read_split(Path(data), "t10k")
    with torch.no_grad():
        print(f"test acc: {(net(X).argmax(1) == y).float().mean():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
