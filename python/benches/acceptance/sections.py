"""Sections of `accept.py`, the most important first: the subject of each, its networks, and its time limit."""

from __future__ import annotations

from dataclasses import dataclass

BITS = ("ResNet-50", "DenseNet-121", "ViT-B/16", "GPT, dropout", "GPT, bf16", "own checkpoint")
CURVE = ("GPT, bf16", "ResNet-50")
CURVES = ("GPT, dropout", "ViT-B/16", "ViT-L/16", "U-Net")
TRUTH = ("dropout", "RReLU", "batch norm", "tied weights, views")
BATCH = ("GPT, bf16", "ResNet-50", "ViT-B/16")
LARGE = ("Llama 8B", "Llama 8B, bf16 weights")


@dataclass(frozen=True)
class Section:
    """A section: a subject, for some networks."""

    asks: str
    networks: tuple[str, ...]
    seconds: int
    """Limit for one network."""


COMPILE = "torch.compile with activation_memory_budget .7 .5 .3 .1"
LONG = (
    "the same as `curve` of one long sequence, beside torch.compile with its budget, too; where eager does not fit, "
    "budgets are shares of the GPU's memory"
)
STATE = (
    "weights, gradients and optimizer state that hardly fit: AdamW, torchao's AdamW8bit and CPUOffloadOptimizer, "
    "each with checkpoints and with our plan"
)
SECTIONS = {
    "facts": Section("versions, how fast the link is, and a step with expandable segments", ("link",), 60),
    "bits": Section(
        "bits, unplanned allocations, peak and pool, time of all kept over eager, predicted over measured, copies hidden; "
        "budgets .4 and .1 of the way from the floor to eager's peak",
        BITS,
        60,
    ),
    "curve": Section(
        "time at equal peak: ours at .3 .5 .7 of eager's; checkpoint every 1, 2, 3 blocks, selective checkpoints, offloaded "
        "checkpoints, OffloadActivations, save_on_cpu, and GPT's with a chunked loss, too; a verdict for each budget",
        CURVE,
        150,
    ),
    "truth": Section("who trains something else than eager, without a word; small networks", TRUTH, 60),
    "long-32k": Section(LONG, ("Llama 1B, 32k",), 590),
    "compile-gpt": Section(f"{COMPILE}, with a chunked loss, too", ("GPT, bf16",), 590),
    "state-3b": Section(STATE, ("Llama 3B",), 590),
    "batch": Section(
        "which batch fits in half of eager's peak, and how fast it trains: ours, and found by out of memory",
        BATCH,
        200,
    ),
    "lengths": Section(
        "200 steps of sequences of varying lengths in half of eager's peak: out-of-memory errors of ours and of a loop that "
        "shrinks the batch",
        ("GPT, bf16",),
        300,
    ),
    "curves": Section("the same as `curve` of other networks", CURVES, 150),
    "long-8k": Section(LONG, ("Llama 1B, 8k",), 590),
    "long-64k": Section(LONG, ("Llama 1B, 64k",), 590),
    "compile-resnet": Section(COMPILE, ("ResNet-50",), 590),
    "compile-vit": Section(COMPILE, ("ViT-B/16",), 590),
    "state-8b": Section(STATE, LARGE, 295),
}
USUAL = ("facts", "bits", "curve")
SECONDS = sum(SECTIONS[name].seconds * len(SECTIONS[name].networks) for name in USUAL)
"""Default limit for all sections together: 12 minutes."""
