"""Exports networks with PyTorch as ONNX files, without their weights: the inputs of `networks/tests/onnx`.

Run beside torch, torchvision, transformers, onnx and onnxscript, in this folder:

    python export.py            # all of them
    python export.py resnet18   # those whose name begins so

Each network is written by both exporters of PyTorch. Of the tensors in a file only those keep their data that are no
parameter of the network (they are shapes, indices and masks); the others keep their names, types and dimensions. What
else the exporters note in a file (stack traces, producers) is left out.
"""

import math
import os
import sys
import tempfile
import warnings

import onnx
import torch
import torchvision
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


class Block(nn.Module):
    """A block as in GPT-2: one product makes queries, keys and values, and attention looks back only."""

    def __init__(self, width, heads, drop):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.proj = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop)

    def mixed(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = self.mixed(q, k, v).transpose(1, 2).reshape(b, t, c)
        x = x + self.drop(self.c_proj(y))
        return x + self.drop(self.proj(self.act(self.fc(self.ln_2(x)))))


class ManualBlock(Block):
    """The same with attention written out, and a mask that is filled in."""

    def mixed(self, q, k, v):
        t = q.shape[2]
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
        mask = torch.tril(torch.ones(t, t)).view(1, 1, t, t)
        return scores.masked_fill(mask == 0, float("-inf")).softmax(-1) @ v


class SeparateBlock(Block):
    """Three products make queries, keys and values, which see each other in both directions; shares are dropped."""

    def __init__(self, width, heads, drop):
        super().__init__(width, heads, drop)
        del self.c_attn
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        b, t, c = x.shape
        norm = self.ln_1(x)
        parts = (self.query(norm), self.key(norm), self.value(norm))
        q, k, v = (y.view(b, t, self.heads, c // self.heads).permute(0, 2, 1, 3) for y in parts)
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
        shares = nn.functional.dropout(scores.softmax(-1), 0.1, self.training)
        y = (shares @ v).permute(0, 2, 1, 3).flatten(2)
        x = x + self.drop(self.c_proj(y))
        return x + self.drop(self.proj(self.act(self.fc(self.ln_2(x)))))


class Gpt(nn.Module):
    """Tokens and positions, blocks, and a head that shares the table of the tokens."""

    def __init__(self, block=Block, vocabulary=65, length=16, width=32, heads=4, blocks=2, tied=True, drop=0.0):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.Sequential(*[block(width, heads, drop) for _ in range(blocks)])
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        return self.head(self.ln_f(self.h(x)))


class Llama(nn.Module):
    """Hugging Face's own Llama, up to its logits."""

    def __init__(self, vocabulary=65, length=16, width=32, heads=4, kv_heads=2, implementation="sdpa", tied=False):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=88, num_hidden_layers=2, num_attention_heads=heads,
            num_key_value_heads=kv_heads, max_position_embeddings=length, tie_word_embeddings=tied,
            attn_implementation=implementation,
        )
        causal = LlamaForCausalLM(config)
        self.model, self.lm_head = causal.model, causal.lm_head

    def forward(self, tokens):
        return self.lm_head(self.model(input_ids=tokens, use_cache=False).last_hidden_state)


class Encoder(nn.Module):
    """PyTorch's own transformer encoder, for one class a token."""

    def __init__(self, vocabulary=65, length=16, width=32, heads=4, layers=2, drop=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=drop, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens) + self.positions))


def image(side):
    return torch.zeros(2, 3, side, side)


def tokens():
    return torch.zeros(2, 16, dtype=torch.int64)


# One of each family of torchvision's classifiers that is not exported in both ways: as README.md's table has them.
FAMILIES = [
    "alexnet", "convnext_tiny", "efficientnet_b0", "mnasnet0_5", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf",
    "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "vgg11_bn", "vit_b_16",
]


