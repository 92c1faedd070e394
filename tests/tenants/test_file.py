from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.errors import ConfigError
from gateway.tenants.file import FileSource
from gateway.tenants.settings import TenantSettings, TenantsFileSettings


class Watched:
    """A file of names, one in a line; a line with ``!`` cannot be read."""

    def __init__(self, path) -> None:
        self.path = path
        self.changes = 0
        self.write("a")
        self.source = FileSource(str(path), self._read)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    async def look(self) -> list[str]:
        await self.source.look(self._changed)
        return [one.name for one in self.source.content.tenants]

    def _changed(self) -> None:
        self.changes += 1

    def _read(self) -> TenantsFileSettings:
        try:
            text = self.path.read_text()
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read") from error
        if "!" in text:
            raise ConfigError(f"{self.path}:1: half written")
        return TenantsFileSettings(tuple(TenantSettings(name) for name in text.split()))


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path / "tenants.yaml")


async def test_a_file_is_read_again_when_it_has_changed(watched):
    assert await watched.look() == ["a"]
    assert watched.changes == 0
    watched.write("a bc")
    assert await watched.look() == ["a", "bc"]
    assert await watched.look() == ["a", "bc"]
    assert watched.changes == 1


async def test_a_file_that_cannot_be_used_changes_nothing_and_is_reported_once(watched, caplog):
    watched.write("a b !")
    assert await watched.look() == ["a"]
    assert "half written" not in caplog.text, "its writer may be about to finish it"
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert await watched.look() == ["a"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{watched.path}:1: half written; until it is corrected, the tenants and keys of before stay in force"
    ]
    assert watched.source.problem
    watched.write("a b")
    assert await watched.look() == ["a", "b"]
    assert not watched.source.problem
    assert watched.changes == 1


async def test_a_file_that_is_gone_changes_nothing(watched):
    watched.path.unlink()
    assert await watched.look() == ["a"]
    await watched.look()
    assert "cannot be read" in watched.source.problem
    watched.write("b")
    assert await watched.look() == ["b"]


async def test_two_looks_at_once_read_it_once(watched):
    watched.write("b c")
    await asyncio.gather(watched.look(), watched.look())
    assert watched.changes == 1


def test_a_file_that_cannot_be_read_at_first_is_an_error(tmp_path):
    def read():
        raise ConfigError("no file")

    with pytest.raises(ConfigError):
        FileSource(str(tmp_path / "none"), read)
