"""Lightning with `PlannedStrategy` leaves the bits of Lightning without it."""

import logging

import pytest
import torch
import torch.nn.functional as F
from networks import build

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

import plimsoll  # noqa: E402
from plimsoll.adapters.lightning import PlannedStrategy  # noqa: E402

FAST = {"link": "20GB/s", "seconds": 0.5, "verify": 1}


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def cross_entropy(logits, words):
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


class Module(lightning.LightningModule):
    """Logs its loss and an accuracy, and keeps the result of each batch."""

    def __init__(self, model=None):
        super().__init__()
        self.model = model or build("gpt").model
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(x)
        loss = cross_entropy(logits, y)
        self.log("loss", loss, prog_bar=True)
        self.log_dict({"accuracy": (logits.argmax(-1) == y).float().mean()}, on_step=True, on_epoch=True)
        return {"loss": loss, "logits": logits}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += [outputs["loss"].clone(), outputs["logits"].clone()]

    def on_before_optimizer_step(self, optimizer):
        self.seen += [p.grad.norm() for p in self.parameters() if p.requires_grad]

    def validation_step(self, batch, batch_idx):
        self.log("validation", cross_entropy(self.model(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], 1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Metrics(lightning.Callback):
    """Keeps all logged values, after every batch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def loader(count=22):
    task = build("gpt")
    samples = [sample for batch in task.batches for sample in zip(*batch, strict=True)] * 2
    return torch.utils.data.DataLoader(samples[:count], 4)


def fit(folder, module, strategy=None, epochs=2, **arguments):
    metrics = Metrics()
    saved = lightning.callbacks.ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=2)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[metrics, saved],
        **({"strategy": strategy} if strategy else {"accelerator": "cpu", "devices": 1}),
        **arguments,
    )
    torch.manual_seed(3)
    data = loader()
    trainer.fit(module, data, data)
    state = [*module.seen, *module.state_dict().values(), torch.get_rng_state()]
    weights = [torch.load(path, weights_only=False)["state_dict"] for path in sorted(folder.iterdir())]
    return state + [value for one in weights for value in one.values()], metrics.seen


def both(tmp_path, make=Module, share="80%", **arguments):
    wanted, metrics = fit(tmp_path / "eager", make(), **arguments)
    strategy = PlannedStrategy(share, **FAST)
    left, planned_metrics = fit(tmp_path / "plan", make(), strategy, **arguments)
    assert planned_metrics == metrics
    assert len(left) == len(wanted)
    assert all(map(torch.equal, left, wanted))
    assert strategy.step.fallback is None
    assert strategy.step.program.counts.as_planned
    schedules = [planned.program.schedule for planned in strategy.step._kinds.values()]
    assert any(schedule.recomputed_ops + schedule.offloaded_bytes > 0 for schedule in schedules)
    return strategy


def test_logging_validation_checkpoints_and_a_last_partial_batch(tmp_path):
    strategy = both(tmp_path, val_check_interval=2)
    assert strategy.step.why.startswith("batch 2, ")


def test_accumulation_clipping_and_max_steps(tmp_path):
    both(tmp_path, accumulate_grad_batches=3, gradient_clip_val=0.1, max_steps=3)


def test_autocast_to_bf16(tmp_path):
    both(tmp_path, precision="bf16-mixed")


def test_the_number_of_batches_that_are_accumulated_may_change(tmp_path):
    scheduler = {"scheduling": {0: 1, 1: 2}}

    def fit_with(folder, strategy=None):
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            callbacks=[lightning.callbacks.GradientAccumulationScheduler(**scheduler)],
            **({"strategy": strategy} if strategy else {"accelerator": "cpu", "devices": 1}),
        )
        torch.manual_seed(3)
        trainer.fit(module, loader())
        return [*module.seen, *module.state_dict().values()]

    strategy = PlannedStrategy("90%", **FAST)
    assert all(map(torch.equal, fit_with(tmp_path), fit_with(tmp_path, strategy)))
    assert strategy.step.fallback is None


def test_frozen_parts_and_tied_weights(tmp_path):
    class Frozen(Module):
        def __init__(self):
            super().__init__()
            self.model.blocks[0].requires_grad_(False)

    strategy = both(tmp_path, Frozen)
    model = strategy.lightning_module.model
    assert model.head.weight is model.embedding.weight
    assert len(strategy.step.program.tape.gradients) == sum(p.requires_grad for p in model.parameters())


def test_lora(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")

    class Lora(Module):
        def __init__(self):
            super().__init__()
            config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["qkv", "up"])
            self.model = peft.get_peft_model(self.model, config)

    both(tmp_path, Lora)


def test_an_optimizer_whose_state_is_not_known_steps_first(tmp_path, caplog):
    class Other(Module):
        def configure_optimizers(self):
            return torch.optim.Adafactor(self.parameters())

    with caplog.at_level(logging.WARNING, "plimsoll"):
        both(tmp_path, Other, accumulate_grad_batches=2)
    assert caplog.text.count("how much state Adafactor keeps is known after its first step") == 1


def test_a_step_that_returns_the_loss_alone(tmp_path):
    class Plain(Module):
        def training_step(self, batch):
            return cross_entropy(self.model(batch[0]), batch[1])

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen.append(outputs["loss"].clone())

    both(tmp_path, Plain)


@pytest.mark.parametrize(
    ("training_step", "message"),
    [
        (lambda self, batch, batch_idx: self.model(batch[0]).sum() * (batch_idx % 2), "looks at `batch_idx`"),
        (
            lambda self, batch, batch_idx: f"{batch_idx}" and self.model(batch[0]).sum(),
            "looks at `batch_idx`",
        ),
        (lambda self, batch, batch_idx: self.log("rate", 0.1), "logs `rate`, a float"),
        (lambda self, batch, batch_idx: None, "gave no loss"),
    ],
)
def test_what_is_another_in_every_batch_is_refused(tmp_path, training_step, message):
    other = type("Other", (Module,), {"training_step": training_step})()
    before = [p.clone() for p in other.parameters()]
    with pytest.raises(plimsoll.Refused, match=message):
        fit(tmp_path, other, PlannedStrategy("90%", **FAST))
    assert all(map(torch.equal, other.parameters(), before))


def test_modules_that_a_plan_would_change_are_refused_before_they_run(tmp_path):
    def by_hand(self):
        Module.__init__(self)
        self.automatic_optimization = False

    for members, message in [
        ({"backward": lambda self, loss: loss.backward(retain_graph=True)}, "has a `backward` of its own"),
        ({"optimizer_zero_grad": lambda self, *_: None}, "has a `optimizer_zero_grad` of its own"),
        ({"__init__": by_hand}, "optimizes by hand"),
    ]:
        with pytest.raises(plimsoll.Refused, match=message):
            fit(tmp_path, type("Other", (Module,), members)(), PlannedStrategy("90%", **FAST))


def test_one_process_of_several_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(plimsoll.Refused, match="this process is one of 2"):
        fit(tmp_path, Module(), PlannedStrategy("90%", **FAST))


def test_a_second_training_has_a_step_of_its_own(tmp_path):
    strategy = PlannedStrategy("90%", **FAST)
    fit(tmp_path, Module(), strategy, epochs=1)
    first = strategy.step
    fit(tmp_path, Module(), strategy, epochs=1)
    assert strategy.step is not first
