"""Two small networks with weights as ONNX files, and the loss that PyTorch computes with them: what `../onnx_weights.rs` expects.

    pip install torch==2.15.0 onnx
    python references.py

Writes `conv.onnx` and `block.onnx`, and prints input and loss of each, computed in f64 in evaluation. Inputs are printed with
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


torch.manual_seed(3)
for name, make, x in [("conv", Conv, torch.randn(2, 2, 3, 2)), ("block", Block, torch.randint(0, 7, (2, 6)))]:
    model = make().eval()
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
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
