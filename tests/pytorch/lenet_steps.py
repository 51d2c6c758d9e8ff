"""Ten steps of SGD of the book's LeNet on one batch from the formula, as JSON.

Makes: the logits of the first example before training, the mean loss before each of the ten
updates, and what the eight parameters are after them (sum, first three, last three elements).
Parameters: tensor numbers 0 to 7, standard deviation 0.1, biases too, so that every path of the
gradient matters. Batch: the 8 examples of batch 288. lr 0.05, the book's `train_batch`.

Why that batch: where a convolution gives almost 0, rounding decides whether ReLU lets the gradient
through, and two correct float32 runs part by 1e-4 within a few steps. Batch 288 is the one among
the first 300 that keeps the widest distance from 0; with 32 examples none has such a distance.

Run: `pip install torch safetensors numpy`, then
`python lenet_steps.py > lenet.json`

It refuses arguments, data and GPUs (one fixed computation on the CPU, in float32 and float64), and
to print anything when some ReLU's input is nearer to 0 than twice float32's error.
"""

import sys

import torch
from torch.nn import functional as F

import formula
import networks
import printed
from multiple_gpus import get_params, train_batch

EXAMPLES, BATCH, STEPS, LR = 8, 288, 10, 0.05


def relu_inputs(X, params):
    """What goes into each of the three ReLUs."""
    seen = []

    def relu(h):
        seen.append(h.detach().double())
        return F.relu(h)

    networks.lenet(X, params, relu)
    return seen


def run(dtype, k=1):
    """On k devices: logits before training, losses, parameters before and after, every input of a ReLU."""
    devices = [torch.device("cpu")] * k
    start = [
        torch.from_numpy(formula.uniform(shape, s, 0.1)).to(dtype)
        for s, shape in enumerate(networks.LENET_SHAPES.values())
    ]
    device_params = [get_params(start, device) for device in devices]
    params = device_params[-1]
    X = torch.from_numpy(formula.images(EXAMPLES, BATCH)).to(dtype)
    y = torch.from_numpy(formula.labels(EXAMPLES, BATCH))
    logits = networks.lenet(X[:1], params)[0].detach()
    losses, inputs = [], []
    for _ in range(STEPS):
        inputs += relu_inputs(X, params)
        losses.append(train_batch(X, y, device_params, devices, LR))
    end = [param.detach() for param in params]
    return logits, losses, named(start), named(end), inputs


def named(params):
    """The parameters by name."""
    return dict(zip(networks.LENET_SHAPES, params))


def main():
    torch.set_num_threads(1)  # the distances of float32 depend on it
    f64, f32 = run(torch.float64), run(torch.float32)
    apart = max(abs(one - two) for one, two in zip(f64[1], run(torch.float64, k=2)[1]))
    if apart > 1e-12:
        sys.exit(f"the losses on two devices are not those on one: {apart:.0e} apart")
    margin = min((a.abs().min() / (a - b).abs().max()).item() for a, b in zip(f64[4], f32[4]))
    if margin < 2:
        sys.exit(f"a ReLU's input is {margin:.1f} float32 errors from 0: choose another BATCH")
    printed.show(
        relu_margin=round(margin, 1),  # no input of a ReLU is nearer to 0, in errors of float32
        examples=EXAMPLES,
        batch=BATCH,
        logits=printed.array(f64[0], f32[0]),
        losses=printed.array(f64[1], f32[1]),
        tensors=printed.tensors(f64[2], f64[3], f32[3], ends=2),
    )


if __name__ == "__main__":
    main()
