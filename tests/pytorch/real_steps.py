"""A few steps of PyTorch on the real images, for comparing a run of ours with `compare.py`.

Makes in the folder `--out`: `init.safetensors` (the state before the first step), `steps.csv`
(`epoch,step,examples,loss`: counted from 1, the examples of this minibatch, its mean loss before
its update), `model.safetensors` (the state after the last step) and, for ResNet-18,
`logits.safetensors` (`logits`: the initial state's, in evaluation mode, for the first 64 test
images). Images are byte / 255 as float32, taken in file order, never shuffled.

- lenet: ten steps of 256 examples, lr 0.05. Weights N(0, 0.1), biases 0; the book's 0.01 would
  leave the gradients of the lower layers so small that ten steps of anything look alike.
- resnet18: three steps of 32 examples, lr 0.001. Convolutions and linear layer as the book's
  `init_weights` says, N(0, 0.01); with `--default-init` as PyTorch makes them.

`--float64` computes in float64 from the same initial state: the distance between the two runs is
the smallest tolerance worth asking for.

Run: `pip install torch safetensors numpy`, then
`python real_steps.py --network lenet --data DIR --out OUT`

It refuses to download (DIR holds the four official IDX .gz files), files that are not IDX or that
disagree about their number of examples, and an `--out` that already has a model in it.
"""

import argparse
import csv
import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

import networks
from multiple_gpus import train_batch

IMAGES, LABELS = 0x803, 0x801  # the first four bytes: unsigned bytes in 3 dimensions, in 1


def read_idx(path, magic):
    """The array in an IDX file, as uint8."""
    if not path.exists():
        sys.exit(f"{path} is missing: the folder has to hold the four official IDX .gz files")
    raw = gzip.open(path).read()
    rank = magic & 0xFF
    found, *shape = struct.unpack_from(f">{1 + rank}I", raw)
    if found != magic:
        sys.exit(f"{path}: starts with {found:#x}, not {magic:#x}: not the file its name says")
    data = np.frombuffer(raw, np.uint8, offset=4 * (1 + rank))
    if data.size != np.prod(shape):
        sys.exit(f"{path}: holds {data.size} bytes, its header says {shape}: get it again")
    return data.reshape(shape)


def read_split(data, split):
    """Images (N, 1, 28, 28) float32 from 0 to 1 and labels (N,) int64 of `train` or `t10k`."""
    X = read_idx(data / f"{split}-images-idx3-ubyte.gz", IMAGES)
    y = read_idx(data / f"{split}-labels-idx1-ubyte.gz", LABELS)
    if len(X) != len(y):
        sys.exit(f"{data}: {split} has {len(X)} images, but {len(y)} labels: get them again")
    X = torch.from_numpy(X.astype(np.float32) / np.float32(255)).unsqueeze(1)
    return X, torch.from_numpy(y.astype(np.int64))


def minibatches(X, y, count, size):
    """The first `count` minibatches in file order."""
    if len(X) < count * size:
        sys.exit(f"{len(X)} training examples, {count} steps of {size} need {count * size}")
    return zip(X[: count * size].split(size), y[: count * size].split(size))


def lenet_run(args, dtype, train):
    """The losses of the ten steps and the state after them."""
    params = {name: torch.zeros(shape) for name, shape in networks.LENET_SHAPES.items()}
    for name in ("W1", "W2", "W3", "W4"):
        params[name].normal_(std=0.1)
    save_file(params, args.out / "init.safetensors")
    weights = [param.to(dtype).requires_grad_() for param in params.values()]
    steps = minibatches(*train, count=10, size=256)
    losses = [(len(X), train_batch(X, y, [weights], ["cpu"], lr=0.05)) for X, y in steps]
    return losses, {name: weight.detach() for name, weight in zip(params, weights)}


def init_weights(module):
    """The book's `init_weights`."""
    if type(module) in (nn.Linear, nn.Conv2d):
        nn.init.normal_(module.weight, std=0.01)


def resnet18_run(args, dtype, train):
    """The losses of the three steps and the state after them."""
    net = networks.resnet18()
    if not args.default_init:
        net.apply(init_weights)
    save_file(net.state_dict(), args.out / "init.safetensors")
    net = net.to(dtype)
    test = read_split(args.data, "t10k")[0][:64].to(dtype)
    save_file({"logits": networks.eval_logits(net, test)}, args.out / "logits.safetensors")
    losses = networks.train(net, minibatches(*train, count=3, size=32), lr=0.001)
    return [(32, loss) for loss in losses], net.state_dict()


def write_steps(path, losses):
    """`steps.csv` of one epoch."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["epoch", "step", "examples", "loss"])
        table.writerows((1, step, *row) for step, row in enumerate(losses, start=1))


def arguments():
    """The command line."""
    first, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=("lenet", "resnet18"), required=True)
    parser.add_argument("--data", type=Path, required=True, help="the official IDX .gz files")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of the initial state (default 0)")
    parser.add_argument("--default-init", action="store_true", help="ResNet-18: PyTorch's own")
    parser.add_argument("--float64", action="store_true", help="compute in float64")
    args = parser.parse_args()
    if args.default_init and args.network == "lenet":
        parser.error("--default-init is for resnet18: LeNet's parameters have no default")
    if (args.out / "model.safetensors").exists():
        parser.error(f"{args.out} already has a model.safetensors: give another --out")
    return args


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    dtype = torch.float64 if args.float64 else torch.float32
    X, y = read_split(args.data, "train")
    torch.manual_seed(args.seed)
    run = lenet_run if args.network == "lenet" else resnet18_run
    losses, state = run(args, dtype, (X[:2560].to(dtype), y))
    write_steps(args.out / "steps.csv", losses)
    save_file(state, args.out / "model.safetensors")
    for step, (_, loss) in enumerate(losses, start=1):
        print(f"step {step}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
