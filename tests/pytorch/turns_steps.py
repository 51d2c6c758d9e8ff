"""Ten rounds of two optimizers that take turns on one network, as JSON.

"gan": a generator, Linear(2, 3), and a critic, Linear(3, 8), GELU, Linear(8, 3). In each round the critic takes a step on
noise and real examples, and then the generator a step on the same noise.

"tasks": a body, Linear(5, 8), GELU, and two heads, Linear(8, 3) with cross-entropy and Linear(8, 3) with squared errors.
Each optimizer has the body and its own head.

"waiting": the same, but the first optimizer's step has the gradients of two minibatches, between which the second
optimizer takes its step.

The parameters are the formula's (standard deviation 0.5, numbers 0 to 5), the inputs as well. Prints the losses, and what
each parameter is at the end.

Run: `pip install torch numpy`, then `python turns_steps.py > turns.json`
"""

import torch
from torch import nn
from torch.nn import functional as F

import formula
import printed

ROUNDS, EXAMPLES = 10, 6

OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
}


def drawn(net, dtype):
    for s, p in enumerate(net.parameters()):
        p.data = torch.from_numpy(formula.uniform(tuple(p.shape), s, 0.5)).to(dtype)
    return net


def inputs(s, shape, dtype):
    return torch.from_numpy(formula.uniform(shape, 100 + s, 1.0)).to(dtype)


def classes(s):
    return torch.from_numpy(formula.labels(EXAMPLES, s) % 3)


def state(net):
    return {key: value.clone() for key, value in net.state_dict().items()}


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def gan(make, dtype):
    net = nn.ModuleDict({"g": nn.Linear(2, 3), "d": nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 3))})
    net = drawn(net, dtype)
    start, losses = state(net), []
    of_d, of_g = make(net["d"].parameters()), make(net["g"].parameters())
    to = lambda y, value: F.binary_cross_entropy_with_logits(y, torch.full_like(y, value))
    for i in range(ROUNDS):
        noise, real = inputs(2 * i, (EXAMPLES, 2), dtype), inputs(2 * i + 1, (EXAMPLES, 3), dtype)
        fake = net["g"](noise)
        losses.append(step(of_d, to(net["d"](real), 1.0) + to(net["d"](fake.detach()), 0.0)))
        losses.append(step(of_g, to(net["d"](net["g"](noise)), 1.0)))
    return losses, start, state(net)


def two_heads(dtype):
    net = {"body": nn.Linear(5, 8), "a": nn.Linear(8, 3), "b": nn.Linear(8, 3)}
    return drawn(nn.ModuleDict(net), dtype)


def loss_of_a(net, s, dtype):
    h = F.gelu(net["body"](inputs(s, (EXAMPLES, 5), dtype)))
    return F.cross_entropy(net["a"](h), classes(s))


def loss_of_b(net, s, dtype):
    h = F.gelu(net["body"](inputs(s, (EXAMPLES, 5), dtype)))
    return F.mse_loss(net["b"](h), inputs(s + 50, (EXAMPLES, 3), dtype))


def optimizers(net, make):
    return [make([*net["body"].parameters(), *net[head].parameters()]) for head in "ab"]


def tasks(make, dtype):
    net = two_heads(dtype)
    start, losses = state(net), []
    of_a, of_b = optimizers(net, make)
    for i in range(ROUNDS):
        losses.append(step(of_a, loss_of_a(net, 2 * i, dtype)))
        losses.append(step(of_b, loss_of_b(net, 2 * i + 1, dtype)))
    return losses, start, state(net)


def waiting(make, dtype):
    net = two_heads(dtype)
    start, losses = state(net), []
    of_a, of_b = optimizers(net, make)
    params = of_a.param_groups[0]["params"]
    for i in range(ROUNDS):
        first = loss_of_a(net, 3 * i, dtype)
        waits = torch.autograd.grad(first, params)
        losses.append(first.item())
        losses.append(step(of_b, loss_of_b(net, 3 * i + 1, dtype)))
        second = loss_of_a(net, 3 * i + 2, dtype)
        losses.append(second.item())
        for param, a, b in zip(params, waits, torch.autograd.grad(second, params)):
            param.grad = (a + b) / 2
        of_a.step()
    return losses, start, state(net)


def main():
    torch.set_num_threads(1)  # the distances of float32 depend on it
    found = {}
    for run in (gan, tasks, waiting):
        for name, make in OPTIMIZERS.items():
            found[f"{run.__name__} {name}"] = printed.steps(lambda dtype: run(make, dtype))
    printed.show(runs=found)


if __name__ == "__main__":
    main()
