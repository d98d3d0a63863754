"""The fixed simplex in Lightning: the same head and loss as in plain_loop.py, inside a LightningModule.

Needs lightning. Swap ``network`` and the random images for yours.
"""

import copy
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fixstar import SimplexClassifier, losses

K = 100  # room for 100 classes; 10 are used now


class Compatible(lightning.LightningModule):
    """Cross-entropy against the simplex; with an old model, features are held where it put them."""

    def __init__(self, network: nn.Module, old: nn.Module | None = None) -> None:
        super().__init__()
        self.network, self.head = network, SimplexClassifier(K)
        self.old = None if old is None else copy.deepcopy(old).eval().requires_grad_(False)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of a batch of images and labels."""
        images, labels = batch
        z = self.network(images)
        loss = losses.cross_entropy(self.head(z), labels)
        return (
            loss
            if self.old is None
            else loss + 5 * losses.feature_distillation(z, self.old(images))
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Only the network has weights: the head's prototypes never move."""
        return torch.optim.SGD(self.network.parameters(), 0.05, momentum=0.9)


def train(module: Compatible, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """Thirty epochs of one batch."""
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=30, **quiet)
    trainer.fit(module, DataLoader(TensorDataset(images, labels), batch_size=64))
    return module.network.eval()


warnings.filterwarnings("ignore", module="lightning")
torch.manual_seed(0)
body = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 64)
)
network = nn.Sequential(body, nn.Linear(64, K - 1, bias=False))
images, labels = torch.rand(64, 3, 32, 32), torch.randint(0, 10, (64,))
v1 = copy.deepcopy(train(Compatible(network), images[labels < 5], labels[labels < 5]))
v2 = train(Compatible(network, old=v1), images, labels)
cosine = torch.cosine_similarity(v1(images), v2(images)).mean().item()
print(f"v1's and v2's features of the same image: cosine {cosine:.2f}")