def zoo():
    """Name, model, input."""
    models = torchvision.models
    plain = dict(aux_logits=False, init_weights=False)
    yield "resnet18", lambda: models.resnet18(), image(224)
    yield "resnet50", lambda: models.resnet50(), image(224)
    yield "vgg16", lambda: models.vgg16(init_weights=False), image(224)
    yield "densenet121", lambda: models.densenet121(), image(224)
    yield "mobilenet_v2", lambda: models.mobilenet_v2(), image(224)
    yield "googlenet", lambda: models.googlenet(**plain), image(224)
    yield "inception_v3", lambda: models.inception_v3(**plain), image(299)
    for family in FAMILIES:
        yield family, getattr(models, family), image(224)
    # Small ones of two families that are refused.
    yield "swin", lambda: models.SwinTransformer([4, 4], 8, [2], [2], [4, 4], num_classes=10), image(32)
    yield "maxvit", lambda: models.MaxVit((32, 32), 8, 4, [8], [1], 4, 0.0, num_classes=10), image(32)
    yield "gpt", lambda: Gpt(), tokens()
    yield "gpt-manual", lambda: Gpt(ManualBlock, tied=False), tokens()
    yield "separate", lambda: Gpt(SeparateBlock, tied=False, drop=0.1), tokens()
    yield "encoder", lambda: Encoder(), tokens()
    yield "llama", lambda: Llama(), tokens()
    yield "llama-eager", lambda: Llama(implementation="eager"), tokens()
    # One head of keys and values for all, and the table of tokens once more at the end.
    yield "llama-shared", lambda: Llama(kv_heads=1, tied=True), tokens()


def trained(model):
    """The model with numbers as if it had been trained: exporters drop zeros, and take equal tensors for one."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point() and not name.endswith("inv_freq"):
                tensor.uniform_(0.5, 1.5)
    return model


def strip(path, parameters):
    """The file without the data of its parameters and without notes."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        large = math.prod(tensor.dims) > 16 and tensor.data_type == onnx.TensorProto.FLOAT
        # Masks, and the tables of rotary embeddings.
        table = len(tensor.dims) == 4 and tensor.dims[1] == 1 and tensor.dims[2] == 16
        kept = table or tuple(tensor.dims) == (16, 16) or tensor.name.endswith("inv_freq")
        if not kept and (large or tensor.name in parameters):
            for field in ("raw_data", "float_data", "external_data", "data_location"):
                tensor.ClearField(field)
    for node in model.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    for value in [*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer]:
        value.ClearField("doc_string")
        del value.metadata_props[:]
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    del model.metadata_props[:]
    return model


def export(name, make, example):
    """TorchScript's file in training mode, the new exporter's for evaluation; of some the other way, too.

    The new exporter's optimisation, which is its default, folds batch normalisation even in training mode; so there it is off.
    """
    ways = [("script", True), ("dynamo", False)]
    if name in [*FAMILIES, "swin", "maxvit"] or name.startswith("llama-"):
        ways = [("dynamo", True)]
    elif name == "llama":
        ways = [("dynamo", True), ("dynamo", False)]
    if name in ("resnet18", "mobilenet_v2", "encoder", "gpt"):
        ways += [("script", False), ("dynamo", True)]
    for exporter, training in ways:
        torch.manual_seed(1)
        model = trained(make()).train(training)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            if exporter == "script":
                mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
                torch.onnx.export(
                    model, (example,), path, dynamo=False, training=mode, do_constant_folding=not training,
                    opset_version=17, input_names=["input"], output_names=["output"],
                    dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}} if training else None,
                )
            else:
                shapes = ({0: torch.export.Dim("batch")},) if training else None
                optimize = not training or (example.dim() == 2 and not name.startswith("llama"))
                torch.onnx.export(
                    model, (example,), path, dynamo=True, dynamic_shapes=shapes, optimize=optimize, verbose=False,
                    external_data=False,
                )
            parameters = {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}
            stripped = strip(path, parameters)
        out = f"{name}.{exporter}.{'train' if training else 'eval'}.onnx"
        with open(os.path.join(HERE, out), "wb") as file:
            file.write(stripped.SerializeToString(deterministic=True))
        count = sum(p.numel() for p in model.parameters())
        print(f"{out}: {count} parameters, {os.path.getsize(os.path.join(HERE, out))} bytes", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    wanted = sys.argv[1:]
    for name, make, example in zoo():
        if not wanted or any(name.startswith(w) for w in wanted):
            export(name, make, example)
