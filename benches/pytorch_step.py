"""A training step of a network in PyTorch, for `xtask bench cpu`.

    pytorch_step.py MODE THREADS NETWORK BATCH

MODE is eager or compile (`torch.compile`), joined by hyphens with any of `channels_last`, `bf16`
(`torch.autocast`) and `ddp` (DistributedDataParallel with gloo: THREADS processes of one thread, each with its
part of the batch). It says `ready` and its version, then takes the number of steps to do from each line of its
input, and answers with the milliseconds of each. The networks are those of
`crates/xtask/src/bench/networks.rs`.
"""

import atexit
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "pytorch"))
import public_networks as public  # noqa: E402
from networks import Residual, resnet18  # noqa: E402
from transformer_steps import CHARACTERS, CONTEXT, Transformer  # noqa: E402

LR = 0.01


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), *mlp(800, 128, 10)[1:],
    )  # fmt: skip


def vgg():
    layers = []
    for i, (before, channels) in enumerate([(3, 64), (64, 128), (128, 256), (256, 256)]):
        layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i != 2 else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def mnist():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def resnet20():
    blocks, before = [], 16
    for channels in [16, 32, 64]:
        for _ in range(3):
            blocks.append(Residual(before, channels, 1 if channels == before else 2))
            before = channels
    stem = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mlp(*sizes):
    layers = [nn.Flatten()]
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def images(count):
    return torch.randn(count, 1, 28, 28), torch.randint(10, (count,))


def color_images(count):
    return torch.randn(count, 3, 32, 32), torch.randint(10, (count,))


def larger_images(count):
    return torch.randn(count, 3, 64, 64), torch.randint(10, (count,))


def noise(count):
    return torch.randn(count, 1, 28, 28), torch.randn(count, 1, 28, 28)


def characters(context):
    return lambda count: torch.randint(CHARACTERS, (2, count, context)).unbind()


NETWORKS = {
    "lenet": (lenet, images),
    "resnet18": (resnet18, images),
    "vgg": (vgg, color_images),
    "mnist": (mnist, images),
    "resnet20": (resnet20, color_images),
    "mlp512": (lambda: mlp(784, 512, 512, 10), images),
    "mlp128": (lambda: mlp(784, 128, 10), images),
    "transformer": (Transformer, characters(CONTEXT)),
    "llama": (public.Llama, characters(64)),
    "vit": (public.Vit, images),
    "lstm": (public.CharLstm, characters(20)),
    "mobilenet-v2": (public.mobilenet_v2, larger_images),
    "convnext": (public.convnext, larger_images),
    "unet": (public.Unet, noise),
    "sd-unet": (public.SdUnet, noise),
}


def join(processes):
    """Starts the other processes and meets them; returns the number of this one. It waits for them at its end."""
    rank = int(os.environ.setdefault("RANK", "0"))
    if rank == 0:
        os.environ["MEET"] = os.path.join(tempfile.mkdtemp(), "meet")
        for number in range(1, processes):
            env, none = dict(os.environ, RANK=str(number)), subprocess.DEVNULL
            other = subprocess.Popen([sys.executable, *sys.argv], env=env, stdin=none, stdout=none)
            atexit.register(other.wait)
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
    words, threads, batch = mode.split("-"), int(threads), int(batch)
    rank, processes = 0, 1
    if "ddp" in words and threads > 1:
        threads, processes = 1, threads
        rank = join(processes)
    torch.set_num_threads(threads)
    torch.manual_seed(rank)
    net, minibatch = NETWORKS[network]
    layout = torch.channels_last if "channels_last" in words else torch.contiguous_format
    part = batch // processes + (rank < batch % processes)
    X, y = minibatch(part)
    if X.dim() == 4:
        X = X.to(memory_format=layout)
    net = net().to(memory_format=layout)
    if processes > 1:
        net = nn.parallel.DistributedDataParallel(net)
    if "compile" in words:
        net.compile()
    sgd = torch.optim.SGD(net.parameters(), LR)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in words):
            loss = F.mse_loss(net(X), y) if y.dim() == 4 else F.cross_entropy(net(X).flatten(0, -2), y.flatten())
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        return loss.item()

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
