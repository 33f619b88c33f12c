"""What `plimsoll export` prints, run by the tool that it is for, as its user would."""

import copy
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

SCRIPTS = Path(sysconfig.get_path("scripts"))
PROGRAM = SCRIPTS / "plimsoll"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
ENVIRONMENT["PATH"] = os.pathsep.join([str(SCRIPTS), ENVIRONMENT.get("PATH", "")])
MIB = 1 << 20


def run(folder, *command, **environment):
    done = subprocess.run(
        command,
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def tuned(folder, network, data, batch, *options):
    """A study of one batch on a modelled device, within a budget that keeping everything passes."""
    just = ["--base-batch", batch, "--min-batch", batch, "--max-batch", batch]
    line = ["--network", network, "--data", data, "--device", "v100", "--study", "study", *just, *options]
    run(folder, PROGRAM, "tune", *line)
    return folder


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        split = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(*split, is_causal=True)
        return self.drop(self.proj(heads.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        fc, proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(fc, nn.GELU(), proj, nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """The zoo's gpt-tiny."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(65, 128), nn.Embedding(64, 128)
        self.drop, self.ln_f = nn.Dropout(0.1), nn.LayerNorm(128)
        self.h = nn.ModuleList(Block(128, 4) for _ in range(4))

    def forward(self, words):
        x = self.drop(self.wte(words) + self.wpe.weight)
        for block in self.h:
            x = block(x)
        return (self.ln_f(x) @ self.wte.weight.T).transpose(1, 2)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    folder = tmp_path_factory.mktemp("resnet18")
    tuned(folder, "resnet18", "synthetic", "64", "--image", "64", "--budget", "185MiB")
    torch.manual_seed(1)
    return folder, models.resnet18(), torch.randn(64, 3, 64, 64), torch.randint(0, 1000, (64,))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    tuned(folder, "gpt-tiny", "text", "32", "--budget", "60MiB")
    torch.manual_seed(1)
    return folder, Gpt(), torch.randint(0, 65, (32, 64)), torch.randint(0, 65, (32, 64))


def exported(folder, to):
    return json.loads(run(folder, PROGRAM, "export", "study", "--to", to, "--format", "json"))["modules"]


def wrapped(model, export):
    """A model behind which the lines were pasted."""
    model = copy.deepcopy(model)
    exec(export["lines"], {"model": model})
    return model


def steps(model, x, y):
    """The losses of two steps, and all that they leave behind."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(F.cross_entropy(model(x), y))
        losses[-1].backward()
        optimizer.step()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        return [*losses, model(x), *gradients.values(), *model.state_dict().values()]


def saved_bytes(model, x, y):
    """What stays on the device for the backward pass, besides the input."""
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers(), x, y]}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = F.cross_entropy(model(x), y)
    del loss
    return sum(storage.nbytes() for storage in kept.values())


def peak_bytes(model, x, y, tmp_path):
    """The most that a step allocates at once."""
    F.cross_entropy(model(x), y).backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        F.cross_entropy(model(x), y).backward()
    profiled.export_chrome_trace(str(tmp_path / "profile.json"))
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    allocations = [event for event in events if event.get("name") == "[memory]"]
    now = most = 0
    for event in sorted(allocations, key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return most


@pytest.mark.parametrize("network", ["resnet", "gpt"])
@pytest.mark.parametrize("to", ["torch-checkpoint", "torch-offload"])
def test_wrapped_modules_leave_the_bits_and_save_what_was_predicted(network, to, request, tmp_path):
    folder, model, x, y = request.getfixturevalue(network)
    export = exported(folder, to)
    assert export["modules"] and export["peak_bytes"] <= export["budget_bytes"] < export["kept_peak_bytes"]
    for ours, eager in zip(
        steps(wrapped(model, export), x, y), steps(copy.deepcopy(model), x, y), strict=True
    ):
        assert torch.equal(ours, eager)

    predicted = export["kept_peak_bytes"] - export["peak_bytes"]
    fallen = saved_bytes(copy.deepcopy(model), x, y) - saved_bytes(wrapped(model, export), x, y)
    print(
        network, to, export["modules"], f"predicted {predicted / MIB:.1f}, saved {fallen / MIB:.1f} MiB less"
    )
    assert fallen == pytest.approx(predicted, rel=0.2)
    if to == "torch-checkpoint":  # what is offloaded stays in the same memory, where there is no device
        kept, less = (peak_bytes(m, x, y, tmp_path) for m in (copy.deepcopy(model), wrapped(model, export)))
        print(f"the peak fell by {(kept - less) / MIB:.1f} MiB")
        assert kept - less == pytest.approx(predicted, rel=0.2)


LOOP = """
from torch.nn.functional import mse_loss

rates = []
for _ in range(4):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(mse_loss(model(x), y))
            if accelerator.sync_gradients:
                rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""

MODEL = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
"""

LAST = """
assert rates == [LEARNING_RATE * share(update) for update in range(len(rates))], rates
assert len(rates) > 2 and ACCUMULATION == 2
print("trained", len(rates))
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Of a batch that is accumulated, and whose learning rate is warmed up and falls."""
    folder = tmp_path_factory.mktemp("mlp")
    return tuned(folder, "resnet20", "synthetic", "64", "--budget", "60MiB")


def settings(folder, to):
    return run(folder, PROGRAM, "export", "study", "--to", to, "--decay", "cosine", "--epochs", "2")


def test_torchrun_starts_a_script_with_the_options(study, tmp_path):
    (tmp_path / "train.py").write_text(
        "import argparse, torch\n"
        "torch.distributed.init_process_group('gloo')\n"
        "parser = argparse.ArgumentParser()\n"
        "for option in ['batch-size', 'gradient-accumulation-steps', 'warmup-steps', 'max-steps']:\n"
        "    parser.add_argument('--' + option, type=int, required=True)\n"
        "for option in ['learning-rate', 'momentum', 'weight-decay']:\n"
        "    parser.add_argument('--' + option, type=float, required=True)\n"
        "parser.add_argument('--optimizer', choices=['sgd', 'adam', 'adamw'])\n"
        "parser.add_argument('--lr-scheduler', choices=['constant', 'cosine', 'step'])\n"
        "asked = parser.parse_args()\n"
        "optimizer = torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), asked.learning_rate)\n"
        "if torch.distributed.get_rank() == 0:\n"
        "    print(torch.distributed.get_world_size(), asked.batch_size, asked.gradient_accumulation_steps)\n"
        "torch.distributed.destroy_process_group()\n"
    )
    lines = run(study, PROGRAM, "export", "study", "--to", "torchrun", "--workers", "2")
    (tmp_path / "lines.sh").write_text(lines)
    assert run(tmp_path, "sh", "lines.sh").split() == ["2", "32", "2"]


def test_accelerate_trains_by_the_lines(study, tmp_path):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    loader = "loader = torch.utils.data.DataLoader(data, batch_size=8)\n"
    (tmp_path / "train.py").write_text(MODEL + loader + settings(study, "accelerate") + LOOP + LAST)
    assert "trained" in run(tmp_path, sys.executable, "train.py", ACCELERATE_USE_CPU="true")


def test_lightning_trains_by_the_lines(study, tmp_path):
    pytest.importorskip("lightning", reason="lightning is not installed")
    lines = settings(study, "lightning")
    method = lines.index("def configure_optimizers")
    module = """
rates = []


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, number):
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def on_before_optimizer_step(self, optimizer):
        rates.append(optimizer.param_groups[0]["lr"])

"""
    indented = "".join(f"    {line}" for line in lines[method:].splitlines(keepends=True))
    fit = "\ntrainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))\n"
    # The lines leave the trainer's other options to the user.
    trainer = lines[:method].replace(
        "L.Trainer(", "L.Trainer(accelerator='cpu', max_epochs=4, logger=False, "
    )
    (tmp_path / "train.py").write_text(MODEL + trainer + module + indented + fit + LAST)
    assert "trained" in run(tmp_path, sys.executable, "train.py")


@pytest.mark.slow  # importing it takes as long as all other tools
def test_deepspeed_trains_by_its_configuration(study, tmp_path):
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    (tmp_path / "config.json").write_text(settings(study, "deepspeed"))
    (tmp_path / "train.py").write_text(
        MODEL
        + """
import deepspeed, json

# What it compiles for several processes of one machine takes a minute, and this is one process.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
with open("config.json") as file:
    config = json.load(file)
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config="config.json")
assert engine.gradient_accumulation_steps() == config["gradient_accumulation_steps"] == 2
rates = []
for number in range(8):
    x, y = (part[8 * number : 8 * number + 8] for part in data.tensors)
    engine.backward(torch.nn.functional.mse_loss(engine(x), y))
    if engine.is_gradient_accumulation_boundary():
        rates.append(engine.get_lr()[0])
    engine.step()
assert max(rates) <= config["optimizer"]["params"]["lr"] and len(set(rates)) > 1, rates
print("trained", len(rates))
"""
    )
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29533",
    }
    assert "trained" in run(tmp_path, sys.executable, "train.py", **alone, DS_ACCELERATOR="cpu")
