"""What PyTorch makes of a few networks in three steps: the reference files beside this script.

    python3 -m venv env && env/bin/pip install torch==2.15.0 torchvision==0.29.2
    env/bin/python references.py

Each network is torchvision's, or is put together here from PyTorch's own layers. Parameters, inputs and labels come from a
counter-based generator (Philox4x32-10) that `../pytorch.rs` has as well, so no weights are stored. The network makes three
steps of SGD, or of AdamW in the files that say so, in f64, which is the truth, and in f32, which says how much rounding alone can do. A file holds, for each
parameter and running statistic after the steps, its norm, its largest element and a dozen others, in the order in which
Plimsoll stores them (convolutions [out][rows][columns][in], everything else as PyTorch has it).

Where there is a ReLU after a batch normalisation, the normalisation starts with a shift of three times its scale. With a
shift of zero, a few of a million numbers lie so near zero that f32 has them on the other side; a batch of a few samples
on deep networks makes percents of that within three steps, in PyTorch's own f32 too, and nothing could be compared.

What it deliberately does not do: dropout, whose draws differ between any two programs; it is off on both sides.
"""

import json
import math
import pathlib
import re
import sys

import numpy
import torch
import torchvision

SEED = 2
STEPS = 3
SAMPLES = 12
# The last word of the counter keeps the draws apart.
PARAMETERS, INPUT, LABELS = 0, 1, 2


def philox(key, counters):
    """Philox4x32-10 of many counters, [n][4] of u32."""
    low, half = numpy.uint64(0xFFFFFFFF), numpy.uint64(32)
    c = [counters[:, i].astype(numpy.uint64) for i in range(4)]
    k = [numpy.uint64(key & 0xFFFFFFFF), numpy.uint64(key >> 32)]
    for _ in range(10):
        a, b = numpy.uint64(0xD2511F53) * c[0], numpy.uint64(0xCD9E8D57) * c[2]
        c = [(b >> half) ^ c[1] ^ k[0], b & low, (a >> half) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + numpy.uint64(0x9E3779B9)) & low, (k[1] + numpy.uint64(0xBB67AE85)) & low]
    return numpy.stack(c, axis=1).astype(numpy.uint32)


assert philox(0, numpy.zeros((1, 4), dtype=numpy.uint32))[0, 0] == 0x6627E8D5, "the known answer"


def words(count, number, stream):
    """The first `count` words of the sequence `number` of a stream."""
    blocks = (count + 3) // 4
    counters = numpy.zeros((blocks, 4), dtype=numpy.uint32)
    counters[:, 0], counters[:, 1], counters[:, 3] = numpy.arange(blocks), number, stream
    return philox(SEED, counters).reshape(-1)[:count]


def uniform(count, number, stream, centre, spread):
    """f32 from centre - spread to centre + spread; one rounding an operation, as in Rust."""
    unit = (words(count, number, stream) >> 8).astype(numpy.float32) / numpy.float32(1 << 24)
    return numpy.float32(centre) + numpy.float32(spread) * (numpy.float32(2) * unit - numpy.float32(1))


def below(limit, count, number, stream):
    """Whole numbers from 0 to below a limit."""
    return (words(count, number, stream) % numpy.uint32(limit)).astype(numpy.int64)


def ours(tensor):
    """A parameter in the order in which Plimsoll stores it."""
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor


def theirs(values, shape):
    """The inverse of `ours`, for the shape that PyTorch has."""
    if len(shape) != 4:
        return values.reshape(shape)
    return values.reshape(shape[0], shape[2], shape[3], shape[1]).transpose(0, 3, 1, 2)


def figure(value):
    """Nine digits, more than f32 has."""
    return float(f"{float(value):.8e}")


class Images:
    """A network for images of 32x32 in ten classes."""

    image, channels, batch, classes = [32, 32], 3, 8, 10

    def __init__(self, name, model, rename=lambda name: name):
        self.name, self.model, self.rename = name, model, rename

    def input(self, step, kind):
        shape = (self.batch, *self.image, self.channels)
        values = uniform(math.prod(shape), step, INPUT, 0.0, math.sqrt(3))
        return torch.from_numpy(values.reshape(shape).transpose(0, 3, 1, 2).copy()).to(kind)

    def labels(self, step):
        return torch.from_numpy(below(self.classes, self.batch, step, LABELS))

    def start(self, name, shape):
        """Centre and spread of a parameter's start."""
        if name in ("fc.bias", "classifier.bias"):
            return 0.0, 0.1
        if len(shape) == 1:
            return (0.1, 0.01) if name.endswith("weight") else (0.3, 0.03)
        return 0.0, math.sqrt((0.6 if len(shape) == 4 else 0.1) / math.prod(shape[1:]))


