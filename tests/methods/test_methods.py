from __future__ import annotations

import pytest
import torch

from fixstar.errors import InputError, UnknownNameError
from fixstar.losses import cross_entropy, info_nce
from fixstar.methods import METHODS, Step, create_method
from fixstar.models import Outputs


def step(old: bool = True, batch: int = 6) -> Step:
    generator = torch.Generator().manual_seed(0)
    outputs = [Outputs(*(torch.randn(batch, n, generator=generator) for n in (8, 5, 6))) for _ in range(2)]
    targets = torch.arange(batch) % 3
    return Step(outputs[0], outputs[1] if old else None, targets, torch.arange(batch) >= batch // 2)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_registered_under_its_own_name_and_cites_its_source(name: str) -> None:
    method = create_method(name)
    assert method.name == name
    assert ".txt" in method.source


def test_hoc_is_the_convex_combination_of_equation_2() -> None:
    s = step()
    assert s.old is not None
    terms = create_method("hoc", lam=0.3, rho=7.0).terms(s)
    torch.testing.assert_close(terms["ce"], 0.3 * cross_entropy(s.new.logits, s.targets))
    torch.testing.assert_close(terms["hoc"], 0.7 * info_nce(s.new.z, s.old.z, s.targets, 7.0))


def test_hoc_without_a_predecessor_is_cross_entropy_at_full_weight() -> None:
    s = step(old=False)
    terms = create_method("hoc", lam=0.1).terms(s)
    assert list(terms) == ["ce"]
    torch.testing.assert_close(terms["ce"], cross_entropy(s.new.logits, s.targets))


@pytest.mark.parametrize("name", ["er", "cores", "itm"])
def test_plain_methods_look_only_at_the_new_logits(name: str) -> None:
    s = step()
    torch.testing.assert_close(create_method(name).terms(s)["ce"], cross_entropy(s.new.logits, s.targets))


def test_mistakes_are_told_with_what_is_allowed() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hoc'"):
        create_method("hco")
    with pytest.raises(InputError, match="it has: lam, rho, same_class"):
        create_method("hoc", lambda_=0.1)
    with pytest.raises(InputError, match="0 <= lam <= 1"):
        create_method("hoc", lam=2)
