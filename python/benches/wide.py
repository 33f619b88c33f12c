"""Many networks compared with eager, at one combination each: bits, unplanned allocations, the pool. Writes `README.md` and
`wide.json`.

python benches/wide.py                       # all networks, prints the table
python benches/wide.py --only timm --write   # some of them; their rows replace those of wide.json

The combinations take turns: f of .1 and .4, one thread and two, SGD with momentum and AdamW, f32 and bf16 autocast, and a
link that is fast or so slow that plans recompute. Dropout and stochastic depth are on wherever the network has them. Each
network runs in a separate process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from beside import eager_step, train
from rows import CLASSES, Network
from steps import highest_byte, machine, named
from torch import Tensor, nn

import plimsoll

HERE = Path(__file__).parent
BEGIN, END = "<!-- wide -->", "<!-- end of wide -->"
BATCH = 4
WORDS, LENGTH = 256, 32
SECONDS = 900
"""A network that takes longer is stopped."""

Combination = tuple[float, int, str, str, str]

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-3),
}


def combination(number: int) -> Combination:
    """The combination of a network, by its place in the list: eight networks in a row have all of f, optimizer and precision;
    threads and link change with them, and once more with the next eight."""
    turn = number + number // 8
    return (
        (0.1, 0.4)[number % 2],
        (1, 2)[turn % 2],
        ("SGD", "AdamW")[number // 2 % 2],
        ("f32", "bf16")[number // 4 % 2],
        ("20GB/s", "20MB/s")[(number // 2 + number // 4 + number // 16) % 2],
    )


def classified(model: nn.Module, size: int) -> Network:
    """Classifies random images."""
    batch = (torch.randn(BATCH, 3, size, size), torch.randint(0, CLASSES, (BATCH,)))
    return Network(model, lambda x, y: F.cross_entropy(model(x), y), batch)


def torchvision_of(name: str, size: int = 64, **settings: Any) -> Network:
    """A classifier of torchvision."""
    from torchvision import models

    return classified(models.get_model(name, weights=None, num_classes=CLASSES, **settings), size)


def segmenting(name: str) -> Network:
    """A network of torchvision that classifies each pixel."""
    from torchvision import models

    model = models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    batch = (torch.randn(BATCH, 3, 64, 64), torch.randint(0, CLASSES, (BATCH, 64, 64)))
    return Network(model, lambda x, y: F.cross_entropy(model(x)["out"], y), batch)


def filmed(name: str) -> Network:
    """A video classifier of torchvision."""
    from torchvision import models

    model = models.get_model(name, weights=None, num_classes=CLASSES)
    batch = (torch.randn(BATCH, 3, 4, 32, 32), torch.randint(0, CLASSES, (BATCH,)))
    return Network(model, lambda x, y: F.cross_entropy(model(x), y), batch)


def timm_of(name: str, size: int = 64, **settings: Any) -> Network:
    """A classifier of timm, with stochastic depth and dropout where it has them."""
    import timm

    return classified(timm.create_model(name, num_classes=CLASSES, **settings), size)


SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
SHORT = {"vocab_size": WORDS, "max_position_embeddings": 64}
ROTARY = {**SMALL, **SHORT, "num_key_value_heads": 2}


def transformers_of(kind: str, config: str, **settings: Any) -> Network:
    """A language model of transformers that is trained on random words."""
    import transformers

    model = getattr(transformers, kind)(getattr(transformers, config)(**settings))
    model.train()
    words = torch.randint(3, WORDS, (BATCH, LENGTH))
    return Network(model, lambda x: model(input_ids=x, labels=x).loss, (words,))


def vision_of(kind: str, config: str, **settings: Any) -> Network:
    """An image classifier of transformers."""
    import transformers

    model = getattr(transformers, kind)(getattr(transformers, config)(num_labels=CLASSES, **settings))
    model.train()
    batch = (torch.randn(BATCH, 3, 64, 64), torch.randint(0, CLASSES, (BATCH,)))
    return Network(model, lambda x, y: F.cross_entropy(model(pixel_values=x).logits, y), batch)


ENCODER_AND_DECODER = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}


def heard() -> Network:
    """Whisper on random spectra."""
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=WORDS,
        **ENCODER_AND_DECODER,
        max_source_positions=32,
        max_target_positions=64,
        num_mel_bins=16,
        dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = transformers.WhisperForConditionalGeneration(config).train()
    batch = (torch.randn(BATCH, 16, 64), torch.randint(3, WORDS, (BATCH, LENGTH)))
    return Network(model, lambda x, y: model(input_features=x, labels=y).loss, batch)


def _of_torchvision() -> dict[str, Callable[[], Network]]:
    plain = (
        *(
            "alexnet",
            "vgg11",
            "vgg11_bn",
            "squeezenet1_1",
            "shufflenet_v2_x1_0",
            "mobilenet_v2",
            "mnasnet0_5",
        ),
        *(
            "mobilenet_v3_large",
            "regnet_x_400mf",
            "regnet_y_400mf",
            "resnext50_32x4d",
            "resnet34",
            "densenet169",
        ),
        *("efficientnet_b1", "efficientnet_v2_s", "convnext_small", "swin_t", "swin_v2_t"),
    )
    found: dict[str, Callable[[], Network]] = {name: lambda name=name: torchvision_of(name) for name in plain}
    found["googlenet"] = lambda: torchvision_of("googlenet", aux_logits=False, init_weights=True)
    found["inception_v3"] = lambda: torchvision_of("inception_v3", 96, aux_logits=False, init_weights=True)
    found["maxvit_t"] = lambda: torchvision_of("maxvit_t", 224)
    found |= {
        name: lambda name=name: segmenting(name) for name in ("lraspp_mobilenet_v3_large", "fcn_resnet50")
    }
    found["r3d_18"] = lambda: filmed("r3d_18")
    return {f"torchvision: {name}": build for name, build in found.items()}


def _of_timm() -> dict[str, Callable[[], Network]]:
    plain = (
        *("resnet26d", "legacy_seresnet18", "resnetv2_50", "mobilenetv4_conv_small"),
        *("ghostnet_100", "convnextv2_atto", "poolformer_s12", "edgenext_xx_small", "repvgg_a0", "dla34"),
        *(
            "hrnet_w18_small",
            "lcnet_050",
            "tinynet_e",
            "rexnet_100",
            "mobilevit_xxs",
            "pvt_v2_b0",
            "nf_regnet_b0",
        ),
        *("inception_next_tiny", "fastvit_t8", "efficientvit_b0"),
    )
    found: dict[str, Callable[[], Network]] = {name: lambda name=name: timm_of(name) for name in plain}
    for name in (
        "deit_tiny_patch16_224",
        "vit_tiny_patch16_224",
        "mixer_s32_224",
        "resmlp_12_224",
        "gmlp_ti16_224",
    ):
        found[name] = lambda name=name: timm_of(name, img_size=64)
    for name in ("cait_xxs24_224", "xcit_nano_12_p8_224"):
        found[name] = lambda name=name: timm_of(
            name, 224 if "xcit" in name else 64, img_size=224 if "xcit" in name else 64
        )
    found["levit_128s"] = lambda: timm_of("levit_128s", 224)
    found["vit_tiny with stochastic depth"] = lambda: timm_of(
        "vit_tiny_patch16_224", img_size=64, drop_path_rate=0.2, drop_rate=0.1
    )
    return {f"timm: {name}": build for name, build in found.items()}


def _of_transformers() -> dict[str, Callable[[], Network]]:
    found: dict[str, Callable[[], Network]] = {}

    def language(kind: str, config: str, **settings: Any) -> None:
        found[kind] = lambda: transformers_of(kind, config, **settings)

    language(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        vocab_size=WORDS,
        dim=64,
        hidden_dim=128,
        n_layers=3,
        n_heads=4,
    )
    language("RobertaForMaskedLM", "RobertaConfig", **SMALL, **SHORT)
    language("AlbertForMaskedLM", "AlbertConfig", embedding_size=32, **SMALL, **SHORT)
    language("ElectraForMaskedLM", "ElectraConfig", embedding_size=32, **SMALL, **SHORT)
    language("DebertaV2ForMaskedLM", "DebertaV2Config", relative_attention=True, **SMALL, **SHORT)
    language(
        "OPTForCausalLM",
        "OPTConfig",
        ffn_dim=128,
        word_embed_proj_dim=64,
        **_but(SMALL, "intermediate_size"),
        **SHORT,
    )
    language("BloomForCausalLM", "BloomConfig", vocab_size=WORDS, hidden_size=64, n_layer=3, n_head=4)
    language("GPTNeoXForCausalLM", "GPTNeoXConfig", **SMALL, **SHORT)
    language("PhiForCausalLM", "PhiConfig", **SMALL, **SHORT)
    language("MistralForCausalLM", "MistralConfig", **ROTARY)
    language("Qwen2ForCausalLM", "Qwen2Config", **ROTARY)
    language("Qwen3ForCausalLM", "Qwen3Config", head_dim=16, **ROTARY)
    language("GemmaForCausalLM", "GemmaConfig", head_dim=16, **ROTARY)
    language("Gemma2ForCausalLM", "Gemma2Config", head_dim=16, **ROTARY)
    language("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **ROTARY)
    language(
        "T5ForConditionalGeneration",
        "T5Config",
        vocab_size=WORDS,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    language(
        "BartForConditionalGeneration",
        "BartConfig",
        vocab_size=WORDS,
        **ENCODER_AND_DECODER,
        max_position_embeddings=64,
    )
    found["ViTForImageClassification"] = lambda: vision_of(
        "ViTForImageClassification", "ViTConfig", image_size=64, hidden_dropout_prob=0.1, **SMALL
    )
    found["WhisperForConditionalGeneration"] = heard
    return {f"transformers: {name}": build for name, build in found.items()}


def _but(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != name}


NETWORKS = {
    **_of_torchvision(),
    **_of_timm(),
    **_of_transformers(),
    **{
        f"timm: {name}": lambda name=name: timm_of(name)
        for name in ("resnet18", "convnext_atto", "efficientnet_b0")
    },
}


def build(name: str, precision: str) -> Network:
    """Builds the same network every time."""
    torch.manual_seed(0)
    network = NETWORKS[name]()
    if precision == "f32":
        return network
    plain = network.loss

    def loss(*batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(*batch)

    return Network(network.model, loss, network.batch)


def measure(name: str, at: Combination) -> dict[str, Any]:
    """The row of a network."""
    share, threads, kind, precision, link = at
    torch.set_num_threads(threads)
    logging.getLogger("plimsoll").setLevel(logging.ERROR)
    start = time.perf_counter()
    reference, network = build(name, precision), build(name, precision)
    left = train(reference, OPTIMIZERS[kind](reference.model.parameters()), eager_step(reference))
    again = build(name, precision)
    same = train(again, OPTIMIZERS[kind](again.model.parameters()), eager_step(again))
    optimizer = OPTIMIZERS[kind](network.model.parameters())
    trace = plimsoll.trace(network.loss, network.model, *network.batch, optimizer=optimizer)
    budget = int(trace.floor_bytes + share * (trace.peak_bytes - trace.floor_bytes))
    step = plimsoll.tune(
        network.loss, network.model, optimizer, network.batch, budget, link, verify=0, seconds=3.0
    )
    fallbacks: set[str] = set()
    faults = 0

    def checked(*batch: Any) -> Tensor:
        nonlocal faults
        loss = step(*batch)
        if step.fallback is not None:
            fallbacks.add(step.fallback)
        elif step.program.counts is not None:
            faults += step.program.counts.unplanned + step.program.counts.unused
        return loss

    planned = train(network, optimizer, checked)
    schedule = step.program.schedule
    return {
        "calls": len(trace),
        "bits": all(map(torch.equal, left, planned)),
        "eager_repeats": all(map(torch.equal, left, same)),
        "fallbacks": sorted(fallbacks),
        "unplanned": faults,
        "keep_bytes": trace.peak_bytes - trace.resident_bytes,
        "pool_bytes": schedule.pool_bytes,
        "highest_byte": None if fallbacks else highest_byte(step.program),
        "recomputed_ops": schedule.recomputed_ops,
        "offloaded_bytes": schedule.offloaded_bytes,
        "seconds": time.perf_counter() - start,
    }


def in_a_process(name: str, at: Combination) -> dict[str, Any]:
    """The row from a separate process, or the reason why there is none."""
    command = [sys.executable, __file__, "--one", name, "--at", json.dumps(at)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"why": f"stopped after {SECONDS} s"}
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines()
        return {"why": lines[-1][:300] if lines else f"ended with {ended.returncode}"}
    return json.loads(ended.stdout.splitlines()[-1])


def row_of(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    share, threads, kind, precision, link = row["at"]
    at = f"{share:g}, {threads}, {kind}, {precision}, {link}"
    if "why" in row:
        return f"| {name} | {at} | | **no**: {row['why'].replace('|', '/')} | | | |"
    bits = "yes" if row["bits"] else "**no**"
    if row["fallbacks"]:
        bits += f" (in eager: {'; '.join(row['fallbacks'])})".replace("|", "/")
    if not row["eager_repeats"]:
        bits += " (eager differs from eager)"
    pool = f"{row['keep_bytes'] / 1e6:.2f} -> {row['pool_bytes'] / 1e6:.2f}"
    gap = None if row["highest_byte"] is None else row["pool_bytes"] - row["highest_byte"]
    peak = "" if gap is None else "yes" if 0 <= gap < 256 else f"{gap} B below"
    moved = f"{row['recomputed_ops']}, {row['offloaded_bytes'] / 1e6:.2f}"
    return f"| {name} | {at} | {row['calls']} | {bits} | {pool} | {row['unplanned']} | {peak} | {moved} |"


HEADER = """| network | f, threads, optimizer, precision, link | calls | bits equal | pool: all kept -> planned, MB | \
unplanned | peak = pool | recomputed ops, MB swapped out |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def is_plain(row: dict[str, Any]) -> bool:
    """Returns `True` if a network runs by its plan with the bits of eager: `README.md` shows the others."""
    return bool(row.get("bits", False)) and not row.get("fallbacks") and bool(row["eager_repeats"])


