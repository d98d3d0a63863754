"""The fixed simplex in the Hugging Face Trainer: a small vision transformer, trained twice, stays compatible.

Needs transformers and accelerate. Swap the configuration for ``AutoModel.from_pretrained`` and the images for yours.
"""

import copy
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTModel

from fixstar import SimplexClassifier, losses

K = 100  # room for 100 classes; 10 are used now


class Compatible(nn.Module):
    """A backbone of transformers, a projection to the simplex, and the loss; an old model holds features in place."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.body, self.head = ViTModel(config, add_pooling_layer=False), SimplexClassifier(K)
        self.projection = nn.Linear(config.hidden_size, self.head.feature_dim, bias=False)
        self.old: list[Compatible] = []  # a list: not trained, not saved

    def features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] to [B, K - 1]."""
        return self.projection(self.body(pixel_values=pixel_values).last_hidden_state[:, 0])

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the Trainer asks for: a dictionary with the loss."""
        z = self.features(pixel_values)
        loss = losses.cross_entropy(self.head(z), labels)
        for old in self.old:
            loss = loss + 5 * losses.feature_distillation(z, old.features(pixel_values).detach())
        return {"loss": loss}


def train(model: Compatible, images: torch.Tensor, labels: torch.Tensor) -> Compatible:
    """Twenty steps of one batch."""
    rows = [
        {"pixel_values": image, "labels": label}
        for image, label in zip(images, labels, strict=True)
    ]
    quiet = {"use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "report_to": "none"}
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model,
            TrainingArguments(folder, max_steps=20, learning_rate=3e-3, **quiet),
            train_dataset=rows,
        ).train()
    return model.eval()


torch.manual_seed(0)
config = ViTConfig(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=32
)
images, labels = torch.rand(64, 3, 32, 32), torch.randint(0, 10, (64,))
v1 = train(Compatible(config), images[labels < 5], labels[labels < 5])
v2 = copy.deepcopy(v1)
v2.old.append(v1)
train(v2, images, labels)
cosine = torch.cosine_similarity(v1.features(images), v2.features(images)).mean().item()
print(f"v1's and v2's features of the same image: cosine {cosine:.2f}")
