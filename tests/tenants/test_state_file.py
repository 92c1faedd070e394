from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime

import msgspec
import pytest

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.errors import ConfigError
from gateway.tenants.gate import Gate
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import BudgetSettings
from gateway.tenants.settings import TenantSettings
from gateway.tenants.state_file import StateFile
from tests.support.wait import eventually


@pytest.fixture
def make(clock, tmp_path):
    def make(now: ManualClock = clock, interval: float = 5.0) -> tuple[Gate, StateFile]:
        gate = Gate(dict, now, NULL_OBSERVER)
        return gate, StateFile(str(tmp_path / "used.json"), gate, interval=interval)

    return make


def caller(name: str = "red") -> Caller:
    return Caller.of(TenantSettings(name, budget=BudgetSettings(1000, per="total")))


async def test_what_was_used_is_there_after_a_restart(make):
    gate, state = make()
    state.load()
    gate.admit(caller(), "m", 0).settle(10, 4, 5)
    gate.admit(caller("blue"), "m", 0).settle(7, 0, 0)
    await state.save()
    gate.admit(caller(), "m", 0).settle(100, 0, 0)
    await state.save()
    gate, state = make()
    state.load()
    assert gate.budget(caller()).spent == 115
    assert gate.budget(caller("blue")).spent == 7
    assert gate.account("tenant:red").used("day").cached == 4


async def test_it_is_written_now_and_then_and_at_the_end(make, tmp_path):
    gate, state = make(interval=0.01)
    state.load()
    state.start()
    gate.admit(caller(), "m", 0).settle(10, 0, 0)
    await eventually(lambda: b"red" in (tmp_path / "used.json").read_bytes(), "it is written")
    gate.admit(caller("blue"), "m", 0).settle(10, 0, 0)
    await state.close()
    assert b"blue" in (tmp_path / "used.json").read_bytes()
    assert os.listdir(tmp_path) == ["used.json"]


async def test_a_file_is_not_written_where_nothing_has_changed(make, tmp_path):
    state = make()[1]
    state.load()
    written = (tmp_path / "used.json").stat()
    await state.save()
    assert (tmp_path / "used.json").stat().st_ino == written.st_ino


async def test_two_that_save_at_once_lose_nothing(make):
    gate, state = make()
    state.load()
    for number in range(20):
        gate.admit(caller(f"t{number}"), "m", 0).settle(1, 0, 0)
        first = asyncio.ensure_future(state.save())
        await asyncio.sleep(0)
        gate.admit(caller(f"t{number}"), "m", 0).settle(1, 0, 0)
        await asyncio.gather(first, state.save())
    gate, state = make()
    state.load()
    assert [gate.budget(caller(f"t{number}")).spent for number in range(20)] == [2.0] * 20


async def test_a_write_that_fails_is_logged_and_tried_again(make, tmp_path, caplog, monkeypatch):
    gate, state = make()
    state.load()
    gate.admit(caller(), "m", 0).settle(10, 0, 0)
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        await state.save()
        await state.save()
    assert caplog.text.count("No space left") == 1
    assert os.listdir(tmp_path) == ["used.json"]
    await state.save()
    gate, state = make()
    state.load()
    assert gate.budget(caller()).spent == 10


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"version": 1, "accounts": {"tenant:red": {"day"', "move it away to begin at zero"),
        (b'{"version": 1, "accounts": {"tenant:red": {"day": 5}}}', "move it away to begin at zero"),
        (b'{"version": 2, "accounts": {}}', "has the form 2"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused(make, tmp_path, content, says):
    (tmp_path / "used.json").write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        make()[1].load()
    assert "used.json" in caught.value.message


def test_a_folder_that_is_not_there_is_found_at_the_start(clock, tmp_path):
    gate = Gate(dict, clock, NULL_OBSERVER)
    with pytest.raises(ConfigError, match="cannot be written"):
        StateFile(str(tmp_path / "no" / "used.json"), gate).load()
    (tmp_path / "used.json").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        StateFile(str(tmp_path / "used.json"), gate).load()


@pytest.mark.parametrize(("year", "kept"), [(2027, True), (2029, False)])
async def test_who_is_not_seen_for_a_year_is_forgotten(make, year, kept):
    gate, state = make()
    state.load()
    gate.admit(caller(), "m", 0).settle(10, 0, 0)
    await state.save()
    gate, state = make(ManualClock(datetime(year, 6, 1, tzinfo=UTC).timestamp()))
    state.load()
    assert gate.budget(caller()).spent == (10 if kept else 0)


async def test_who_was_forgotten_meanwhile_is_not_written_any_more(make, tmp_path):
    gate, state = make()
    state.load()
    for name in ("red", "blue"):
        gate.admit(caller(name), "m", 0).settle(10, 0, 0)
    await state.save()
    gate.state.forget("tenant:red")
    gate.admit(caller("blue"), "m", 0).settle(10, 0, 0)
    await state.save()
    assert list(msgspec.json.decode((tmp_path / "used.json").read_bytes())["accounts"]) == ["tenant:blue"]


async def test_a_process_that_takes_over_goes_on_from_what_the_one_before_has_left(make):
    gate, state = make()
    state.load()
    state.start()
    gate.admit(caller(), "m", 0).settle(10, 0, 0)
    await state.save()
    after, its_state = make()
    its_state.load()
    gate.admit(caller(), "m", 0).settle(5, 0, 0)
    gate.admit(caller("blue"), "m", 0).settle(7, 0, 0)
    await state.pause()
    its_state.load(again=True)
    its_state.start()
    assert after.budget(caller()).spent == 15
    assert after.budget(caller("blue")).spent == 7
    gate.admit(caller(), "m", 0).settle(1000, 0, 0)  # of a request that was under way
    await state.close()
    after.admit(caller(), "m", 0).settle(1, 0, 0)
    await its_state.close()
    last, state = make()
    state.load()
    assert last.budget(caller()).spent == 16


async def test_where_the_other_process_fails_it_goes_on_to_write(make, tmp_path):
    gate, state = make(interval=0.01)
    state.load()
    state.start()
    await state.pause()
    make()[1].load()  # it has read, and written what it read
    state.start()
    gate.admit(caller(), "m", 0).settle(10, 0, 0)
    await eventually(lambda: b"red" in (tmp_path / "used.json").read_bytes(), "it is written")
    await state.close()


async def test_what_was_written_while_another_read_is_not_lost(make, tmp_path):
    gate, state = make()
    state.load()
    before = (tmp_path / "used.json").read_bytes()
    gate.admit(caller(), "m", 0).settle(10, 0, 0)
    await state.save()
    (tmp_path / "used.json").write_bytes(before)  # the other one writes what it has read
    await state.pause()
    assert b"red" in (tmp_path / "used.json").read_bytes()
