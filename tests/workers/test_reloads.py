from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.config.settings import Config
from gateway.core.clock import SystemClock
from gateway.errors import ConfigError
from gateway.workers.asking import Answer, Asking, NoAnswer
from gateway.workers.crew import Crew
from gateway.workers.post import CONFIG
from gateway.workers.reloads import APPLY, DISCARD, PREPARE, Reloads, Texts


class Team:
    """Two workers that agree to everything. ``asked``: for what, in order. ``mute``: to what they do not answer."""

    def __init__(self) -> None:
        self.alive = [self, self]
        self.number = 0
        self.patience = 0.0
        self.is_leaving = False
        self.asked: list[str] = []
        self.mute: str = ""

    async def ask_all(self, workers: list[Any], method: str, path: str, *, seconds: float) -> dict[Any, Answer]:
        self.asked.append(path)
        if path == self.mute:
            raise NoAnswer("nobody")
        return {worker: Answer(200, b'{"changes": ["x"]}', "application/json") for worker in workers}

    def kill(self) -> None:
        self.asked.append("kill")


@pytest.fixture
def team() -> Team:
    return Team()


@pytest.fixture
def reloads(tmp_path, team) -> Reloads:
    (tmp_path / "file.yaml").write_text("models: []")
    texts = Texts(tmp_path / "file.yaml", tmp_path)
    texts.begin("")
    both = cast(Crew, team), cast(Asking, team)
    return Reloads(*both, texts, lambda text: cast(Config, text), lambda config: None, SystemClock())


async def test_all_prepare_and_then_all_apply(reloads, team) -> None:
    assert await reloads.reload() == {"changes": ["x"]}
    assert team.asked == [PREPARE, APPLY]


@pytest.mark.parametrize("leaving", [False, True])
async def test_who_does_not_apply_starts_anew_but_one_that_leaves_may_end_in_order(reloads, team, leaving) -> None:
    team.mute, team.is_leaving = APPLY, leaving
    await reloads.reload()
    assert team.asked == [PREPARE, APPLY] + ["kill"] * (0 if leaving else 2)


async def test_where_the_text_cannot_be_kept_all_that_is_prepared_is_taken_back_at_once(
    reloads, team, tmp_path, caplog
) -> None:
    (tmp_path / CONFIG).unlink()
    (tmp_path / CONFIG).mkdir()  # as a full disk: it cannot be replaced
    with pytest.raises(ConfigError, match="the workers' configuration cannot be changed: Is a directory"):
        await reloads.reload()
    assert team.asked == [PREPARE, DISCARD]
    assert "nothing was changed" in caplog.text
