"""Five steps of SGD on a network of layers for sequences, as JSON.

All parameters but those of the norms are the formula's (standard deviation 0.2, in the order of their registration).
Batches 0 to 4 have seven examples each. Prints the losses, and what each tensor is at the end.

Run: `pip install torch numpy`, then `python sequence_steps.py > sequences.json`
"""

import torch
from torch import nn
from torch.nn import functional as F

import formula
import layer_steps
import printed


class Network(nn.Module):
    """Rows of an image as a sequence: (B, 1, 28, 28) to (B, 10)."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.group = nn.GroupNorm(2, 8)
        self.lstm = nn.LSTM(14 * 8, 12, batch_first=True)
        self.rms = nn.RMSNorm(12, eps=1e-5)
        self.q, self.k, self.v = nn.Linear(12, 12), nn.Linear(12, 6, bias=False), nn.Linear(12, 6)
        self.gru = nn.GRU(12, 10, batch_first=True)
        self.norm = nn.LayerNorm(10, eps=1e-3)
        self.fc = nn.Linear(10, 10)

    def rotated(self, x):
        """Of each position by its angles: (B, heads, T, D)."""
        angles = torch.arange(14)[:, None] / torch.tensor([1.0, 10.0, 100.0])
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x):
        heads = lambda x: x.reshape(len(x), 14, -1, 6).transpose(1, 2)
        x = F.silu(self.group(self.conv(x)))
        x = self.lstm(x.permute(0, 2, 3, 1).reshape(len(x), 14, 14 * 8))[0]
        h = self.rms(x)
        q, k, v = self.rotated(heads(self.q(h))), self.rotated(heads(self.k(h))), heads(self.v(h))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = torch.tanh(x + h.transpose(1, 2).reshape(x.shape))
        x = F.relu6(self.norm(self.gru(x)[0])[:, -1])
        return self.fc(x * torch.sigmoid(x))


def network():
    net = Network()
    norms = ("group", "rms", "norm")
    drawn = [p for name, p in net.named_parameters() if name.split(".")[0] not in norms]
    for s, p in enumerate(drawn):
        p.data = torch.from_numpy(formula.uniform(tuple(p.shape), s, 0.2))
    return net


if __name__ == "__main__":
    torch.set_num_threads(1)  # the distances of float32 depend on it
    printed.show(**printed.steps(lambda dtype: layer_steps.run(network, dtype)))
