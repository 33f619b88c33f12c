"""Hugging Face's `Trainer` with a budget leaves the bits of the same trainer without one."""

import json
import logging

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
utils = pytest.importorskip("accelerate.utils", reason="accelerate is not installed")

import plimsoll  # noqa: E402
from plimsoll.adapters.transformers import PlannedSteps, Trainer  # noqa: E402

WORDS, LENGTH = 32, 64
FAST = {"link": "20GB/s", "seconds": 0.5, "verify": 1}


def language_model():
    torch.manual_seed(0)
    sizes = {
        "n_positions": LENGTH,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **sizes))


def classifier():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=WORDS, num_labels=3, **sizes)
    return transformers.BertForSequenceClassification(config)


def texts(count=14, length=LENGTH):
    g = torch.Generator().manual_seed(1)
    words = [torch.randint(0, WORDS, (length,), generator=g) for _ in range(count)]
    return [{"input_ids": w, "labels": w.clone()} for w in words]


def sentences(count=14):
    return [{"input_ids": t["input_ids"], "labels": torch.tensor(n % 3)} for n, t in enumerate(texts(count))]


def train(trainer_class, folder, model, data, own=None, **arguments):
    """Trains, and returns all results: weights, gradients' norms, losses, metrics, generator."""
    defaults = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "report_to": "none",
    }
    defaults |= {"save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "seed": 3}
    trainer = trainer_class(
        model=model,
        args=transformers.TrainingArguments(str(folder), **{**defaults, **arguments}),
        train_dataset=data,
        **(own or {}),
    )
    trainer.train()
    clock = {"runtime", "per_second", "total_flos"}
    history = [
        {k: v for k, v in entry.items() if not any(word in k for word in clock)}
        for entry in trainer.state.log_history
    ]
    return trainer, history


def both(
    tmp_path,
    model=language_model,
    data=None,
    planned=Trainer,
    plain=transformers.Trainer,
    own=None,
    **arguments,
):
    """Trains without and with a budget, and compares every bit. Returns the trainer with a budget."""
    data = data or texts()
    wanted, history = train(plain, tmp_path / "eager", model(), data, own, **arguments)
    generator = torch.get_rng_state()
    planning = {"budget": "60%", "tune_kwargs": FAST, **(own or {})}
    trainer, planned_history = train(planned, tmp_path / "plan", model(), data, planning, **arguments)
    assert planned_history == history
    assert any("loss" in entry for entry in history)
    assert torch.equal(torch.get_rng_state(), generator)
    one, other = wanted.model.state_dict(), trainer.model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert trainer.step.fallback is None
    assert trainer.step.program.counts.as_planned
    schedules = [planned.program.schedule for planned in trainer.step._kinds.values()]
    assert any(schedule.recomputed_ops + schedule.offloaded_bytes > 0 for schedule in schedules)
    return trainer


def test_a_causal_model_with_a_last_partial_batch(tmp_path):
    trainer = both(tmp_path)
    assert trainer.step.why.startswith("batch 2, ")


@pytest.mark.parametrize("model", [language_model, classifier])
def test_accumulation_with_a_remainder_clipping_and_a_schedule(tmp_path, model):
    both(
        tmp_path,
        model,
        sentences() if model is classifier else texts(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        max_grad_norm=0.1,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        weight_decay=0.1,
    )


def test_autocast_to_bf16(tmp_path):
    both(tmp_path, bf16=True)


def test_the_trainer_s_own_checkpointing(tmp_path):
    both(tmp_path, gradient_checkpointing=True)


def test_label_smoothing_and_a_loss_of_the_user_s_own(tmp_path):
    both(tmp_path, classifier, sentences(), label_smoothing_factor=0.1, max_steps=3)

    def loss(outputs, labels, num_items_in_batch=None):
        return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    both(tmp_path, classifier, sentences(), own={"compute_loss_func": loss}, gradient_accumulation_steps=2)


def test_evaluation_saving_and_max_steps(tmp_path):
    trainer = both(
        tmp_path,
        own={"eval_dataset": texts(6)},
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        max_steps=5,
    )
    assert sum("eval_loss" in entry for entry in trainer.state.log_history) >= 2
    for step in (2, 4):
        eager, plan = (tmp_path / kind / f"checkpoint-{step}" for kind in ("eager", "plan"))
        assert (eager / "model.safetensors").read_bytes() == (plan / "model.safetensors").read_bytes()
        state = [json.loads((folder / "trainer_state.json").read_text()) for folder in (eager, plan)]
        assert state[0]["global_step"] == state[1]["global_step"] == step


def test_training_goes_on_from_a_checkpoint(tmp_path):
    own = {"budget": "70%", "tune_kwargs": FAST}
    whole, _ = train(transformers.Trainer, tmp_path / "eager", language_model(), texts(), max_steps=6)
    first = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    train(Trainer, tmp_path / "plan", language_model(), texts(), own, **first)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "plan"),
        per_device_train_batch_size=4,
        max_steps=6,
        report_to="none",
        use_cpu=True,
        seed=3,
    )
    trainer = Trainer(model=language_model(), args=arguments, train_dataset=texts(), **own)
    trainer.train(resume_from_checkpoint=str(tmp_path / "plan" / "checkpoint-3"))
    one, other = whole.model.state_dict(), trainer.model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_optimizer_whose_state_is_not_known_steps_first(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "plimsoll"):
        trainer = both(tmp_path, optim="adafactor", gradient_accumulation_steps=2)
    assert caplog.text.count("how much state Adafactor keeps is known after its first step") == 1
    assert trainer.step._current().trace.resident_bytes > trainer.step.program.tape.resident_bytes()


