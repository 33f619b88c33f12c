"""Hugging Face's `Trainer` within a budget: one argument more. Needs transformers and accelerate.

python examples/hugging_face.py
"""

from __future__ import annotations

import torch
import transformers

from plimsoll.adapters.transformers import Trainer


def main() -> None:
    """Trains a small GPT-2 for two epochs."""
    torch.manual_seed(0)
    sizes = {"n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=128, **sizes))
    texts = [torch.randint(0, 128, (64,)) for _ in range(32)]
    data = [{"input_ids": text, "labels": text.clone()} for text in texts]
    arguments = transformers.TrainingArguments(
        per_device_train_batch_size=8,
        num_train_epochs=2,
        save_strategy="no",
        disable_tqdm=True,
        report_to="none",
        use_cpu=True,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=data, budget="70%", tune_kwargs={"seconds": 1}
    )
    result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
