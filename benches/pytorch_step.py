"""A training step of LeNet or ResNet-18 in PyTorch, for `xtask bench cpu`.

    pytorch_step.py MODE THREADS NETWORK BATCH

MODE is eager or compile (`torch.compile`), joined by hyphens with any of `channels_last`, `bf16` (autocast) and
`ddp` (DistributedDataParallel with gloo: THREADS processes of one thread, each with its part of the batch). It
says `ready` and its version, then takes the number of steps to do from each line of its input, and answers
with the milliseconds of each. The networks and their steps are those of `tests/pytorch/networks.py`.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "pytorch"))
import networks  # noqa: E402

LR = 0.01


class LeNet(nn.Module):
    """DistributedDataParallel wants a module."""

    def __init__(self):
        super().__init__()
        shapes = networks.LENET_SHAPES.values()
        self.params = nn.ParameterList(torch.randn(shape) * 0.01 for shape in shapes)

    def forward(self, X):
        return networks.lenet(X, list(self.params))


def lenet(X, y, layout, how):
    """A step as in the book's section, without a module."""
    params = [p.detach() for p in LeNet().params]
    for i, param in enumerate(params):
        if param.dim() == 4:
            params[i] = param.to(memory_format=layout)
        params[i].requires_grad_()
    net = networks.lenet
    if "bf16" in how:
        net = torch.autocast("cpu", torch.bfloat16)(net)
    if "compile" in how:
        net = torch.compile(net)
    return lambda: networks.lenet_step(X, y, params, LR, net)


def of_module(net, X, y, layout, how):
    net = net.to(memory_format=layout)
    if "bf16" in how:
        net.forward = torch.autocast("cpu", torch.bfloat16)(net.forward)
    if "ddp" in how:
        net = nn.parallel.DistributedDataParallel(net)
    if "compile" in how:
        net.compile()
    return lambda: networks.resnet_step(X, y, net, LR)


def training_step(network, X, y, layout, how):
    if network == "resnet18":
        return of_module(networks.resnet18(), X, y, layout, how)
    if "ddp" in how:
        return of_module(LeNet(), X, y, layout, how)
    return lenet(X, y, layout, how)


def join(processes):
    """Starts the other processes and meets them; returns the number of this one."""
    rank = int(os.environ.setdefault("RANK", "0"))
    if rank == 0:
        os.environ["MEET"] = tempfile.mktemp()
        for other in range(1, processes):
            env = dict(os.environ, RANK=str(other))
            subprocess.Popen([sys.executable, *sys.argv], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    meet = f"file://{os.environ['MEET']}"
    distributed.init_process_group("gloo", meet, world_size=processes, rank=rank)
    return rank


def requests(rank, processes):
    """The numbers of steps to do. The first process reads them, and tells the others; 0 is the end."""
    while True:
        line = sys.stdin.readline() if rank == 0 else ""
        steps = torch.tensor(int(line or 0))
        if processes > 1:
            distributed.broadcast(steps, 0)
        if steps == 0:
            return
        yield int(steps)


def main(mode, threads, network, batch):
    how, threads, batch = mode.split("-"), int(threads), int(batch)
    rank, processes = 0, 1
    if "ddp" in how and threads > 1:
        threads, processes = 1, threads
        rank = join(processes)
    torch.set_num_threads(threads)
    torch.manual_seed(rank)
    X, y = torch.randn(batch // processes, 1, 28, 28), torch.randint(10, (batch // processes,))
    layout = torch.channels_last if "channels_last" in how else torch.contiguous_format
    if processes == 1:
        how = [word for word in how if word != "ddp"]
    step = training_step(network, X.to(memory_format=layout), y, layout, how)
    if rank == 0:
        print("ready PyTorch", torch.__version__, flush=True)
    for steps in requests(rank, processes):
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            loss = step()
            times.append((time.perf_counter() - start) * 1e3)
            assert math.isfinite(loss), f"the loss is {loss}"
        if rank == 0:
            print(*(f"{ms:.4f}" for ms in times), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
