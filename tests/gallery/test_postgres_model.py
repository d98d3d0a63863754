"""Random operations on a workspace whose gallery is on a PostgreSQL server; see ``workspace_model``."""

from __future__ import annotations

import pytest
from postgres_server import fresh_url
from workspace_model import run_model


@pytest.mark.long
def test_a_workspace_on_a_server_does_what_the_reference_says() -> None:
    counts = run_model(0, 200, fresh_url, "--postgres ")
    assert counts.total() == 200
    assert counts["killed"] > 2
