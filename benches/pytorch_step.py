"""A training step of LeNet or ResNet-18 in PyTorch, for `xtask bench cpu`.

    pytorch_step.py MODE THREADS NETWORK BATCH

MODE is eager or channels_last. It says `ready` and its version, then takes the number of steps to
do from each line of its input, and answers with the milliseconds of each. The networks and their
steps are those of `tests/pytorch/networks.py`.
"""

import math
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "pytorch"))
import networks  # noqa: E402

LR = 0.01


def lenet(X, y):
    params = [torch.randn(shape) * 0.01 for shape in networks.LENET_SHAPES.values()]
    for param in params:
        param.requires_grad_()
    return lambda: networks.lenet_step(X, y, params, LR)


def lenet_channels_last(X, y):
    """The weights of the convolutions channels_last as well."""
    params = [torch.randn(shape) * 0.01 for shape in networks.LENET_SHAPES.values()]
    for i, param in enumerate(params):
        if param.dim() == 4:
            params[i] = param.to(memory_format=torch.channels_last)
        params[i].requires_grad_()
    return lambda: networks.lenet_step(X, y, params, LR)


def resnet18(X, y):
    net = networks.resnet18()
    return lambda: networks.resnet_step(X, y, net, LR)


def resnet18_channels_last(X, y):
    net = networks.resnet18().to(memory_format=torch.channels_last)
    return lambda: networks.resnet_step(X, y, net, LR)


STEPS = {
    ("lenet", "eager"): lenet,
    ("lenet", "channels_last"): lenet_channels_last,
    ("resnet18", "eager"): resnet18,
    ("resnet18", "channels_last"): resnet18_channels_last,
}


def main(mode, threads, network, batch):
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    X, y = torch.randn(int(batch), 1, 28, 28), torch.randint(10, (int(batch),))
    if mode == "channels_last":
        X = X.to(memory_format=torch.channels_last)
    step = STEPS[network, mode](X, y)
    print("ready PyTorch", torch.__version__, flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            loss = step()
            times.append((time.perf_counter() - start) * 1e3)
            assert math.isfinite(loss), f"the loss is {loss}"
        print(*(f"{ms:.4f}" for ms in times), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
