"""Three steps of SGD of the book's ResNet-18 on batches from the formula, as JSON.

Makes: the logits of four examples in evaluation mode, then the mean losses of three steps in
training mode (lr 0.001, batches 0, 1 and 2, four examples each), and what ten tensors of the state
are after them (sum, first three elements).
State: a tensor's number is its index in `state_dict`, `num_batches_tracked` included. Standard
deviations: convolutions sqrt(2 / fan_in), `fc.1.weight` 0.05, their biases 0.05; batch
normalization: weight 1 + values of 0.1, bias 0.1, running_mean 0.1, running_var 1 + |values of 0.2|
(sums in float32); counters 0.

Run: `pip install torch safetensors numpy`, then
`python resnet_steps.py > resnet.json`

It refuses arguments, data and GPUs: one fixed computation on the CPU, in float32 and float64.
"""

import numpy as np
import torch

import formula
import networks
import printed

EXAMPLES, STEPS, LR = 4, 3, 0.001
CHOSEN = [
    "0.weight",
    "1.weight",
    "1.running_mean",
    "1.running_var",
    "resnet_block2.0.conv3.weight",
    "resnet_block3.1.bn1.weight",
    "resnet_block4.1.bn2.running_mean",
    "resnet_block4.1.bn2.running_var",
    "fc.1.weight",
    "fc.1.bias",
]


def entry(key, shape, s):
    """The formula's value of one entry of `state_dict`."""
    if key.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    if len(shape) == 4:
        return formula.uniform(shape, s, np.sqrt(2 / np.prod(shape[1:])))
    if key.endswith("running_var"):
        return 1 + np.abs(formula.uniform(shape, s, 0.2))
    norm = key.startswith("1.") or ".bn" in key
    values = formula.uniform(shape, s, 0.1 if norm else 0.05)
    return 1 + values if norm and key.endswith("weight") else values


def network(dtype):
    """The ResNet-18 in the formula's state."""
    net = networks.resnet18()
    state = {
        key: torch.from_numpy(entry(key, tuple(value.shape), s))
        for s, (key, value) in enumerate(net.state_dict().items())
    }
    net.load_state_dict(state, strict=True)
    return net.to(dtype)


def chosen(net):
    """A copy of the chosen tensors."""
    return {key: net.state_dict()[key].clone() for key in CHOSEN}


def run(dtype):
    """Evaluation logits before training, losses, the chosen tensors before and after the steps."""
    net = network(dtype)
    start = chosen(net)
    batches = [torch.from_numpy(formula.images(EXAMPLES, b)).to(dtype) for b in range(STEPS)]
    labels = [torch.from_numpy(formula.labels(EXAMPLES, b)) for b in range(STEPS)]
    logits = networks.eval_logits(net, batches[0])
    losses = networks.train(net, zip(batches, labels), LR)
    return logits, losses, start, chosen(net)


def main():
    torch.set_num_threads(1)  # the distances of float32 depend on it
    f64, f32 = run(torch.float64), run(torch.float32)
    logits, losses = (printed.array(f64[i], f32[i]) for i in (0, 1))
    tensors = printed.tensors(f64[2], f64[3], f32[3], ends=1)
    printed.show(logits=logits, losses=losses, tensors=tensors)


if __name__ == "__main__":
    main()
