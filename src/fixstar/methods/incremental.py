"""Baselines of class-incremental learning: fine-tuning on new and replayed images, with different additions."""

from __future__ import annotations

import copy
import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fixstar.errors import ModelError
from fixstar.losses import (
    balanced_distillation,
    cross_entropy,
    feature_distillation,
    knowledge_distillation,
    margin_ranking,
    neighbourhood_components,
    pooled_outputs,
)
from fixstar.methods.method import (
    Method,
    Objective,
    Rule,
    Stage,
    Step,
    Terms,
    Upgrade,
    above,
    at_least,
    one_of,
    plain_terms,
    require,
    whole,
)
from fixstar.models import Adapter, CosineClassifier, Encoder, LinearClassifier

Ratio = Literal["old/new", "new/old"]


def experience_replay() -> Method:
    """ER: cross-entropy with a trainable head. The baseline without any measure for compatibility."""
    return Method(
        "er",
        "fine-tune on new and replayed images",
        "HOC, section 5 (ER)",
        plain_terms,
        classifier="linear",
        needs=frozenset({"replay"}),
    )


def bias_corrected(temperature: float = 2.0, hold_out: float = 0.1) -> Method:
    """BiC (Wu et al. 2019): (1 - lam) CE + lam KD, lam = old classes / all classes; then alpha, beta for new logits.

    The network is then frozen, and alpha and beta are fitted to ``hold_out`` of the remembered images and as many of
    each new class (eq. 5 of that paper; two numbers, so by L-BFGS and not by epochs of SGD). They are folded into the
    classifier, so that the next version is distilled from corrected logits.
    """
    options = {"temperature": temperature, "hold_out": hold_out}
    require(
        "bic",
        options,
        temperature=above(0),
        hold_out=Rule("in (0, 1)", lambda share: 0 < share < 1),
    )
    return Method(
        "bic",
        "fine-tune with distilled answers, then correct the bias towards new classes",
        "Wu et al. 2019, eqs. 1 to 5; CL2R, section 7.3 (BiC)",
        begin=lambda upgrade: _corrected(upgrade, temperature),
        classifier="linear",
        classifier_options={"bias": True},
        needs=frozenset({"old model", "replay"}),
        options=options,
        hold_out=hold_out,
    )


