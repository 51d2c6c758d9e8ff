"""The two networks of the book's multi-GPU sections, in PyTorch, and the training of ResNet-18.

The module names give `state_dict` the book's keys: `0.weight`, `1.running_mean`,
`resnet_block2.0.conv3.weight`, `fc.1.bias`. Unlike the book nothing is lazy: every layer is told
its input channels, so that the parameters exist before the first batch. (The book's `init_weights`
passes over layers that are still lazy; here it reaches all of them.) The chapter shows `resnet18`,
`evaluate_accuracy` and `train` folded under those of this project.

It refuses to run anything by itself: the scripts beside it import it.
"""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

LENET_SHAPES = OrderedDict(
    W1=(20, 1, 3, 3), b1=(20,), W2=(50, 20, 5, 5), b2=(50,),
    W3=(800, 128), b3=(128,), W4=(128, 10), b4=(10,),
)  # fmt: skip


def lenet(X, params, relu=F.relu):
    """The logits (B, 10) of images (B, 1, 28, 28)."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = F.avg_pool2d(relu(F.conv2d(X, W1, b1)), 2)
    h2 = F.avg_pool2d(relu(F.conv2d(h1, W2, b2)), 2).flatten(start_dim=1)
    return relu(h2 @ W3 + b3) @ W4 + b4


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut, which `conv3` fits where the block changes shape."""

    def __init__(self, in_channels, channels, strides):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=strides, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv3 = None
        if strides > 1:
            self.conv3 = nn.Conv2d(in_channels, channels, 1, stride=strides)
        self.bn1 = nn.BatchNorm2d(channels)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, X):
        Y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(X)))))
        return F.relu(Y + (self.conv3(X) if self.conv3 else X))


def resnet18(num_classes=10, in_channels=1):
    """The book's ResNet-18 for small images: a 3x3 stem of stride 1 and no max pooling."""
    net = nn.Sequential(
        nn.Conv2d(in_channels, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()
    )
    for i, (before, channels) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)]):
        blocks = [Residual(before, channels, 1 if i == 0 else 2), Residual(channels, channels, 1)]
        net.add_module(f"resnet_block{i + 1}", nn.Sequential(*blocks))
    net.add_module("global_avg_pool", nn.AdaptiveAvgPool2d((1, 1)))
    net.add_module("fc", nn.Sequential(nn.Flatten(), nn.Linear(512, num_classes)))
    return net


def train(net, train_iter, lr):
    trainer = torch.optim.SGD(net.parameters(), lr)
    losses = []
    net.train()  # batch norm uses the statistics of the minibatch
    for X, y in train_iter:
        loss = F.cross_entropy(net(X), y)
        loss.backward()
        trainer.step()
        trainer.zero_grad()
        losses.append(loss.item())  # of each minibatch, before its update
    return losses


def evaluate_accuracy(net, data_iter):
    net.eval()  # batch norm uses its running statistics
    correct = predictions = 0
    with torch.no_grad():
        for X, y in data_iter:
            correct += (net(X).argmax(1) == y).sum().item()
            predictions += len(y)
    return correct / predictions


def eval_logits(net, X):
    """The logits of X in evaluation mode: batch normalization uses its running statistics."""
    net.eval()
    with torch.no_grad():
        return net(X)
