"""A training step of LeNet or ResNet-18 in PyTorch on a GPU, for `xtask gpu-check`.

    pytorch_gpu.py MODE NETWORK BATCH

MODE is eager, graph (the eager step captured as a CUDA graph), compile (torch.compile with CUDA
graphs), or for ResNet-18, in channels_last, eager, eager-tuned (cudnn.benchmark, which is off
otherwise), compile, and compile-bf16 (autocast). Data and labels are on the GPU. It says `ready` and
its version, then takes the number of steps to do from each line of its input, and answers with the
milliseconds of one.

TF32 as PyTorch sets it: in convolutions, not in matrix products. The networks are those of
`tests/pytorch/networks.py`.
"""

import math
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "pytorch"))
import networks  # noqa: E402

LR = 0.01


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


def main(mode, network, batch):
    torch.manual_seed(0)
    batch = int(batch)
    X = torch.randn(batch, 1, 28, 28, device="cuda")
    y = torch.randint(10, (batch,), device="cuda")
    step = {"lenet": lenet, "resnet18": resnet18}[network](X, y, mode)
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
