"""Dockerfile and compose.yaml as files: what they name exists, and both agree. No image is built here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="the docs extra is not installed")
ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "container"
DOCKERFILE = (EXAMPLE / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = set(re.findall(r"(?m)^!(\S+)$", (EXAMPLE / "Dockerfile.dockerignore").read_text()))
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILE)
    names = [name for line in copied for name in line.split()]
    assert set(names) == sent
    assert all((ROOT / name).exists() for name in names)


def test_what_is_installed_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (installed,) = re.findall(r'pip install -c constraints.txt "\.\[([\w,-]+)\]"', DOCKERFILE)
    assert set(installed.split(",")) <= set(extras)
    assert "torch==" in (ROOT / "constraints.txt").read_text()


def test_torch_comes_from_another_index_only_on_request() -> None:
    stage = DOCKERFILE[
        DOCKERFILE.index("FROM ") : DOCKERFILE.index("FROM ", DOCKERFILE.index("FROM ") + 1)
    ]
    assert stage.index("ARG TORCH_INDEX=\n") < stage.index(
        '${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch'
    )


def test_no_root_and_a_health_check_on_the_published_port() -> None:
    (port,) = re.findall(r"(?m)^EXPOSE (\d+)$", DOCKERFILE)
    last = DOCKERFILE[DOCKERFILE.rindex("FROM ") :]
    assert re.search(r"(?m)^USER [1-9]\d*:[1-9]\d*$", last)
    assert f"127.0.0.1:{port}/healthz" in last
    assert SERVICES["service"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_services_name_what_there_is() -> None:
    named = {
        mount.partition(":")[0] for service in SERVICES.values() for mount in service["volumes"]
    }
    assert named == set(COMPOSE["volumes"])
    for service in SERVICES.values():
        assert "image" in service
        if "build" in service:
            context = (EXAMPLE / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[needed]


def test_no_password_is_written_down_and_the_root_is_read_only() -> None:
    for service in SERVICES.values():
        assert service["read_only"]
        passwords = [
            value for name, value in service["environment"].items() if name.endswith("PASSWORD")
        ]
        assert passwords
        assert all(value.startswith("${POSTGRES_PASSWORD:?") for value in passwords)