class Map(Images):
    """A network for images of 16x16 in one channel, with one of three classes for every pixel."""

    image, channels, batch, classes = [16, 16], 1, 2, 3

    def labels(self, step):
        drawn = below(self.classes, self.batch * math.prod(self.image), step, LABELS)
        return torch.from_numpy(drawn.reshape(self.batch, *self.image))

    def start(self, name, shape):
        """Centre and spread of a parameter's start."""
        return 0.0, 0.1 if len(shape) == 1 else math.sqrt(3 / math.prod(shape[1:]))


class Text:
    """A network for texts of 12 tokens, of 23 that there are."""

    image, channels, batch, classes = [12, 1], 1, 4, 23

    def __init__(self, name, model, rename):
        self.name, self.model, self.rename = name, model, rename

    def input(self, step, _kind):
        return torch.from_numpy(below(self.classes, self.batch * 12, step, INPUT).reshape(-1, 12))

    def labels(self, step):
        return torch.from_numpy(below(self.classes, self.batch * 12, step, LABELS))

    def start(self, name, shape):
        """Centre and spread of a parameter's start."""
        if len(shape) == 1:
            return (1.0 if name.endswith("weight") else 0.0), 0.1
        return 0.0, 0.3 if name.startswith("w") else math.sqrt(3 / math.prod(shape[1:]))


class Rule:
    """An optimizer of PyTorch's with a learning rate and its settings, and what Plimsoll calls these."""

    def __init__(self, name, optimizer, rate, theirs, ours=None):
        self.name, self.optimizer, self.rate, self.theirs, self.ours = name, optimizer, rate, theirs, ours or theirs

    def of(self, parameters):
        return self.optimizer(parameters, lr=self.rate, **self.theirs)


SGD = Rule("", torch.optim.SGD, 0.05, {"momentum": 0.9, "weight_decay": 1e-3})
# Decay so strong that a wrong one shows, and betas that are not the defaults. AdamW makes as much of a small gradient as of a large
# one, and of one that is nothing but rounding, too: epsilon is above rounding, and below most gradients.
ADAMW = Rule(
    "-adamw",
    torch.optim.AdamW,
    2e-3,
    {"betas": (0.8, 0.99), "eps": 1e-4, "weight_decay": 1.0},
    {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-4, "weight_decay": 1.0},
)