def said(rows: dict[str, Any]) -> str:
    """Number of rows, and their machine."""
    equal = sum(row.get("bits", False) and not row.get("fallbacks") for row in rows.values())
    eager = sum(bool(row.get("fallbacks")) for row in rows.values())
    failed = sum("why" in row for row in rows.values())
    places = [row["machine"].rsplit(", commit ", 1) for row in rows.values()]
    machines, commits = (sorted(set(of)) for of in zip(*places, strict=True))
    noisy = sum(not row.get("eager_repeats", True) for row in rows.values())
    return (
        f"{len(rows)} networks: {equal} run by their plans with the bits of eager, {eager} in eager, {failed} not at all; of "
        f"{noisy} eager differs from eager in two runs. "
        f"`python benches/wide.py --write`, on {'; '.join(machines)} (commits {', '.join(commits)}). `wide.json` has all rows; "
        "those that are not plainly equal:"
    )


def libraries() -> str:
    """The machine, and the versions of the libraries."""
    found = [machine().partition(" (load")[0]]
    for name in ("torchvision", "timm", "transformers"):
        with contextlib.suppress(ImportError):
            found.append(f"{name} {__import__(name).__version__}")
    return ", ".join([*found, machine().partition("thread, ")[2]])


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="networks whose name contains this")
    parser.add_argument("--write", action="store_true", help="write README.md's summary and wide.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, tuple(json.loads(arguments.at)))))
        return
    file, readme = HERE / "wide.json", HERE / "README.md"
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    where = libraries()
    wanted = named(arguments.only, NETWORKS)
    print(HEADER, flush=True)
    for number, name in enumerate(NETWORKS):
        if name not in wanted:
            continue
        at = combination(number)
        rows[name] = {"at": at, "machine": where, **in_a_process(name, at)}
        print(row_of(name, rows[name]), flush=True)
        if arguments.write:
            write(rows, file, readme)


def write(rows: dict[str, Any], file: Path, readme: Path) -> None:
    """Writes the rows so far."""
    rows = {name: rows[name] for name in NETWORKS if name in rows}
    file.write_text(json.dumps(rows, indent=1) + "\n")
    table = "\n".join([HEADER, *(row_of(name, row) for name, row in rows.items() if not is_plain(row))])
    before, rest = readme.read_text().split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n{said(rows)}\n\n{table}\n{END}{after}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
