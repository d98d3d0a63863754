"""The fixed simplex in a plain PyTorch loop: a model of your own, trained so that its successors stay compatible.

Swap ``Net`` and the random images for yours. The head has no weights: its prototypes never move.
"""

import torch
from torch import nn

from fixstar import SimplexClassifier, losses

torch.manual_seed(0)
K = 100  # room for 100 classes; 10 are used now
head = SimplexClassifier(K)


def network() -> nn.Module:
    """Your backbone, and a projection to the width of the simplex."""
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 64)
    )
    return nn.Sequential(body, nn.Linear(64, head.feature_dim, bias=False))


def train(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, old: nn.Module | None = None
) -> float:
    """Cross-entropy against the simplex; with an old model, features are held where it put them."""
    optimiser = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(30):
        z = model(images)
        loss = losses.cross_entropy(head(z), labels)
        if old is not None:
            with torch.no_grad():
                before = old(images)
            loss = loss + 5 * losses.feature_distillation(z, before)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return float(loss.detach())


images, labels = torch.rand(64, 3, 32, 32), torch.randint(0, 10, (64,))
v1, v2 = network(), network()
train(v1, images[labels < 5], labels[labels < 5])
v2.load_state_dict(v1.state_dict())
train(v2, images, labels, old=v1)
cosine = torch.cosine_similarity(v1(images), v2(images)).mean().item()
print(f"v1's and v2's features of the same image: cosine {cosine:.2f}")
