"""A training step, or an epoch, of LeNet or ResNet-18 in PyTorch on a GPU, for `xtask gpu-check`.

    pytorch_gpu.py MODE HOW NETWORK BATCH
    pytorch_gpu.py ceilings

MODE is eager, graph (the eager step captured as a CUDA graph), compile (torch.compile with CUDA
graphs), or for ResNet-18, in channels_last, eager, eager-tuned (cudnn.benchmark, which is off
otherwise), compile, and compile-bf16 (autocast). Data and labels are on the GPU. HOW is steps, epochs
or alone. It says `ready` and its version, then takes the number of steps (epochs) to do from each line
of its input, and answers with the milliseconds of one. With alone it does thirty steps and says how
many MiB of the GPU are taken, and the milliseconds for which a step keeps the host busy.

`ceilings` says how many GB/s a copy moves there (reads and writes), and how many TFLOP/s a product of
large matrices reaches in TF32 and in bf16.

TF32 as PyTorch sets it: in convolutions, not in matrix products. The networks are those of
`tests/pytorch/networks.py`.
"""

import math
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "pytorch"))
import networks  # noqa: E402

LR = 0.01
EXAMPLES = 60000


def lenet(X, y, mode):
    """A step on the contents of X and y, which stay in their places."""
    shapes = networks.LENET_SHAPES.values()
    params = [(torch.randn(shape, device="cuda") * 0.01).requires_grad_() for shape in shapes]
    for tensor in [X, y, *params]:
        torch._dynamo.mark_static_address(tensor)

    def step():
        loss = F.cross_entropy(networks.lenet(X, params), y, reduction="sum")
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-LR / len(X))
        return loss.detach()

    return captured(step, mode)


def resnet18(X, y, mode):
    # with one channel `to` would leave the strides as they are, and the first layers in NCHW
    X = X.as_strided(X.shape, (X[0].numel(), 1, X.shape[3], 1))
    net = networks.resnet18().cuda().to(memory_format=torch.channels_last).train()
    stem = net[0].weight
    stem.data = stem.data.as_strided(stem.shape, (stem[0].numel(), 1, stem.shape[3], 1))
    torch.backends.cudnn.benchmark = mode == "eager-tuned"
    trainer = torch.optim.SGD(net.parameters(), LR)

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=mode.endswith("bf16")):
            loss = F.cross_entropy(net(X), y)
        loss.backward()
        trainer.step()
        trainer.zero_grad()
        return loss.detach()

    return captured(step, mode.removesuffix("-bf16"))


def captured(step, mode):
    if mode == "compile":
        compiled = torch.compile(step, mode="reduce-overhead")

        def marked():
            torch.compiler.cudagraph_mark_step_begin()
            return compiled().clone()

        return marked
    if mode != "graph":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss

    return replay


def epoch(X, y, step, batch):
    """All whole minibatches in a new order, as by a loader with its images on the GPU. The short last
    minibatch is left out."""
    images = torch.rand(EXAMPLES, 1, 28, 28, device="cuda")
    labels = torch.randint(10, (EXAMPLES,), device="cuda")

    def run():
        order = torch.randperm(EXAMPLES, device="cuda")
        for indices in order[: EXAMPLES - EXAMPLES % batch].split(batch):
            X.copy_(images[indices])
            y.copy_(labels[indices])
            loss = step()
        return loss

    return run


def alone(step):
    busy = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        busy.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    print((total - free) >> 20, statistics.median(busy[10:]), flush=True)


def ceilings(n=8192, device="cuda"):
    def seconds(work):
        times = []
        for _ in range(12):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                work()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / 10)
        return statistics.median(times[2:])

    a, b, c = (torch.rand(n, n, device=device) for _ in range(3))
    copy = 2 * a.nbytes / seconds(lambda: c.copy_(a)) / 1e9
    torch.backends.cuda.matmul.allow_tf32 = True
    tf32 = 2 * n**3 / seconds(lambda: torch.mm(a, b, out=c)) / 1e12
    a, b, c = a.bfloat16(), b.bfloat16(), c.bfloat16()
    bf16 = 2 * n**3 / seconds(lambda: torch.mm(a, b, out=c)) / 1e12
    print(copy, tf32, bf16, flush=True)


def main(mode, how=None, network=None, batch=None):
    if mode == "ceilings":
        return ceilings()
    torch.manual_seed(0)
    batch = int(batch)
    X = torch.randn(batch, 1, 28, 28, device="cuda")
    y = torch.randint(10, (batch,), device="cuda")
    step = {"lenet": lenet, "resnet18": resnet18}[network](X, y, mode)
    if how == "alone":
        return alone(step)
    if how == "epochs":
        step = epoch(X, y, step, batch)
    cuda, cudnn = torch.version.cuda, torch.backends.cudnn.version()
    print("ready PyTorch", torch.__version__, "CUDA", cuda, "cuDNN", cudnn, flush=True)
    for line in sys.stdin:
        steps = int(line)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        torch.cuda.synchronize()
        milliseconds = (time.perf_counter() - start) * 1e3 / steps
        assert math.isfinite(loss.item()), f"the loss is {loss.item()}"
        print(f"{milliseconds:.5f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
