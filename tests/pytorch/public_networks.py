"""The networks of `examples/networks`, and five steps of each on four examples, as JSON.

Parameters are the formula's, numbered in the order of `state_dict` without buffers: matrices and kernels with the
standard deviation 0.08, other vectors with 0.02, the scales of norms 1 and more. The inputs are the formula's too.
Losses are those of float64; `float32` has the distance of PyTorch's own float32 in each step. MobileNetV2's grows: its
batch norms have few numbers at the end.

Run: `pip install torch numpy`, then `python public_networks.py > public_networks.json`.
"""

import torch
from torch import nn
from torch.nn import functional as F

import formula
import printed

LR = {"mobilenet_v2": 1e-5}  # of the others 0.01: its gradients are large here

WIDTH, HEADS = 64, 4


def heads(x, count):
    """(B, T, count · d) to (B, count, T, d)."""
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


def attention(q, k, v, count, kv_count=None, **how):
    q, k, v = heads(q, count), heads(k, kv_count or count), heads(v, kv_count or count)
    return joined(F.scaled_dot_product_attention(q, k, v, enable_gqa=kv_count is not None, **how))


def rotary(x, count, cos, sin):
    first, second = heads(x, count).chunk(2, -1)
    return joined(torch.cat([first * cos - second * sin, first * sin + second * cos], -1))


class LlamaLayer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.input_layernorm = nn.RMSNorm(WIDTH, 1e-5)
        self.self_attn = nn.ModuleDict({
            "q_proj": linear(WIDTH, WIDTH), "k_proj": linear(WIDTH, WIDTH // 2),
            "v_proj": linear(WIDTH, WIDTH // 2), "o_proj": linear(WIDTH, WIDTH),
        })  # fmt: skip
        self.post_attention_layernorm = nn.RMSNorm(WIDTH, 1e-5)
        self.mlp = nn.ModuleDict({
            "gate_proj": linear(WIDTH, 172), "up_proj": linear(WIDTH, 172), "down_proj": linear(172, WIDTH),
        })  # fmt: skip

    def forward(self, x, cos, sin):
        h, attn, mlp = self.input_layernorm(x), self.self_attn, self.mlp
        q = rotary(attn["q_proj"](h), HEADS, cos, sin)
        k = rotary(attn["k_proj"](h), HEADS // 2, cos, sin)
        h = attention(q, k, attn["v_proj"](h), HEADS, HEADS // 2, is_causal=True)
        x = x + attn["o_proj"](h)
        h = self.post_attention_layernorm(x)
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(128, WIDTH)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(3))
        self.norm = nn.RMSNorm(WIDTH, 1e-5)
        self.lm_head = nn.Linear(WIDTH, 128, bias=False)
        head = WIDTH // HEADS
        angles = torch.arange(64.0)[:, None] * 10_000 ** (-torch.arange(0, head, 2.0) / head)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        t = x.shape[1]
        h = self.embed_tokens(x)
        for layer in self.layers:
            h = layer(h, self.cos[:t], self.sin[:t])
        return self.lm_head(self.norm(h))


class VitBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm_1(x)
        x = x + self.o(attention(self.q(h), self.k(h), self.v(h), HEADS))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 4, stride=4)
        self.class_ = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(50, WIDTH))
        self.blocks = nn.Sequential(*(VitBlock() for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.class_.expand(len(x), 1, WIDTH), patches], 1) + self.places
        return self.head(self.norm(self.blocks(h))[:, 0])


class CharLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(128, 128)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.scores = nn.Linear(128, 128)

    def forward(self, x):
        return self.scores(self.lstm(self.characters(x))[0])


class InvertedResidual(nn.Module):
    def __init__(self, inputs, inside, outputs, stride):
        super().__init__()
        conv = lambda *args, **how: nn.Conv2d(*args, bias=False, **how)
        layers = []
        if inside > inputs:
            layers = [conv(inputs, inside, 1), nn.BatchNorm2d(inside), nn.ReLU6()]
        layers += [
            conv(inside, inside, 3, stride=stride, padding=1, groups=inside), nn.BatchNorm2d(inside), nn.ReLU6(),
            conv(inside, outputs, 1), nn.BatchNorm2d(outputs),
        ]  # fmt: skip
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.layers(x) if self.is_residual else self.layers(x)


def mobilenet_v2():
    blocks, inputs = [], 32
    for times, outputs, count, stride in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ]:  # fmt: skip
        for i in range(count):
            blocks.append(InvertedResidual(inputs, times * inputs, outputs, stride if i == 0 else 1))
            inputs = outputs
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(), *blocks,
        nn.Conv2d(inputs, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10),
    )  # fmt: skip


