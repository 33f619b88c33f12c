"""Small networks with weights as ONNX files, and the loss that PyTorch computes with them: what `../onnx_weights.rs` expects.

    pip install torch==2.15.0 onnx
    python references.py

Writes an ONNX file of each, and prints its input and loss, computed in f64 in evaluation. Inputs are printed with
channels innermost, as Plimsoll takes them; the label of position i is i modulo the number of classes.
"""

import json

import torch
from torch import nn


class Conv(nn.Module):
    """A convolution with batch normalisation, and a fully connected layer behind the flattened image."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 3 * 2, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).flatten(1))


class Block(nn.Module):
    """Tokens and positions, attention whose queries, keys and values one product makes, and a head."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(7, 8)
        self.wpe = nn.Parameter(torch.zeros(6, 8))
        self.ln = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)
        self.ln2 = nn.LayerNorm(8)
        self.head = nn.Linear(8, 7, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe
        q, k, v = (y.view(-1, 6, 2, 4).transpose(1, 2) for y in self.qkv(self.ln(x)).split(8, dim=2))
        mixed = ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1) @ v
        return self.head(self.ln2(x + self.proj(mixed.transpose(1, 2).reshape(-1, 6, 8))))


class Separate(nn.Module):
    """Causal attention whose queries, keys and values are a product each, the keys without a bias."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(7, 8)
        self.ln = nn.LayerNorm(8)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.proj = nn.Linear(8, 8)
        self.head = nn.Linear(8, 7, bias=False)
        self.register_buffer("hidden", torch.full((6, 6), -torch.inf).triu(1))

    def forward(self, tokens):
        x = self.wte(tokens)
        y = self.ln(x)
        q, k, v = (part(y).view(-1, 6, 2, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = ((q @ k.transpose(-2, -1)) * 0.5 + self.hidden).softmax(-1) @ v
        return self.head(x + self.proj(mixed.transpose(1, 2).reshape(-1, 6, 8)))


class ClassToken(nn.Module):
    """A small ViT: patches of an image, a class token before them, positions of all, attention, and a head at the token."""

    def __init__(self):
        super().__init__()
        self.conv_proj = nn.Conv2d(2, 8, 2, stride=2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 7, 8))
        self.ln = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(patches.shape[0], -1, -1), patches], 1) + self.pos_embedding
        q, k, v = (y.view(-1, 7, 2, 4).transpose(1, 2) for y in self.qkv(self.ln(x)).split(8, dim=2))
        mixed = ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).reshape(-1, 7, 8))
        return self.head(x[:, 0])


def write(name, make, x):
    """Draws a network's numbers, writes it, and prints what it gives."""
    model = make().eval()
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point() and tensor.isfinite().all():
                tensor.uniform_(0.2, 1.2) if tensor.dim() == 1 else tensor.normal_(0, 0.4)
    torch.onnx.export(
        model, (x,), f"{name}.onnx", dynamo=False, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
        opset_version=17, input_names=["input"], output_names=["output"],
        dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
    )
    logits = model.double()(x.double() if x.is_floating_point() else x)
    classes = logits.shape[-1]
    labels = torch.arange(logits.numel() // classes) % classes
    loss = nn.functional.cross_entropy(logits.reshape(-1, classes), labels)
    flat = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
    print(name, json.dumps({"loss": loss.item(), "input": flat.flatten().tolist()}))


torch.manual_seed(3)
for name, make, x in [("conv", Conv, torch.randn(2, 2, 3, 2)), ("block", Block, torch.randint(0, 7, (2, 6)))]:
    write(name, make, x)
write("separate", Separate, torch.randint(0, 7, (2, 6)))
# Numbers that Rust has, too.
counted = (torch.arange(96) * 37 % 64 - 32) / 16
write("class_token", ClassToken, counted.reshape(2, 4, 6, 2).permute(0, 3, 1, 2))
