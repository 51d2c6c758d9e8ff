"""The recipe of examples/16_time_to_accuracy.rs in PyTorch: prints the accuracy and the seconds of training.

Run: `pip install torch safetensors numpy`, then `python time_to_accuracy.py DIR [--width 32 --epochs 10] [--compile]`.
Convolutions are channels-last, the faster layout here. What `torch.compile` takes to compile is not counted.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from networks import evaluate_accuracy
from real_steps import read_split

parser = argparse.ArgumentParser()
parser.add_argument("data", type=Path)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()


def block(inputs, outputs, pool):
    conv = nn.Conv2d(inputs, outputs, 3, padding=1)
    return nn.Sequential(conv, nn.MaxPool2d(pool), nn.BatchNorm2d(outputs), nn.ReLU())


def network(w):
    return nn.Sequential(
        nn.Conv2d(1, w, 5), nn.ReLU(), nn.AvgPool2d(2), nn.BatchNorm2d(w),
        block(w, 2 * w, 2), block(2 * w, 4 * w, 2), block(4 * w, 4 * w, 1),
        nn.Flatten(), nn.Linear(4 * w * 3 * 3, 10),
    )  # fmt: skip


def train(net, X, y, epochs):
    net.train()
    steps = epochs * -(-len(X) // 64)
    up = steps // 5
    sgd = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    lr = LambdaLR(sgd, lambda i: (i + 1) / up if i < up else 1 - (i - up) / (steps - up))
    loss = nn.CrossEntropyLoss(label_smoothing=0.05)
    start = time.perf_counter()
    for _ in range(epochs):
        for batch in torch.randperm(len(X)).split(64):
            x = X[batch]
            x = torch.where(torch.rand(len(x), 1, 1, 1) >= 0.5, x.flip(3), x)
            sgd.zero_grad()
            loss(net(x.to(memory_format=torch.channels_last)), y[batch]).backward()
            sgd.step()
            lr.step()
    return time.perf_counter() - start


torch.manual_seed(args.seed)
(X, y), (X_test, y_test) = (read_split(args.data, split) for split in ("train", "t10k"))
net = network(args.width).to(memory_format=torch.channels_last)
if args.compile:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.compile()
    train(net, X[:96], y[:96], 1)  # both sizes of minibatch that there are
    net.load_state_dict(before)
seconds = train(net, X, y, args.epochs)
test_acc = evaluate_accuracy(net, zip(X_test.split(500), y_test.split(500)))
print(f"test acc: {test_acc:.4f} after {seconds:.1f} seconds of training")
