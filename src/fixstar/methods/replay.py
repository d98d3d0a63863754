"""Experience replay: plain fine-tuning on new and remembered images."""

from __future__ import annotations

from fixstar.methods.method import Method, Step, Terms


def experience_replay() -> Method:
    """ER: cross-entropy with a trainable head. The baseline that does nothing for compatibility."""

    def terms(step: Step) -> Terms:
        return {"ce": step.new.cross_entropy(step.targets)}

    return Method(
        "er",
        "fine-tune on new and replayed images",
        "HOC, section 5 (ER)",
        terms,
        classifier="linear",
        needs=frozenset({"replay"}),
    )
