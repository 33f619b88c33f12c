"""Networks of the table: sizes that a laptop trains in a minute, from common libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from models import GPT, Checkpointed
from torch import Tensor, nn

BATCH = 8
CLASSES = 10
WORDS = 512
LENGTH = 64


@dataclass
class Network:
    """A model, its loss, and one batch."""

    model: nn.Module
    loss: Callable[..., Tensor]
    batch: tuple[Any, ...]


def images(model: nn.Module, size: int) -> Network:
    """Classifies random images."""
    batch = (torch.randn(BATCH, 3, size, size), torch.randint(0, CLASSES, (BATCH,)))
    return Network(model, lambda x, y: F.cross_entropy(model(x), y), batch)


def of_torchvision(name: str, size: int) -> Network:
    """A classifier of torchvision."""
    from torchvision import models

    return images(models.get_model(name, num_classes=CLASSES), size)


def vit() -> Network:
    """The small vision transformer of torchvision, with dropout."""
    from torchvision.models import VisionTransformer

    return images(VisionTransformer(32, 4, 4, 4, 64, 128, dropout=0.1, num_classes=CLASSES), 32)


def of_timm(name: str, size: int) -> Network:
    """A classifier of timm."""
    import timm

    return images(timm.create_model(name, num_classes=CLASSES), size)


def of_transformers(kind: str) -> Network:
    """A language model of transformers that is trained on random words."""
    import transformers as t

    words = torch.randint(0, WORDS, (BATCH, LENGTH))
    if kind == "gpt2":
        model = t.GPT2LMHeadModel(
            t.GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=4, n_head=4)
        )
    elif kind == "llama":
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 172,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
        }
        model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **sizes))
    else:
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
        }
        model = t.BertForMaskedLM(t.BertConfig(vocab_size=WORDS, **sizes))
        mask = torch.ones_like(words)
        mask[: BATCH // 2, LENGTH // 2 :] = 0
        return Network(model, lambda x, m: model(input_ids=x, attention_mask=m, labels=x).loss, (words, mask))
    model.train()
    return Network(model, lambda x: model(input_ids=x, labels=x).loss, (words,))


def gpt(autocast: bool = False) -> Network:
    """The language model above, in f32 or under autocast."""
    model = GPT(WORDS, 128, LENGTH, 4)
    words = torch.randint(0, WORDS, (BATCH, LENGTH))

    def loss(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return F.cross_entropy(model(x).flatten(0, 1), x.flatten())

    return Network(model, loss, (words,))


def vectors(model: nn.Module) -> Network:
    """Classifies random vectors of 256 numbers."""
    batch = (torch.randn(256, 256), torch.randint(0, CLASSES, (256,)))
    return Network(model, lambda x, y: F.cross_entropy(model(x), y), batch)


def mlp() -> Network:
    """Layers of 256 by 256."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return vectors(nn.Sequential(*layers, nn.Linear(256, CLASSES)))


def checkpointed() -> Network:
    """A model that recomputes a part itself."""
    layers = (nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.2)) for _ in range(4))
    return vectors(Checkpointed(nn.Sequential(*layers), nn.Linear(256, CLASSES)))


def compiled() -> Network:
    """A model with a compiled part, by the backend that needs no compiler."""
    body = torch.compile(
        nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)), backend="aot_eager"
    )
    return vectors(nn.Sequential(nn.Linear(256, 256), body, nn.Linear(256, CLASSES)))


def lstm() -> Network:
    """A recurrent network, whose kernels allocate memory themselves."""
    model = nn.LSTM(64, 64, 2, batch_first=True)
    return Network(model, lambda x: model(x)[0].square().mean(), (torch.randn(BATCH, 32, 64),))


def item() -> Network:
    """A step in which the host reads a value that differs after every update."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        out = F.cross_entropy(model(x), y)
        return out * 2 if out.item() > 0 else out

    return Network(model, loss, vectors(model).batch)


NETWORKS: dict[str, Callable[[], Network]] = {
    "MLP": mlp,
    "ResNet-18": lambda: of_torchvision("resnet18", 64),
    "ResNet-50": lambda: of_torchvision("resnet50", 64),
    "DenseNet-121": lambda: of_torchvision("densenet121", 64),
    "MobileNet v3 small": lambda: of_torchvision("mobilenet_v3_small", 64),
    "EfficientNet-B0": lambda: of_torchvision("efficientnet_b0", 64),
    "ConvNeXt tiny": lambda: of_torchvision("convnext_tiny", 64),
    "ViT (torchvision), dropout": vit,
    "GPT, tied embedding, dropout": gpt,
    "the same, bf16 autocast": lambda: gpt(autocast=True),
    "GPT-2 (transformers), dropout": lambda: of_transformers("gpt2"),
    "Llama (transformers)": lambda: of_transformers("llama"),
    "BERT (transformers), padding": lambda: of_transformers("bert"),
    "ResNet-18 (timm)": lambda: of_timm("resnet18", 64),
    "ConvNeXt atto (timm)": lambda: of_timm("convnext_atto", 64),
    "ViT tiny (timm)": lambda: of_timm("vit_tiny_patch16_224", 224),
    "EfficientNet-B0 (timm)": lambda: of_timm("efficientnet_b0", 64),
    "own `checkpoint`, dropout": checkpointed,
    "`torch.compile` inside": compiled,
    "`nn.LSTM`": lstm,
    "`.item()` that changes": item,
}