class BiasCorrection(nn.Module):
    """alpha * logit + beta for the outputs from ``first_new`` on."""

    def __init__(self, first_new: int) -> None:
        super().__init__()
        self.first_new = first_new
        self.alpha = nn.Parameter(torch.ones(()))
        self.beta = nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor) -> Tensor:
        """[B, C] to [B, C]."""
        old = logits[:, : self.first_new]
        new = logits[:, self.first_new :]
        return torch.cat([old, self.alpha * new + self.beta], dim=1)

    def fit(self, logits: Tensor, targets: Tensor) -> None:
        """Set alpha and beta to minimise the cross-entropy on these images: [B, C], [B]."""
        optimiser = torch.optim.LBFGS(
            self.parameters(), max_iter=100, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = cross_entropy(self(logits), targets)
            torch.autograd.backward(loss)
            return loss

        optimiser.step(closure)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def fold_into(self, head: LinearClassifier) -> None:
        """Fold the correction into the weights and biases of the head."""
        assert head.bias is not None
        head.weight[self.first_new :] *= self.alpha
        head.bias[self.first_new :] = head.bias[self.first_new :] * self.alpha + self.beta


def _corrected(upgrade: Upgrade, temperature: float) -> Objective:
    if upgrade.teacher is None or not upgrade.old_outputs:
        return Objective(plain_terms)
    head = upgrade.encoder.classifier
    old_outputs = upgrade.old_outputs
    if not isinstance(head, LinearClassifier) or head.bias is None:
        raise ModelError(
            f"bic corrects a linear classifier with a bias; this model has a {head.kind} one. Begin with it from v1"
        )
    old = len(upgrade.old_classes)
    new = len(upgrade.new_classes)
    lam = old / (
        old + max(new, 1)
    )  # an upgrade may have old classes only; with lam = 1 labels would have no weight

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        answers = knowledge_distillation(
            step.new.logits[:, :old_outputs], step.old.logits, temperature
        )
        return {"ce": (1 - lam) * step.new.cross_entropy(step.targets), "kd": lam * answers}

    held_out = upgrade.held_out
    if (
        held_out is None or head.outputs == old_outputs
    ):  # nothing to fit the correction to, or to correct
        return Objective(terms)

    correction = BiasCorrection(old_outputs).to(upgrade.encoder.device)

    def finish() -> None:
        features = torch.from_numpy(upgrade.encoder.encode(held_out.images, form="raw")).to(
            upgrade.encoder.device
        )
        targets = upgrade.encoder.targets(held_out.classes)[torch.from_numpy(held_out.labels)]
        correction.fit(head(features).detach(), targets)
        correction.fold_into(head)

    return Objective(terms, correction, finish=finish)


def lucir(
    base: float = 5.0,
    ratio: Ratio = "old/new",
    ranking: float = 1.0,
    k: int = 2,
    margin: float = 0.5,
    scale: float = 30.0,
) -> Method:
    """LUCIR (Hou et al. 2019): CE + lam (1 - cos(new, old)) on all images + margin ranking on those of old classes.

    lam = base sqrt(old classes / new classes), as in the published code, which CL2R ran; eq. 7 of the paper prints
    the ratio upside down: ``ratio="new/old"``. The ranking is averaged over the k prototypes, as in that code (eq. 8
    sums). The scale of the cosines is fixed, not learnt; new prototypes are not imprinted; no balanced fine-tuning.
    """
    options = {
        "base": base,
        "ratio": ratio,
        "ranking": ranking,
        "k": k,
        "margin": margin,
        "scale": scale,
    }
    require(
        "lucir",
        options,
        base=at_least(0),
        ranking=at_least(0),
        margin=at_least(0),
        k=whole(1),
        ratio=one_of(get_args(Ratio)),
    )
    return Method(
        "lucir",
        "fine-tune a cosine classifier, features held at the old ones, old prototypes apart from new ones",
        "Hou et al. 2019, eqs. 6 to 9; CL2R, section 7.3 (LUCIR)",
        begin=lambda upgrade: _rebalanced(
            upgrade=upgrade, base=base, ratio=ratio, ranking=ranking, k=k, margin=margin
        ),
        classifier="cosine",
        classifier_options={"scale": scale, "margin": 0.0},
        needs=frozenset({"old model", "replay"}),
        options=options,
    )


def _rebalanced(
    upgrade: Upgrade, base: float, ratio: str, ranking: float, k: int, margin: float
) -> Objective:
    if upgrade.teacher is None or not upgrade.old_outputs:
        return Objective(plain_terms)
    head = upgrade.encoder.classifier
    old_outputs = upgrade.old_outputs
    if not isinstance(head, CosineClassifier):
        raise ModelError(
            f"lucir trains a cosine classifier; this model has a {head.kind} one. Begin with lucir from v1"
        )
    old = len(upgrade.old_classes)
    new = max(len(upgrade.new_classes), 1)
    if ratio == "old/new":
        imbalance = old / new
    else:
        imbalance = new / old
    scale = head.scale
    lam = base * math.sqrt(imbalance if upgrade.new_classes else 1.0)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        order = margin_ranking(
            step.new.logits / scale,
            targets=step.targets,
            old_classes=old_outputs,
            k=k,
            margin=margin,
        )
        return {
            "ce": step.new.cross_entropy(step.targets),
            "less_forget": lam * feature_distillation(step.new.z, step.old.z),
            "ranking": ranking * order,
        }

    return Objective(terms)


def podnet(
    spatial: float = 3.0, flat: float = 1.0, proxies: int = 10, margin: float = 0.0
) -> Method:
    """PODNet (Douillard et al. 2020): NCA loss + spatial * POD of the maps + flat * (1 - cos) of the features.

    Both weights are multiplied by sqrt(all classes / new classes), as published for CIFAR-100. The maps are those after
    each stage, ReLU included. The classifier's balanced fine-tuning is left out: features do not depend on it. The
    margin of eq. 9, 0.6, is 0 by default: with it nothing bounds the learnt scale of the logits. In the public code it
    cancels; that code has no hinge either.
    """
    options = {"spatial": spatial, "flat": flat, "proxies": proxies, "margin": margin}
    require("podnet", options, spatial=at_least(0), flat=at_least(0), proxies=whole(1))
    return Method(
        "podnet",
        "fine-tune with several proxies per class, pooled feature maps held at the old ones",
        "Douillard et al. 2020, eqs. 4 to 9; CL2R, section 7.3 (PODNet)",
        begin=lambda upgrade: _pooled_maps(upgrade, spatial, flat),
        classifier="proxy",
        classifier_options={"proxies": proxies, "margin": margin},
        needs=frozenset({"old model", "replay"}),
        options=options,
        maps=True,
    )


def _pooled_maps(upgrade: Upgrade, spatial: float, flat: float) -> Objective:
    total = len(upgrade.old_classes) + len(upgrade.new_classes)
    factor = math.sqrt(total / max(1, len(upgrade.new_classes)))

    def terms(step: Step) -> Terms:
        nca = neighbourhood_components(step.new.logits, step.targets)
        if step.old is None:
            return {"nca": nca}
        return {
            "nca": nca,
            "pod": spatial * factor * pooled_outputs(step.new.maps, step.old.maps),
            "flat": flat * factor * feature_distillation(step.new.h, step.old.h),
        }

    return Objective(terms)


def foster(
    boost_beta: float = 0.96,
    compress_beta: float = 0.97,
    temperature: float = 2.0,
    epochs: float = 0.75,
) -> Method:
    """FOSTER (Wang et al. 2022): feature boosting, then feature compression by balanced distillation.

    Boosting: the old network is frozen; a new one, and a classifier on both, learn CE with logits scaled by class
    frequency, CE of the new network alone, and the old model's answers. Compression: one network, from the old weights,
    follows the pair, rare classes counting more (eq. 14), for ``epochs`` relative to boosting. The betas set how much
    class frequency (that of the batches) counts.
    """
    options = {
        "boost_beta": boost_beta,
        "compress_beta": compress_beta,
        "temperature": temperature,
        "epochs": epochs,
    }
    beta = Rule("in [0, 1)", lambda value: 0 <= value < 1)
    require(
        "foster",
        options,
        boost_beta=beta,
        compress_beta=beta,
        temperature=above(0),
        epochs=above(0),
    )
    return Method(
        "foster",
        "a second network learns what the old one lacks; both are then compressed into one",
        "Wang et al. 2022, eqs. 8 to 14; CL2R, section 7.3 (FOSTER)",
        begin=lambda upgrade: _boosted(
            upgrade,
            boost_beta=boost_beta,
            compress_beta=compress_beta,
            temperature=temperature,
            epochs=epochs,
        ),
        classifier="linear",
        needs=frozenset({"old model", "replay"}),
        options=options,
        extra_passes=5 * epochs,
    )


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """(1 - beta) / (1 - beta^n) of each class of n images, brought to mean 1: larger for rarer classes. [C] to [C]."""
    weights = (1 - beta) / (1 - beta ** counts.clamp(min=1).double())
    return (weights / weights.mean()).float()


class _Pair(nn.Module):
    """The old and the new network under one classifier. ``boosted`` is a frozen copy of the new one, once learnt."""

    def __init__(self, encoder: Encoder, old_weight: Tensor, seed: int) -> None:
        super().__init__()
        outputs = encoder.classifier.outputs
        old_outputs, old_width = old_weight.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # the same start whenever a run is repeated or resumed
            self.head = nn.Linear(old_width + encoder.feature_dim, outputs, bias=False)
        with torch.no_grad():
            self.head.weight[:old_outputs, :old_width] = old_weight
        self.boosted = copy.deepcopy(encoder).eval().requires_grad_(False)

    def forward(self, old: Tensor, new: Tensor) -> Tensor:
        """Features [B, d'] and [B, d] to logits [B, C]."""
        logits: Tensor = self.head(torch.cat([old, new], dim=1))
        return logits


def _boosted(
    upgrade: Upgrade, boost_beta: float, compress_beta: float, temperature: float, epochs: float
) -> Objective:
    if upgrade.teacher is None or not upgrade.old_outputs:
        return Objective(plain_terms)
    encoder = upgrade.encoder
    old_head = upgrade.teacher.classifier
    if encoder.classifier.kind != "linear" or old_head.kind != "linear":
        raise ModelError(
            f"foster joins linear classifiers; this model has a {old_head.kind} one. Begin with it from v1"
        )
    pair = _Pair(encoder, old_head.get_parameter("weight"), upgrade.seed).to(encoder.device)
    start = {name: value.clone() for name, value in encoder.state_dict().items()}
    counts = _shown_per_class(upgrade).to(encoder.device)
    frequency = effective_weights(counts, boost_beta)
    rarity = effective_weights(counts, compress_beta)

    def boosting(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        logits = pair(step.old.z, step.new.z)
        return {
            "ce": cross_entropy(logits / frequency, step.targets),
            "enhance": step.new.cross_entropy(step.targets),
            "kd": knowledge_distillation(
                logits[:, : old_head.outputs], step.old.logits, temperature
            ),
        }

    def compression(step: Step) -> Terms:
        assert step.old is not None
        assert step.pixels is not None
        with torch.no_grad():
            answers = pair(step.old.z, pair.boosted(step.pixels).z)
        return {
            "compress": balanced_distillation(
                step.new.logits, old=answers, weights=rarity, temperature=temperature
            )
        }

    def begin() -> None:
        pair.boosted.load_state_dict(encoder.state_dict())
        encoder.load_state_dict(start)

    stage = Stage(compression, "compression", epochs, trains=encoder, begin=begin)
    return Objective(boosting, pair, (stage,))


def _shown_per_class(upgrade: Upgrade) -> Tensor:
    """[C]: the images of each class that an epoch shows; new and remembered ones take half of every batch each."""
    parts = [part for part in (upgrade.images, upgrade.memory) if part is not None and len(part)]
    total = sum(len(part) for part in parts)
    counts = torch.zeros(upgrade.encoder.classifier.outputs)
    for part in parts:
        for name, count in part.counts().items():
            counts[upgrade.encoder.slots.of([name])[0]] += count * total / (len(parts) * len(part))
    return counts


def feature_adaptation(
    lam: float = 1.0,
    classify: float = 1.0,
    hidden: int = 16,
    epochs: float = 1.0,
    learning_rate: float = 1.0,
) -> Method:
    """FAN (Iscen et al. 2020, as CL2R adapts it): CE + lam FD; then an adapter from old to new features.

    The adapter learns (1 - cos(adapted old, new)) + classify CE(classifier(adapted old)) with the network held. Its
    hidden layer is ``hidden`` times as wide as the feature. It is saved with the version. Galleries of older versions
    pass through the adapters of all later versions, so each stored vector changes at every upgrade.
    """
    options = {
        "lam": lam,
        "classify": classify,
        "hidden": hidden,
        "epochs": epochs,
        "learning_rate": learning_rate,
    }
    require(
        "fan",
        options,
        lam=at_least(0),
        classify=at_least(0),
        hidden=whole(1),
        epochs=above(0),
        learning_rate=above(0),
    )
    return Method(
        "fan",
        "fine-tune, then learn a network that carries stored vectors into the new space",
        "Iscen et al. 2020, feature adaptation; CL2R, section 7.3 (FAN)",
        begin=lambda upgrade: _adapted(
            upgrade=upgrade,
            lam=lam,
            classify=classify,
            hidden=hidden,
            epochs=epochs,
            learning_rate=learning_rate,
        ),
        classifier="linear",
        needs=frozenset({"old model", "replay"}),
        options=options,
        extra_passes=2 * epochs,
    )


def _adapted(
    upgrade: Upgrade, lam: float, classify: float, hidden: int, epochs: float, learning_rate: float
) -> Objective:
    encoder = upgrade.encoder
    if upgrade.teacher is None:
        return Objective(plain_terms)
    if encoder.classifier.fixed or encoder.feature_dim != upgrade.teacher.feature_dim:
        raise ModelError(
            "fan adapts features before a trainable classifier, of one width in both versions; this model has a fixed "
            "one or another width. Begin with fan from v1"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(upgrade.seed)  # the same start whenever a run is repeated or resumed
        adapter = Adapter(encoder.feature_dim, hidden * encoder.feature_dim).to(encoder.device)

    def terms(step: Step) -> Terms:
        assert step.old is not None  # the teacher is there
        held = feature_distillation(step.new.z, step.old.z)
        return {"ce": step.new.cross_entropy(step.targets), "fd": lam * held}

    def adaptation(step: Step) -> Terms:
        assert step.old is not None
        adapted = adapter(functional.normalize(step.old.z))
        answers = encoder.classifier(adapted)
        return {
            "adapt": feature_distillation(adapted, step.new.z.detach()),
            "classify": classify * cross_entropy(answers, step.targets),
        }

    stage = Stage(
        terms=adaptation,
        name="adaptation",
        epochs=epochs,
        learning_rate=learning_rate,
        trains=adapter,
    )

    def finish() -> None:
        encoder.adapter = adapter

    return Objective(terms=terms, module=adapter, then=(stage,), finish=finish)
