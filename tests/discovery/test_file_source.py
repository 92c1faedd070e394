"""Files that are written while they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.discovery.file_source import FileSource
from gateway.discovery.settings import DiscoverSettings
from tests.discovery.telling import followed
from tests.support.wait import eventually


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.discovery.file_source.LOOK", 0.01)


def source(pattern: Path) -> FileSource:
    return FileSource(DiscoverSettings(file=str(pattern)), {})


async def test_files_of_a_pattern_come_change_and_go(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- url: http://a:1\n")
    async with followed(source(tmp_path / "*.yaml")) as told:
        await eventually(lambda: told.urls == ["http://a:1"])
        (tmp_path / "b.yaml").write_text("- url: http://b:1\n")
        await eventually(lambda: told.urls == ["http://a:1", "http://b:1"])
        (tmp_path / "a.yaml").write_text("- url: http://a:22\n")
        await eventually(lambda: told.urls == ["http://a:22", "http://b:1"])
        (tmp_path / "a.yaml").unlink()
        await eventually(lambda: told.urls == ["http://b:1"])
        assert told.lost == []
        (tmp_path / "b.yaml").rename(tmp_path / "b.away")
        await eventually(lambda: told.lost)
        assert told.lost[-1] == f"no file matches {tmp_path / '*.yaml'}"
        count = len(told.lists)
        (tmp_path / "b.away").rename(tmp_path / "b.yaml")  # the very same file, as when a folder is mounted again
        await eventually(lambda: len(told.lists) > count)
        assert told.urls == ["http://b:1"]


async def test_a_broken_file_keeps_its_last_list_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- url: http://a:1\n")
    (tmp_path / "b.yaml").write_text("- url: http://b:1\n")
    async with followed(source(tmp_path / "*.yaml")) as told:
        await eventually(lambda: told.urls == ["http://a:1", "http://b:1"])
        (tmp_path / "a.yaml").write_text("- url: http://a:1\n- [")
        await eventually(lambda: told.lost)
        assert told.lost[-1].startswith(f"{tmp_path / 'a.yaml'}:2: not YAML")
        (tmp_path / "b.yaml").write_text("- url: http://b:22\n")
        await eventually(lambda: told.urls == ["http://a:1", "http://b:22"])
        (tmp_path / "a.yaml").write_text("[]")
        await eventually(lambda: told.urls == ["http://b:22"])


async def test_from_one_broken_text_to_another_it_stays_broken(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- url: http://a:1\n")
    async with followed(source(tmp_path / "*.yaml")) as told:
        await eventually(lambda: told.lists)
        for lines in range(1, 4):
            (tmp_path / "a.yaml").write_text("\n" * lines + "- [")
            await eventually(lambda lines=lines: told.lost and f":{lines + 1}: not YAML" in told.lost[-1])
        assert len(told.lists) == 1


async def test_a_file_that_was_never_usable_is_not_an_empty_list(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    async with followed(source(path)) as told:
        await eventually(lambda: told.lost)
        assert "cannot be read" in told.lost[-1]
        path.write_text("- url: [")
        await eventually(lambda: "not YAML" in told.lost[-1])
        assert told.lists == []
        path.write_text("[]")
        await eventually(lambda: told.urls == [])


async def test_a_file_whose_name_looks_like_a_pattern_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a[1].json"
    path.write_text('[{"targets": ["a:1"]}]')
    async with followed(source(path)) as told:
        await eventually(lambda: told.urls == ["http://a:1"])