def test_frozen_parts(tmp_path):
    def model():
        made = language_model()
        for parameter in made.transformer.h[0].parameters():
            parameter.requires_grad_(False)
        return made

    both(tmp_path, model)


def test_tied_weights_have_one_gradient(tmp_path):
    trainer = both(tmp_path, optim="sgd")
    assert trainer.model.lm_head.weight is trainer.model.transformer.wte.weight
    assert len(trainer.step.program.tape.gradients) == len(list(trainer.model.parameters()))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_lora(tmp_path, accumulated):
    peft = pytest.importorskip("peft", reason="peft is not installed")

    def model():
        config = peft.LoraConfig(
            task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules=["c_attn", "c_fc"]
        )
        return peft.get_peft_model(language_model(), config)

    trainer = both(tmp_path, model, gradient_accumulation_steps=accumulated)
    trained = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
    assert len(trainer.step.program.tape.gradients) == len(trained)


def test_a_trainer_of_the_user_s_own(tmp_path, caplog):
    class Weighted(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, given = super().compute_loss(model, inputs, True, num_items_in_batch)
            loss = 0.5 * loss + given["logits"].square().mean()
            return (loss, given) if return_outputs else loss

    class Planned(PlannedSteps, Weighted):
        pass

    with caplog.at_level(logging.WARNING, "plimsoll"):
        both(tmp_path, planned=Planned, plain=Weighted)
    assert "`Planned.compute_loss` runs while the step is recorded and verified" in caplog.text


def test_a_batch_that_does_not_fit_is_refused_with_the_largest_that_does(tmp_path):
    data = [{"input_ids": t["input_ids"][:8], "labels": t["labels"][:8]} for t in texts(64)]
    own = {"budget": 1, "tune_kwargs": FAST}
    trainer = Trainer(
        model=language_model(),
        args=transformers.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=32, max_steps=2, report_to="none", use_cpu=True
        ),
        train_dataset=data,
        **own,
    )
    with pytest.raises(plimsoll.NoPlan) as failed:
        trainer.train()
    trainer._budget = failed.value.floor_bytes - 1024
    with pytest.raises(plimsoll.NoPlan, match="The largest batch that fits") as failed:
        trainer.train()
    assert 1 <= failed.value.largest_batch < 32


def test_sequences_of_varying_length_in_buckets(tmp_path):
    lengths = [5, 9, 30, 14, 33, 40, 12, 16, 64, 3]
    data = [{name: t[name][:n] for name in t} for t, n in zip(texts(10), lengths, strict=True)]

    def collated(samples, to=None):
        longest = max(len(sample["labels"]) for sample in samples)
        length = next((n for n in to or () if n >= longest), longest)
        pad = {"input_ids": 0, "labels": -100}
        return {
            name: torch.stack([F.pad(s[name], (0, length - len(s[name])), value=pad[name]) for s in samples])
            for name in pad
        }

    def with_collator(collate, own, trainer_class):
        arguments = {"per_device_train_batch_size": 2, "num_train_epochs": 2}
        return train(
            trainer_class, tmp_path, language_model(), data, {"data_collator": collate, **own}, **arguments
        )

    wanted, history = with_collator(lambda samples: collated(samples, (16, 32, 64)), {}, transformers.Trainer)
    buckets = plimsoll.Buckets([16, 32, 64], {"input_ids": 0, "labels": -100})
    own = {"budget": "60%", "tune_kwargs": {**FAST, "buckets": buckets, "host_budget": "1MiB"}}
    trainer, planned_history = with_collator(collated, own, Trainer)
    assert planned_history == history
    assert trainer.step.fallback is None
    assert len(trainer.step._kinds) <= len(buckets.lengths)
    assert all(map(torch.equal, trainer.model.parameters(), wanted.model.parameters()))


def test_train_again_after_training(tmp_path):
    trainer, _ = train(
        Trainer, tmp_path, language_model(), texts(), {"budget": "70%", "tune_kwargs": FAST}, max_steps=1
    )
    first, trainer.optimizer = trainer.step, None
    trainer.train()
    assert trainer.step is not first
    assert trainer.step.fallback is None


def test_what_no_plan_has_is_refused(tmp_path):
    trainer, _ = train(
        Trainer, tmp_path, language_model(), texts(), {"budget": "70%", "tune_kwargs": FAST}, max_steps=1
    )
    trainer.accelerator.scaler = object()
    with pytest.raises(plimsoll.Refused, match="`bf16=True`"):
        trainer._refuse_what_no_plan_has()
    trainer.accelerator.scaler = None
    trainer.accelerator.state.distributed_type = utils.DistributedType.FSDP
    try:
        with pytest.raises(plimsoll.Refused, match="steps under FSDP cannot be planned"):
            trainer._refuse_what_no_plan_has()
    finally:
        trainer.accelerator.state.distributed_type = utils.DistributedType.NO
