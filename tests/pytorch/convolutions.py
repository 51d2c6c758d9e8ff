"""What the layers of `crates/data-parallel/examples/cost_of_convolutions.rs` take in PyTorch: milliseconds of a step
on two threads, without those of a network that has no such layer.

Run: `pip install torch numpy`, then `python convolutions.py`.
"""

import statistics
import time

import torch
from torch import nn

EXAMPLES, CHANNELS, SIDE, STEPS = 16, 32, 28, 25

LAYERS = {
    "none": [],
    "3x3": [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)],
    "3x3, 2 groups": [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2)],
    "3x3, a group for each channel": [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)],
    "3x3, dilation 2": [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=2, dilation=2)],
    "1x7": [nn.Conv2d(CHANNELS, CHANNELS, (1, 7))],
    "transposed 2x2, stride 2": [nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, stride=2)],
}

torch.set_num_threads(2)
x = torch.rand(EXAMPLES, 1, SIDE, SIDE)


def step(net, sgd):
    begin = time.perf_counter()
    loss = net(x).square().mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    return 1e3 * (time.perf_counter() - begin)


nets = {
    name: nn.Sequential(nn.Conv2d(1, CHANNELS, 1), *layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for name, layer in LAYERS.items()
}
sgds = {name: torch.optim.SGD(net.parameters(), lr=0.01) for name, net in nets.items()}
times = {name: [] for name in LAYERS}
for _ in range(STEPS):
    for name, net in nets.items():
        times[name].append(step(net, sgds[name]))
times = {name: of[5:] for name, of in times.items()}
none = statistics.median(times["none"])
for name, of in times.items():
    print(f"{name:30} {statistics.median(of) - none:6.2f} ({min(of) - none:.2f} to {max(of) - none:.2f})")
