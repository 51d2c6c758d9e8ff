"""A hundred steps of AdamW on the transformer of example 17, as JSON.

Parameters are the formula's, numbered in the order of `state_dict`: matrices with standard deviation 0.08, biases with
0.02, the scales of norms 1 and more. Minibatches of eight come from LICENSE-APACHE, as in the example. Prints the
losses, and what each tensor is at the end.

Run: `pip install torch numpy`, then `python transformer_steps.py > transformer.json`.
`python transformer_steps.py padded > transformer_padded.json` takes parts of different lengths, and the mean over all
characters that are no padding.
`python transformer_steps.py time` prints the milliseconds of a step on 64 examples, eager and compiled.
"""

import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import formula
import printed

STEPS, EXAMPLES, CONTEXT, WIDTH, HEADS, CHARACTERS = 100, 8, 32, 64, 4, 128
TEXT = (pathlib.Path(__file__).parents[2] / "LICENSE-APACHE").read_bytes()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).reshape(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(h.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.block_1, self.block_2 = Block(), Block()
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, CHARACTERS)

    def forward(self, x):
        h = self.characters(x) + self.places(torch.arange(x.shape[1]))
        return self.scores(self.norm(self.block_2(self.block_1(h))))


def network(dtype):
    net = Transformer()
    for s, (name, p) in enumerate(net.named_parameters()):
        value = torch.from_numpy(formula.uniform(tuple(p.shape), s, 0.08 if p.dim() == 2 else 0.02))
        p.data = value + 1 if "norm" in name and name.endswith("weight") else value
    return net.to(dtype)


def batch(step, examples):
    starts = [(step * examples + e) * 7919 % (len(TEXT) - CONTEXT) for e in range(examples)]
    both = torch.tensor([list(TEXT[s : s + CONTEXT + 1]) for s in starts])
    return both[:, :-1], both[:, 1:]


def padded(step, x, y):
    """Example e keeps 1 + (7 step + 5 e) mod CONTEXT characters; PyTorch ignores the label -100."""
    lengths = torch.tensor([1 + (7 * step + 5 * e) % CONTEXT for e in range(len(x))])
    hidden = torch.arange(CONTEXT) >= lengths[:, None]
    return x.masked_fill(hidden, 0), y.masked_fill(hidden, -100)


def take_step(net, adamw, x, y):
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    adamw.zero_grad()
    loss.backward()
    adamw.step()
    return loss.item()


def run(dtype, pad):
    """The losses, and the tensors before and after."""
    net = network(dtype)
    state = lambda: {k: v.clone() for k, v in net.state_dict().items()}
    start, adamw = state(), torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        x, y = batch(step, EXAMPLES)
        losses.append(take_step(net, adamw, *(padded(step, x, y) if pad else (x, y))))
    return losses, start, state()


def milliseconds(compiled):
    net = Transformer()
    adamw = torch.optim.AdamW(net.parameters(), lr=3e-3)
    forward, times = torch.compile(net) if compiled else net, []
    for step in range(60):
        x, y = batch(step, 64)
        begin = time.perf_counter()
        take_step(forward, adamw, x, y)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[10:])


if __name__ == "__main__":
    if sys.argv[1:] == ["time"]:
        print(f"eager {milliseconds(False):.1f} ms, compiled {milliseconds(True):.1f} ms")
        sys.exit()
    torch.set_num_threads(1)  # the distances of float32 depend on it
    printed.show(**printed.steps(lambda dtype: run(dtype, pad=sys.argv[1:] == ["padded"])))
