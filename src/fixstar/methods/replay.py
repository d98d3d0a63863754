"""Experience replay: plain fine-tuning on new and remembered images."""

from __future__ import annotations

from fixstar.losses import cross_entropy
from fixstar.methods.method import Method, Step, Terms

__all__ = ["experience_replay"]


def experience_replay() -> Method:
    """ER: cross-entropy with a trainable head. The baseline that does nothing for compatibility."""

    def terms(step: Step) -> Terms:
        return {"ce": cross_entropy(step.new.logits, step.targets)}

    return Method(
        "er",
        "fine-tune on new and replayed images",
        "HOC, section 5 (ER)",
        terms,
        classifier="linear",
        needs=frozenset({"replay"}),
    )
