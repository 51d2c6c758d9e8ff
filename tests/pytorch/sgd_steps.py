"""Prints three steps of torch.optim.SGD: the constants of crates/functional/tests/operations/training.rs."""

import torch

for lr, momentum, weight_decay in [(0.1, 0, 0), (0.1, 0, 0.5), (0.1, 0.9, 0), (0.2, 0.5, 0.25)]:
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.SGD([p], lr=lr, momentum=momentum, weight_decay=weight_decay)
    for gradient in [[0.5, 1.0], [0.25, -1.0], [2.0, 0.5]]:
        p.grad = torch.tensor(gradient)
        optimizer.step()
        print(lr, momentum, weight_decay, p.tolist())
