"""Loops with Accelerate leave the bits of the same loops without a plan."""

import pytest
import torch
import torch.nn.functional as F
from networks import build

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

import plimsoll  # noqa: E402
from plimsoll.adapters import accelerate as adapter  # noqa: E402


def train(planned, accumulated=1, precision="no", with_others=False, steps=7):
    """Results of seven batches, the last of them a partial one."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(
        gradient_accumulation_steps=accumulated, mixed_precision=precision, cpu=True
    )
    task = build("gpt")
    plain = torch.optim.AdamW(task.model.parameters(), 1e-3)
    samples = [sample for batch in task.batches for sample in zip(*batch, strict=True)] * 2
    loader = torch.utils.data.DataLoader(samples[: 4 * steps - 2], 4)
    schedule = torch.optim.lr_scheduler.StepLR(plain, 2)
    model, optimizer, loader, schedule = accelerator.prepare(task.model, plain, loader, schedule)

    def fn(x, y):
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        return (
            plimsoll.Outputs(loss, {"accuracy": (logits.argmax(-1) == y).float().mean()})
            if with_others
            else loss
        )

    def eager(x, y):
        given = fn(x, y)
        accelerator.backward(given.loss if with_others else given)
        return given

    step, left = eager, []
    if planned:
        sample = next(iter(loader))
        options = {"link": "20GB/s", "seconds": 0.5, "verify": 1}
        step = adapter.tune(accelerator, fn, model, optimizer, sample, "80%", **options)
        assert step.program.schedule.offloaded_bytes + step.program.schedule.recomputed_ops > 0
    torch.manual_seed(7)
    for x, y in loader:
        with accelerator.accumulate(model):
            given = step(x, y)
            left += [given.loss, given.others["accuracy"]] if with_others else [given]
            if accelerator.sync_gradients:
                left.append(accelerator.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            left.append(model(x))
        model.train()
        if planned:
            assert step.fallback is None
    assert not planned or step.program.counts.as_planned
    return [tensor.detach().clone() for tensor in (*left, *model.state_dict().values())]


@pytest.mark.parametrize("with_others", [False, True])
@pytest.mark.parametrize(("accumulated", "precision"), [(1, "no"), (3, "no"), (2, "bf16")])
def test_the_bits_of_accelerate_without_a_plan(accumulated, precision, with_others):
    wanted = train(False, accumulated, precision, with_others)
    left = train(True, accumulated, precision, with_others)
    assert len(left) == len(wanted)
    assert all(map(torch.equal, left, wanted))


def train_lora(planned, folder):
    """Trains, saves, continues, and continues once more from the saved state."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    task = build("gpt")
    config = peft.LoraConfig(r=4, lora_dropout=0.2, target_modules=["qkv", "up"])
    model = peft.get_peft_model(task.model, config)
    accelerator = accelerate.Accelerator(cpu=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(trained, 0.1, momentum=0.9))

    def loss(x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def eager(*batch):
        made = loss(*batch)
        accelerator.backward(made)
        return made.detach()

    step = eager
    if planned:
        options = {"link": "20GB/s", "seconds": 0.5, "verify": 1}
        step = adapter.tune(accelerator, loss, model, optimizer, task.batches[0], "60%", **options)
        assert len(step.program.tape.gradients) == len(trained)
    torch.manual_seed(1)
    left = []
    for number, batch in enumerate([*task.batches, *task.batches[1:]]):
        if number == 1:
            accelerator.save_state(folder)
        if number == 3:
            accelerator.load_state(folder)
        left.append(step(*batch))
        if planned:
            assert step.fallback is None
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(left[1], left[3])
    return [*left, *(p.detach() for p in model.parameters())]


def test_lora_and_a_checkpoint(tmp_path):
    wanted, left = train_lora(False, tmp_path / "eager"), train_lora(True, tmp_path / "plan")
    assert all(map(torch.equal, left, wanted))


def test_what_no_plan_has_is_refused():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True)
    task = build("mlp")
    accelerator.scaler = object()
    with pytest.raises(plimsoll.Refused, match="`mixed_precision='bf16'`"):
        adapter.tune(accelerator, task.loss, task.model, None, task.batches[0], "100%")
    accelerator.scaler = None
    accelerator.state.distributed_type = accelerate.utils.DistributedType.FSDP
    with pytest.raises(plimsoll.Refused, match="steps under FSDP cannot be planned"):
        adapter.tune(accelerator, task.loss, task.model, None, task.batches[0], "100%")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
