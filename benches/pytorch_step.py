"""A training step of LeNet or ResNet-18 in PyTorch, for `xtask bench cpu`.

    pytorch_step.py MODE THREADS NETWORK BATCH

MODE is eager or compile (`torch.compile`), each as it is or with `-channels_last` behind it. It says
`ready` and its version, then takes the number of steps to do from each line of its input, and answers
with the milliseconds of each. The networks and their steps are those of `tests/pytorch/networks.py`.
"""

import math
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "pytorch"))
import networks  # noqa: E402

LR = 0.01


def lenet(X, y, layout, compiled):
    params = [torch.randn(shape) * 0.01 for shape in networks.LENET_SHAPES.values()]
    for i, param in enumerate(params):
        if param.dim() == 4:
            params[i] = param.to(memory_format=layout)
        params[i].requires_grad_()
    net = torch.compile(networks.lenet) if compiled else networks.lenet
    return lambda: networks.lenet_step(X, y, params, LR, net)


def resnet18(X, y, layout, compiled):
    net = networks.resnet18().to(memory_format=layout)
    if compiled:
        net.compile()
    return lambda: networks.resnet_step(X, y, net, LR)


STEPS = {"lenet": lenet, "resnet18": resnet18}


def main(mode, threads, network, batch):
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    X, y = torch.randn(int(batch), 1, 28, 28), torch.randint(10, (int(batch),))
    how, _, layout = mode.partition("-")
    layout = getattr(torch, layout or "contiguous_format")
    step = STEPS[network](X.to(memory_format=layout), y, layout, how == "compile")
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
