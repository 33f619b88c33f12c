"""A Lightning module within a budget: a strategy. Needs lightning.

python examples/lightning_module.py
"""

from __future__ import annotations

import lightning.pytorch as lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from plimsoll.adapters.lightning import PlannedStrategy


class Classifier(lightning.LightningModule):
    """An MLP with a loss, as it would be without a budget."""

    def __init__(self) -> None:
        super().__init__()
        hidden = (nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(8))
        self.layers = nn.Sequential(nn.Linear(64, 256), *hidden, nn.Linear(256, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        x, y = batch
        loss = F.cross_entropy(self.layers(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main() -> None:
    """Trains for two epochs."""
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(8192, 64), torch.randint(0, 10, (8192,)))
    trainer = lightning.Trainer(
        strategy=PlannedStrategy(budget="70%", seconds=1),
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=2048))
    print(f"{trainer.global_step} steps, loss {trainer.callback_metrics['loss'].item():.4f}")


if __name__ == "__main__":
    main()