class ChannelNorm(nn.LayerNorm):
    """Over the channels of (B, C, H, W)."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, 1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x):
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.down(F.gelu(self.up(h))) * self.gamma
        return x + h.permute(0, 3, 1, 2)


def convnext():
    layers, inputs = [nn.Conv2d(3, 40, 4, stride=4), ChannelNorm(40, 1e-6)], 40
    for channels, count in [(40, 2), (80, 2), (160, 6), (320, 2)]:
        if channels != inputs:
            layers += [ChannelNorm(inputs, 1e-6), nn.Conv2d(inputs, channels, 2, stride=2)]
        layers += [ConvNextBlock(channels) for _ in range(count)]
        inputs = channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(inputs, 1e-6), nn.Linear(inputs, 10)]
    return nn.Sequential(*layers, *head)


TIME, MOMENT, CONTEXT = 128, 3.0, 32


class TimeEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, TIME), nn.Linear(TIME, TIME)

    def forward(self, x):
        angles = MOMENT * 10_000 ** (-torch.arange(16, dtype=x.dtype) / 16)
        return self.down(F.silu(self.up(torch.cat([angles.sin(), angles.cos()]).expand(len(x), -1))))


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm_1 = nn.GroupNorm(8, inputs)
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(TIME, outputs)
        self.norm_2 = nn.GroupNorm(8, outputs)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        h = self.conv_1(F.silu(self.norm_1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv_2(F.silu(self.norm_2(h)))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 3, padding=1)
        self.down_1, self.shrink_1 = ResBlock(32, 32), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.down_2, self.shrink_2 = ResBlock(64, 64), nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.middle = ResBlock(128, 128)
        self.grow_2, self.up_2 = nn.ConvTranspose2d(128, 64, 2, stride=2), ResBlock(128, 64)
        self.grow_1, self.up_1 = nn.ConvTranspose2d(64, 32, 2, stride=2), ResBlock(64, 32)
        self.norm, self.out = nn.GroupNorm(8, 32), nn.Conv2d(32, 1, 3, padding=1)
        self.time = TimeEmbedding()

    def forward(self, x):
        time = self.time(x)
        h1 = self.down_1(self.stem(x), time)
        h2 = self.down_2(self.shrink_1(h1), time)
        h = self.middle(self.shrink_2(h2), time)
        h = self.up_2(torch.cat([self.grow_2(h), h2], 1), time)
        h = self.up_1(torch.cat([self.grow_1(h), h1], 1), time)
        return self.out(F.silu(self.norm(h)))


class CrossAttention(nn.Module):
    def __init__(self, channels, context):
        super().__init__()
        self.q = nn.Linear(channels, channels, bias=False)
        self.k, self.v = (nn.Linear(context, channels, bias=False) for _ in range(2))
        self.o = nn.Linear(channels, channels)

    def forward(self, x, context):
        return self.o(attention(self.q(x), self.k(context), self.v(context), 8))


class SpatialTransformer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.project_in = nn.GroupNorm(8, channels), nn.Linear(channels, channels)
        self.norm_1, self.own = nn.LayerNorm(channels), CrossAttention(channels, channels)
        self.norm_2, self.context = nn.LayerNorm(channels), CrossAttention(channels, CONTEXT)
        self.norm_3 = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)
        self.project_out = nn.Linear(channels, channels)

    def forward(self, x):
        context = (torch.arange(4 * CONTEXT, dtype=x.dtype) / 64).reshape(1, 4, CONTEXT).expand(len(x), -1, -1)
        h = self.project_in(self.norm(x).flatten(2).transpose(1, 2))
        own = self.norm_1(h)
        h = h + self.own(own, own)
        h = h + self.context(self.norm_2(h), context)
        gated, gate = self.up(self.norm_3(h)).chunk(2, -1)
        h = self.project_out(h + self.down(gated * F.gelu(gate)))
        return x + h.transpose(1, 2).reshape(x.shape)


class SdUnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 3, padding=1)
        self.down_1, self.look_1 = ResBlock(32, 32), SpatialTransformer(32)
        self.shrink, self.down_2 = nn.Conv2d(32, 32, 3, stride=2, padding=1), ResBlock(32, 64)
        self.middle_1, self.look_middle = ResBlock(64, 64), SpatialTransformer(64)
        self.middle_2 = ResBlock(64, 64)
        self.up_2, self.grow = ResBlock(128, 64), nn.Conv2d(64, 64, 3, padding=1)
        self.up_1, self.look_2 = ResBlock(96, 32), SpatialTransformer(32)
        self.norm, self.out = nn.GroupNorm(8, 32), nn.Conv2d(32, 1, 3, padding=1)
        self.time = TimeEmbedding()

    def forward(self, x):
        time = self.time(x)
        h1 = self.look_1(self.down_1(self.stem(x), time))
        h2 = self.down_2(self.shrink(h1), time)
        h = self.middle_2(self.look_middle(self.middle_1(h2, time)), time)
        h = self.up_2(torch.cat([h, h2], 1), time)
        h = self.grow(F.interpolate(h, scale_factor=2))
        h = self.look_2(self.up_1(torch.cat([h, h1], 1), time))
        return self.out(F.silu(self.norm(h)))


def images(channels, side):
    x = torch.from_numpy(formula.uniform((4, channels, side, side), 1000, 1))
    return x, torch.from_numpy(formula.labels(4, batch=0))


def characters(context):
    x, y = (torch.from_numpy(formula.labels(4 * context, batch=b)).reshape(4, context) for b in range(2))
    return x, y


def noise():
    x, y = (torch.from_numpy(formula.uniform((4, 1, 28, 28), s, 1)) for s in (1000, 1001))
    return x, y


NETWORKS = {
    "llama": (Llama, characters(64)),
    "vit": (Vit, images(1, 28)),
    "lstm": (CharLstm, characters(20)),
    "mobilenet_v2": (mobilenet_v2, images(3, 64)),
    "convnext": (convnext, images(3, 64)),
    "unet": (Unet, noise()),
    "sd_unet": (SdUnet, noise()),
}


def with_formula(net):
    """Vectors that begin with ones are the scales of norms."""
    for s, p in enumerate(net.parameters()):
        is_scale = p.dim() == 1 and bool((p == 1).all())
        value = torch.from_numpy(formula.uniform(tuple(p.shape), s, 0.08 if p.dim() > 1 else 0.02))
        p.data = value + 1 if is_scale else value
    return net


def losses(name, dtype):
    make, (x, y) = NETWORKS[name]
    torch.set_default_dtype(dtype)
    net = with_formula(make()).to(dtype)
    x, y = (t.to(dtype) if t.is_floating_point() else t.long() for t in (x, y))
    sgd, found = torch.optim.SGD(net.parameters(), LR.get(name, 0.01)), []
    for _ in range(5):
        loss = F.mse_loss(net(x), y) if y.dim() == 4 else F.cross_entropy(net(x).flatten(0, -2), y.flatten())
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    parameters = {name: sum(p.numel() for p in make().parameters()) for name, (make, _) in NETWORKS.items()}
    show = {}
    for name in NETWORKS:
        exact, single = (losses(name, dtype) for dtype in (torch.float64, torch.float32))
        apart = [float(f"{abs(a - b):.1e}") for a, b in zip(exact, single)]
        show[name] = {"parameters": parameters[name], "losses": printed.digits(exact), "float32": apart}
    printed.show(**show)
