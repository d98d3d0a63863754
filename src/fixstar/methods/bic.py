"""BiC: distillation, then a correction of the new classes' logits, learnt on balanced images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fixstar.errors import InputError, ModelError
from fixstar.losses import cross_entropy, knowledge_distillation
from fixstar.methods.method import Method, Objective, Step, Terms, Upgrade
from fixstar.models import LinearClassifier


def bias_corrected(temperature: float = 2.0, hold_out: float = 0.1) -> Method:
    """BiC (Wu et al. 2019): (1 - lam) CE + lam KD, lam = old classes / all classes; then alpha, beta for new logits.

    The network is then frozen, and alpha and beta are fitted to ``hold_out`` of the remembered images and as many of
    each new class (eq. 5 of that paper; two numbers, so by L-BFGS and not by epochs of SGD). They are folded into the
    classifier, so that they teach the next version.
    """
    if not temperature > 0 or not 0 < hold_out < 1:
        raise InputError(f"bic needs temperature > 0 and 0 < hold_out < 1; got {temperature} and {hold_out}")
    return Method(
        "bic",
        "fine-tune with distilled answers, then correct the bias towards new classes",
        "Wu et al. 2019, eqs. 1 to 5; CL2R, section 7.3 (BiC)",
        begin=lambda upgrade: _corrected(upgrade, temperature),
        classifier="linear",
        classifier_options={"bias": True},
        needs=frozenset({"old model", "replay"}),
        options={"temperature": temperature, "hold_out": hold_out},
        hold_out=hold_out,
    )


class BiasCorrection(nn.Module):
    """alpha * logit + beta for the outputs from ``first_new`` on."""

    def __init__(self, first_new: int) -> None:
        super().__init__()
        self.first_new = first_new
        self.alpha, self.beta = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor) -> Tensor:
        """[B, C] to [B, C]."""
        old, new = logits[:, : self.first_new], logits[:, self.first_new :]
        return torch.cat([old, self.alpha * new + self.beta], dim=1)

    def fit(self, logits: Tensor, targets: Tensor) -> None:
        """Take the alpha and beta of the least cross-entropy on these images: [B, C], [B]."""
        optimiser = torch.optim.LBFGS(self.parameters(), max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = cross_entropy(self(logits), targets)
            torch.autograd.backward(loss)
            return loss

        optimiser.step(closure)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def fold_into(self, head: LinearClassifier) -> None:
        """Give the head the corrected logits for its own."""
        assert head.bias is not None
        head.weight[self.first_new :] *= self.alpha
        head.bias[self.first_new :] = head.bias[self.first_new :] * self.alpha + self.beta


def _corrected(upgrade: Upgrade, temperature: float) -> Objective:
    if upgrade.teacher is None or not upgrade.old_outputs:
        return Objective(lambda step: {"ce": step.new.cross_entropy(step.targets)})
    head, old_outputs = upgrade.encoder.classifier, upgrade.old_outputs
    if not isinstance(head, LinearClassifier) or head.bias is None:
        raise ModelError(
            f"bic corrects a linear classifier with a bias; this model has a {head.kind} one. Begin with it from v1"
        )
    old, new = len(upgrade.old_classes), len(upgrade.new_classes)
    lam = old / (old + max(new, 1))  # an upgrade may bring old classes alone: at lam = 1 no label would count

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        answers = knowledge_distillation(step.new.logits[:, :old_outputs], step.old.logits, temperature)
        return {"ce": (1 - lam) * step.new.cross_entropy(step.targets), "kd": lam * answers}

    held_out = upgrade.held_out
    if held_out is None or head.outputs == old_outputs:  # nothing to fit the correction to, or to correct
        return Objective(terms)

    correction = BiasCorrection(old_outputs).to(upgrade.encoder.device)

    def finish() -> None:
        features = torch.from_numpy(upgrade.encoder.encode(held_out.images, form="raw")).to(upgrade.encoder.device)
        targets = upgrade.encoder.targets(held_out.classes)[torch.from_numpy(held_out.labels)]
        correction.fit(head(features).detach(), targets)
        correction.fold_into(head)

    return Objective(terms, correction, finish=finish)
