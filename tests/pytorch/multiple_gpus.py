"""The functions of section 13.5 in PyTorch. The chapter shows them folded under those of `crates/scratch`.

`lenet_steps.py` makes the numbers in `lenet.json` with them, on one device and on two.

It refuses to run anything by itself: the scripts beside it import it.
"""

import torch
from torch.nn import functional as F

from networks import LENET_SHAPES, lenet


def init_params(seed):
    torch.manual_seed(seed)
    params = [torch.randn(shape) * 0.01 for shape in LENET_SHAPES.values()]
    return [p if p.dim() > 1 else torch.zeros_like(p) for p in params]


def get_params(params, device):
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]


def allreduce(data):
    for other in data[1:]:
        data[0].add_(other.to(data[0].device))
    for other in data[1:]:
        other.copy_(data[0])


def split_batch(X, y, devices):
    X_parts, y_parts = X.tensor_split(len(devices)), y.tensor_split(len(devices))
    X_shards = [part.to(device) for part, device in zip(X_parts, devices)]
    y_shards = [part.to(device) for part, device in zip(y_parts, devices)]
    return X_shards, y_shards


def loss(y_hat, y):
    return F.cross_entropy(y_hat, y, reduction="none")


def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    # GPUs work in the background, so this loop keeps all of them busy; on a CPU one waits for the other
    ls = [
        loss(lenet(X_shard, params), y_shard).sum()
        for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)
    ]
    for l in ls:
        l.backward()
    with torch.no_grad():
        for same_param in zip(*device_params):
            allreduce([param.grad for param in same_param])
        for params in device_params:
            for param in params:
                param -= lr * param.grad / len(X)
                param.grad = None  # `backward` would add to it
    return sum(l.item() for l in ls) / len(X)
