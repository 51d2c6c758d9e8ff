"""Twenty steps of each optimizer on a small network, and the schedules, as JSON.

The network: Linear(784, 16), ReLU, Linear(16, 10), with the formula's parameters (standard deviation 0.05, numbers
0 to 3), on batches 0 to 19 of seven examples each. Prints the losses, and what each parameter is at the end.

Run: `pip install torch numpy`, then `python optimizer_steps.py > optimizers.json`
"""

import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

import formula
import printed

STEPS, EXAMPLES = 20, 7


def sgd(net, **options):
    return torch.optim.SGD(net.parameters(), lr=0.05, **options)


def adamw(net, **options):
    return torch.optim.AdamW(net.parameters(), lr=0.01, **options)


def by_name(net):
    """The first layer ten times slower, the last bias frozen."""
    net[2].bias.requires_grad_(False)
    groups = [{"params": net[0].parameters(), "lr": 0.001}, {"params": [net[2].weight]}]
    return torch.optim.AdamW(groups, lr=0.01)


def warmed_up(optimizer):
    warmup = schedulers.LambdaLR(optimizer, lambda step: (step + 1) / 4)
    cosine = schedulers.CosineAnnealingLR(optimizer, 16)
    return schedulers.SequentialLR(optimizer, [warmup, cosine], [4])


# name: the optimizer, the largest norm of the gradient, the schedule
RUNS = {
    "plain": (sgd, None, None),
    "decay": (lambda net: sgd(net, weight_decay=0.1), None, None),
    "momentum": (lambda net: sgd(net, momentum=0.9, weight_decay=0.01), None, None),
    "nesterov": (lambda net: sgd(net, momentum=0.9, weight_decay=0.01, nesterov=True), None, None),
    "adamw": (adamw, None, None),
    "other adamw": (lambda net: adamw(net, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.3), None, None),
    "clipped": (lambda net: sgd(net, momentum=0.9), 0.5, None),
    "rates": (by_name, 1.0, None),
    "warmed up": (adamw, None, warmed_up),
}


def network(dtype):
    net = nn.Sequential(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
    for s, p in enumerate(net.parameters()):
        p.data = torch.from_numpy(formula.uniform(tuple(p.shape), s, 0.05))
    return net.to(dtype)


def run(name, dtype):
    """The losses, and the parameters before and after."""
    make, max_norm, schedule = RUNS[name]
    net = network(dtype)
    state = lambda: {key: value.clone() for key, value in net.state_dict().items()}
    start, optimizer, losses = state(), make(net), []
    scheduler = schedule(optimizer) if schedule else None
    for batch in range(STEPS):
        x = torch.from_numpy(formula.images(EXAMPLES, batch)).to(dtype).flatten(1)
        loss = nn.functional.cross_entropy(net(x), torch.from_numpy(formula.labels(EXAMPLES, batch)))
        optimizer.zero_grad()
        loss.backward()
        if max_norm:
            nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(loss.item())
    return losses, start, state()


def factors(make, steps):
    """By what a schedule multiplies a learning rate of 1 at each step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return printed.digits(found)


def main():
    torch.set_num_threads(1)  # the distances of float32 depend on it
    found = {name: printed.steps(lambda dtype: run(name, dtype)) for name in RUNS}
    schedules = {
        "cosine": factors(lambda o: schedulers.CosineAnnealingLR(o, 10), 10),
        "linear": factors(lambda o: schedulers.LinearLR(o, 1.0, 0.0, 10), 10),
        "step": factors(lambda o: schedulers.StepLR(o, 3, 0.1), 10),
        "one_cycle": factors(lambda o: schedulers.OneCycleLR(o, 1.0, total_steps=11, cycle_momentum=False), 10),
    }
    printed.show(runs=found, schedules=schedules)


if __name__ == "__main__":
    main()