def train(case, rule, kind):
    """The model after the steps, and the losses before them."""
    torch.manual_seed(0)
    model = case.model().to(kind).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    with torch.no_grad():
        for number, (name, p) in enumerate(trained):
            values = uniform(p.numel(), number, PARAMETERS, *case.start(name, p.shape))
            p.copy_(torch.from_numpy(theirs(values, p.shape).copy()))
    optimizer = rule.of([p for _, p in trained])
    losses = []
    for step in range(STEPS):
        logits = model(case.input(step, kind))
        logits = logits.flatten(0, 1) if logits.dim() == 3 else logits
        loss = torch.nn.functional.cross_entropy(logits, case.labels(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, dict(trained), losses


def reference(case, rule):
    """The content of the file."""
    (model, trained, losses), (single, _, _) = train(case, rule, torch.float64), train(case, rule, torch.float32)
    other = single.state_dict()
    states = {name: b for name, b in model.named_buffers() if b.dim() > 0 and name in other}
    regions, worst = [], {"parameter": 0.0, "update": 0.0, "state": 0.0}
    for number, (name, tensor) in enumerate([*trained.items(), *states.items()]):
        values = ours(tensor.detach()).reshape(-1).numpy()
        off = numpy.abs(ours(other[name]).reshape(-1).double().numpy() - values).max()
        largest = numpy.abs(values).max()
        region = {"name": case.rename(name), "elements": len(values)}
        if name in trained:
            region["centre"], region["spread"] = case.start(name, tensor.shape)
            start = uniform(len(values), number, PARAMETERS, region["centre"], region["spread"])
            region["largest_update"] = figure(numpy.abs(values - start).max())
            worst["parameter"] = max(worst["parameter"], off / largest)
            worst["update"] = max(worst["update"], off / region["largest_update"])
        else:
            worst["state"] = max(worst["state"], off / largest)
        places = [k * (len(values) - 1) // (SAMPLES - 1) for k in range(SAMPLES)]
        region["largest"], region["norm"] = figure(largest), figure(numpy.linalg.norm(values))
        region["samples"] = [figure(values[place]) for place in places]
        regions.append(region)
    head = {
        "pytorch": torch.__version__,
        "network": {"name": case.name, "image": case.image, "channels": case.channels, "classes": case.classes},
        "batch": case.batch,
        "seed": SEED,
        "rate": rule.rate,
        **rule.ours,
        "off_in_f32": {key: float(f"{value:.2e}") for key, value in worst.items()},
        "losses": [figure(loss) for loss in losses],
    }
    return head, regions


class Memory(torch.nn.Module):
    """`lstm`: PyTorch's own layer. Its second bias adds nothing that the first does not have, and is kept at zero."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(Text.classes, 128)
        self.lstm = torch.nn.LSTM(128, 512, batch_first=True)
        self.lstm.bias_hh_l0.requires_grad_(False).zero_()
        self.head = torch.nn.Linear(512, Text.classes)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0]).flatten(0, 1)


MEMORY_NAMES = {
    "words.weight": "embedding.0.weight",
    "lstm.weight_ih_l0": "input.0.weight",
    "lstm.bias_ih_l0": "input.0.bias",
    "lstm.weight_hh_l0": "hidden.1.weight",
}


class Block(torch.nn.Module):
    """A block of GPT-2."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        linear = torch.nn.Linear
        self.attn = torch.nn.ModuleDict({"qkv": linear(width, 3 * width), "proj": linear(width, width)})
        self.mlp = torch.nn.ModuleDict({"fc": linear(width, 4 * width), "proj": linear(4 * width, width)})

    def forward(self, x):
        q, k, v = self.attn["qkv"](self.ln_1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["proj"](y.transpose(1, 2).flatten(2))
        return x + self.mlp["proj"](torch.nn.functional.gelu(self.mlp["fc"](self.ln_2(x))))


class Transformer(torch.nn.Module):
    """`gpt-tiny`: four blocks of 128 with four heads."""

    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(Text.classes, 128)
        self.wpe = torch.nn.Parameter(torch.zeros(Text.image[0], 128))
        self.h = torch.nn.ModuleList(Block(128, 4) for _ in range(4))
        self.ln_f = torch.nn.LayerNorm(128)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe
        for block in self.h:
            x = block(x)
        return (self.ln_f(x) @ self.wte.weight.T).flatten(0, 1)


def turned(x):
    """Heads [samples][heads][positions][channels] with pairs of channels turned by their position, as complex numbers."""
    length, half = x.shape[2], x.shape[3] // 2
    steps = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), steps)
    pairs = torch.complex(*x.double().chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1).to(x.dtype)


class LlamaBlock(torch.nn.Module):
    """A block of Llama."""

    def __init__(self, width, heads, kv_heads, inner):
        super().__init__()
        linear, of_head = (lambda a, b: torch.nn.Linear(a, b, bias=False)), width // heads
        self.heads, self.kv_heads = heads, kv_heads
        self.input_layernorm = torch.nn.RMSNorm(width, 1e-5)
        self.self_attn = torch.nn.ModuleDict({
            "q_proj": linear(width, width), "k_proj": linear(width, kv_heads * of_head),
            "v_proj": linear(width, kv_heads * of_head), "o_proj": linear(width, width),
        })
        self.post_attention_layernorm = torch.nn.RMSNorm(width, 1e-5)
        self.mlp = torch.nn.ModuleDict({
            "gate_proj": linear(width, inner), "up_proj": linear(width, inner), "down_proj": linear(inner, width),
        })

    def forward(self, x):
        attn, mlp, y = self.self_attn, self.mlp, self.input_layernorm(x)
        heads = lambda part, count: attn[part](y).unflatten(2, (count, -1)).transpose(1, 2)
        q, k, v = heads("q_proj", self.heads), heads("k_proj", self.kv_heads), heads("v_proj", self.kv_heads)
        attend = torch.nn.functional.scaled_dot_product_attention
        y = attend(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        x = x + attn["o_proj"](y.transpose(1, 2).flatten(2))
        y = self.post_attention_layernorm(x)
        return x + mlp["down_proj"](torch.nn.functional.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))


class Llama(torch.nn.Module):
    """`llama-tiny`: four blocks of 128 with four heads, which share two of keys and values."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(Text.classes, 128)
        self.layers = torch.nn.ModuleList(LlamaBlock(128, 4, 2, 352) for _ in range(4))
        self.norm = torch.nn.RMSNorm(128, 1e-5)
        self.lm_head = torch.nn.Linear(128, Text.classes, bias=False)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x)
        return self.lm_head(self.norm(x))


class Bert(torch.nn.Module):
    """`bert-tiny`: PyTorch's own encoder layers, two of 128 with two heads."""

    def __init__(self):
        super().__init__()
        self.word = torch.nn.Embedding(Text.classes, 128)
        self.position = torch.nn.Parameter(torch.zeros(Text.image[0], 128))
        self.segment = torch.nn.Parameter(torch.zeros(128))
        self.norm = torch.nn.LayerNorm(128, 1e-12)
        layer = torch.nn.TransformerEncoderLayer
        more = {"activation": "gelu", "layer_norm_eps": 1e-12, "batch_first": True}
        self.layer = torch.nn.ModuleList(layer(128, 2, 512, **more) for _ in range(2))
        self.transform = torch.nn.Linear(128, 128)
        self.transform_norm = torch.nn.LayerNorm(128, 1e-12)
        self.decoder = torch.nn.Parameter(torch.zeros(Text.classes))

    def forward(self, tokens):
        x = self.norm(self.word(tokens) + self.position + self.segment)
        for layer in self.layer:
            # Dropout of attention is a number of its module's.
            layer.self_attn.dropout = 0.0
            x = layer(x)
        x = self.transform_norm(torch.nn.functional.gelu(self.transform(x)))
        return (x @ self.word.weight.T + self.decoder).flatten(0, 1)


BERT_NAMES = {
    "word.weight": "embeddings.word.weight",
    "position": "embeddings.position.bias",
    "segment": "embeddings.segment.bias",
    "norm.weight": "embeddings.norm.weight",
    "norm.bias": "embeddings.norm.bias",
    "transform_norm.weight": "transform.norm.weight",
    "transform_norm.bias": "transform.norm.bias",
    "decoder": "decoder.bias.bias",
}
BERT_PARTS = {
    "self_attn.in_proj_": "attention.qkv.",
    "self_attn.out_proj": "attention.proj",
    "linear1": "output.fc",
    "linear2": "output.proj",
    "norm1": "attention.norm",
    "norm2": "output.norm",
}


def bert_name(name):
    if not name.startswith("layer."):
        return BERT_NAMES.get(name, name)
    for theirs_, ours_ in BERT_PARTS.items():
        name = name.replace(theirs_, ours_)
    return name


class Doubled(torch.nn.ModuleDict):
    """Twice a 3x3 convolution and a ReLU."""

    def __init__(self, before, width, **more):
        conv = torch.nn.Conv2d
        super().__init__({"conv1": conv(before, width, 3, padding=1), "conv2": conv(width, width, 3, padding=1), **more})

    def forward(self, x):
        return self["conv2"](self["conv1"](x).relu()).relu()


class UNet(torch.nn.Module):
    """`unet`."""

    def __init__(self):
        super().__init__()
        widths = [64, 128, 256, 512, 1024]
        self.down = torch.nn.ModuleList(Doubled(b, w) for b, w in zip([Map.channels, *widths], widths))
        up = torch.nn.ConvTranspose2d
        self.up = torch.nn.ModuleList(Doubled(2 * w, w, up=up(2 * w, w, 2, stride=2)) for w in widths[:4])
        self.out = torch.nn.Conv2d(64, Map.classes, 1)

    def forward(self, x):
        kept = []
        for level in self.down:
            kept.append(level(x if not kept else torch.nn.functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for level in reversed(self.up):
            x = level(torch.cat([kept.pop(), level["up"](x)], dim=1))
        return self.out(x)


def googlenet():
    return torchvision.models.googlenet(num_classes=10, aux_logits=False, transform_input=False, init_weights=False)


CASES = [
    Images("resnet18", lambda: torchvision.models.resnet18(num_classes=10)),
    Images(
        "densenet121",
        lambda: torchvision.models.densenet121(num_classes=10),
        lambda name: name.removeprefix("features."),
    ),
    Images("googlenet", googlenet),
    Images("mobilenet_v2", lambda: torchvision.models.mobilenet_v2(num_classes=10)),
    # The bias of a transposed convolution is a layer of its own.
    Map("unet", UNet, lambda name: re.sub(r"^(down|up)\.", r"\1", name).replace("up.bias", "up.bias.bias")),
    Text("gpt-tiny", Transformer, lambda name: "wpe.bias" if name == "wpe" else name),
    Text("llama-tiny", Llama, lambda name: name),
    Text("bert-tiny", Bert, bert_name),
    Text("lstm", Memory, lambda name: MEMORY_NAMES.get(name, name)),
]


BY_ADAMW = ["unet", "llama-tiny"]


def main():
    here = pathlib.Path(__file__).parent
    for case, rule in [*((case, SGD) for case in CASES), *((case, ADAMW) for case in CASES if case.name in BY_ADAMW)]:
        name = case.name + rule.name
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        head, regions = reference(case, rule)
        lines = ",\n".join(json.dumps(region) for region in regions)
        text = json.dumps(head)[:-1] + ', "regions": [\n' + lines + "\n]}\n"
        (here / f"{name}.json").write_text(text)
        print(f"{name}: {len(text)} bytes; losses {head['losses']}; f32 is off by {head['off_in_f32']}")


if __name__ == "__main__":
    main()
