"""The output of `plimsoll export`, run by the tool that it is for, as by its user."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCRIPTS = Path(sysconfig.get_path("scripts"))
PROGRAM = SCRIPTS / "plimsoll"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
ENVIRONMENT["PATH"] = os.pathsep.join([str(SCRIPTS), ENVIRONMENT.get("PATH", "")])


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
    """A study of a batch that is accumulated, with a learning rate that is warmed up and falls."""
    folder = tmp_path_factory.mktemp("study")
    line = "--network resnet20 --data synthetic --device v100 --study study --budget 60MiB"
    batch = "--base-batch 64 --min-batch 64 --max-batch 64"
    run(folder, PROGRAM, "tune", *line.split(), *batch.split())
    return folder


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
