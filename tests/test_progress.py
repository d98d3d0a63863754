from __future__ import annotations

import pytest

from fixstar.progress import progress_bar


def test_in_a_pipe_there_is_a_line_now_and_then_and_one_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("fixstar.progress.time.monotonic", lambda: clock[-1])
    with progress_bar("embedding", 3000, "items") as advance:
        for now in (1.0, 5.0, 11.0, 12.0, 20.0, 30.0):
            clock.append(now)
            advance(500, note="v2")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "embedding: 1,500 of 3,000 items, 136 items/s, 0:00:11 left  v2",
        "embedding: 3,000 of 3,000 items, 100 items/s  v2",
    ]


def test_what_an_earlier_run_did_is_counted_but_no_sign_of_speed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("fixstar.progress.time.monotonic", lambda: clock[-1])
    with progress_bar("training v2", 1000, "images", done=700) as advance:
        clock.append(10.0)
        advance(100)
    assert "training v2: 800 of 1,000 images, 10 images/s, 0:00:20 left" in capsys.readouterr().err


def test_an_error_leaves_behind_how_far_it_got(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> None:
        with progress_bar("embedding", 10, "items") as advance:
            advance(4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert "embedding: 4 of 10 items" in capsys.readouterr().err


def test_nothing_is_shown_where_nobody_asks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("embedding", 10, "items", show=False) as advance:
        advance(4)
    assert capsys.readouterr().err == ""
