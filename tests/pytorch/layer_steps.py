"""Five steps of SGD on a network of every layer, as JSON.

Convolutions and the linear layer have the formula's parameters (standard deviation 0.2, numbers 0 to 5); the norms
begin as they are. Batches 0 to 4 have seven examples each. Prints the losses, and what each tensor is at the end.

Run: `pip install torch numpy`, then `python layer_steps.py > layers.json`
"""

import torch
from torch import nn

import formula
import printed

STEPS, EXAMPLES = 5, 7


def network():
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.MaxPool2d(3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.ConvTranspose2d(8, 12, 3, stride=2, padding=1, output_padding=1), nn.Upsample(scale_factor=2),
        nn.Conv2d(12, 12, 3, stride=2, padding=1, groups=12), nn.Upsample(scale_factor=3, mode="bilinear"),
        nn.Conv2d(12, 8, 3, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.LayerNorm(8), nn.Linear(8, 10),
    )  # fmt: skip
    drawn = [p for i in (0, 5, 6, 8, 10, 14) for p in net[i].parameters()]
    for s, p in enumerate(drawn):
        p.data = torch.from_numpy(formula.uniform(tuple(p.shape), s, 0.2))
    return net


def run(network, dtype):
    """The losses, and the tensors before and after."""
    net = network().to(dtype)
    floats = lambda: {k: v.clone() for k, v in net.state_dict().items() if v.is_floating_point()}
    start, sgd, losses = floats(), torch.optim.SGD(net.parameters(), lr=0.1), []
    for batch in range(STEPS):
        x = torch.from_numpy(formula.images(EXAMPLES, batch)).to(dtype)
        loss = nn.functional.cross_entropy(net(x), torch.from_numpy(formula.labels(EXAMPLES, batch)))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    return losses, start, floats()


if __name__ == "__main__":
    torch.set_num_threads(1)  # the distances of float32 depend on it
    printed.show(**printed.steps(lambda dtype: run(network, dtype)))
