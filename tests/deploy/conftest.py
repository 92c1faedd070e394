from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def check_compose(folder: Path, compose: dict[str, Any]) -> None:
    """Its services may write nothing, are reached from this machine only, and all that they name is there."""
    services = compose["services"]
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert all(other in services for other in service.get("depends_on", {}))
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (folder / source).exists() if source.startswith(".") else source in compose["volumes"]
    assert all(port.startswith("127.0.0.1:") for one in services.values() for port in one.get("ports", []))


@dataclass
class Stage:
    """One build stage of a Dockerfile: its instructions in order, the base left out."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        return [value for name, value in self.instructions if name == word]

    def last(self, word: str) -> str:
        return self.all(word)[-1]

    def words(self, word: str) -> list[str]:
        """An exec form (a JSON list): what is run is not given to a shell, which would not pass signals on."""
        command = json.loads(self.last(word))
        assert isinstance(command, list)
        return command


def parse_dockerfile(text: str) -> list[Stage]:
    """Enough of the format for our own file: comments, continued lines, stages."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, value = line.strip().partition(" ")
        if not word:
            continue
        if word == "FROM":
            base, _, name = value.partition(" AS ")
            stages.append(Stage(base, name.strip()))
        elif stages:
            stages[-1].instructions.append((word, re.sub(r"\s+", " ", value.strip())))
    return stages


@pytest.fixture(scope="session")
def stages() -> list[Stage]:
    return parse_dockerfile((ROOT / "deploy/Dockerfile").read_text())
