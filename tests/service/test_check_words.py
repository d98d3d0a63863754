"""What the gate says over HTTP: the reasons, and requests in the place of commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from service_clients import client, ended
from shops import pictures, shop

from fixstar.service.problems import as_requests
from fixstar.workspace import catalogue, gate
from fixstar.workspace.checks import CheckedCell, last_check, save_check
from fixstar.workspace.gate import WayOut

CELL = CheckedCell("v1", 0.5, 0.52, -0.02, 0.06, "not decided", 30, 13, 17)
MORE = "fixstar check v2 --data LABELLED_IMAGES"
SAID = {  # what the gate says to do next
    "needed": gate.needed_sentence(CELL, 200, 800, MORE),
    "tolerance": gate.tolerance_sentence("fixstar check v2", CELL, 200, WayOut(0.03, None)),
    "both": gate.tolerance_sentence("fixstar check v2", CELL, 200, WayOut(0.01, 900), " --data LABELLED_IMAGES"),
    "foreign": gate.foreign_sentence("v2", "old-system"),
    "no images": gate.without_images("v2", ["v1"], 0),
    **{f"note {i}": note for i, note in enumerate(gate.image_notes("v2", True, ["v1"]))},
    "no curve": f"Hits among vectors of several versions are merged by cosine. More images help: {MORE}",
}


@pytest.mark.parametrize("said", SAID)
def test_what_the_gate_says_to_do_is_told_without_commands(said: str) -> None:
    for text in (SAID[said], f"{SAID[said]}. Train it better"):  # as a check has it, and as a refusal quotes it
        told = as_requests(text)
        assert "fixstar" in text
        assert "fixstar" not in told
        assert "the operator can" in told or "The operator can" in told or "POST /v1/versions/v2/check" in told
        assert text.endswith(". Train it better") == told.endswith(". Train it better")


def test_what_is_told_of_foreign_vectors_reads_well() -> None:
    assert as_requests(SAID["foreign"]).endswith(
        "was trained to agree with them. The operator can fit an adapter, which is checked on labelled items, "
        "or compare features; vectors that v2's model made elsewhere can be imported as old-system@v2, by the operator "
        "too"
    )


def test_checks_are_told_in_words_for_http_and_kept_as_they_are(tmp_path: Path) -> None:
    """The version's card, its check and the job that made it; the file beside the version is the command line's."""
    space = shop(tmp_path / "shop")
    space.index(catalogue(pictures(tmp_path / "photos")))
    with client(space) as http:
        job = ended(http, http.post("/v1/versions/v2/check").json())
        kept = last_check(space.path, "v2")
        assert kept is not None
        assert "fixstar check v2 --data" in kept.reasons[0]  # nothing was held out
        check = http.get("/v1/versions/v2/check").json()
        assert check["reasons"] == job["result"]["reasons"] == list(map(as_requests, kept.reasons))
        assert "fixstar" not in check["reasons"][0]
        assert [one["result"]["reasons"] for one in http.get("/v1/jobs").json()] == [check["reasons"]]
        save_check(space.path, replace(kept, notes=("or: fixstar check v2 --tolerance 0.01",)))
        card = http.get("/v1/versions/v2").json()["last_check"]
        assert card["notes"] == ['or: POST /v1/versions/v2/check {"tolerance": 0.01}']
        assert card["reasons"] == check["reasons"]
