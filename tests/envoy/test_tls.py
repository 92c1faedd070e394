"""Certificates on every way: of clients, of the picker, and of engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.envoy.lab import lab
from tests.support.chat import chat
from tests.support.tls import Authority


@pytest.mark.parametrize("own", [True, False], ids=["self-signed", "signed"])
async def test_the_picker_speaks_tls(own, folder: Path, authority: Authority) -> None:
    certificate, key = authority.issue("picker")
    tls = "self-signed" if own else {"certificate": certificate, "key": key}
    async with lab(folder, engines=1, epp={"tls": tls}) as made:
        front = await made.envoy(picker_tls=True, picker_ca=None if own else authority.file)
        answer = await front.post(chat())
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] in [one["request_id"] for one in await made.decisions()]


async def test_a_picker_whom_nobody_knows_is_not_asked(folder: Path, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    certificate, key = authority.issue("picker")
    async with lab(folder, engines=1, epp={"tls": {"certificate": certificate, "key": key}}) as made:
        front = await made.envoy(picker_tls=True, picker_ca=other.file, fail_open=False, expect=False)
        assert (await front.post(chat())).status_code >= 500
        assert await made.decisions() == []


async def test_engines_speak_tls(folder: Path, authority: Authority) -> None:
    """One with a name that is not its address, one that nobody verifies, and one without."""
    named, unverified = authority.serving("engine", "engine.example"), Authority(folder, "unknown").serving("b")
    async with lab(folder, engines=3, tls=[named, unverified, None], picker=False) as made:
        [model] = made.settings["models"]
        model["endpoints"][0]["tls"] = {"ca": authority.file, "server_name": "engine.example"}
        model["endpoints"][1]["tls"] = {"verify": False}
        made.write()
        await made.start_picker()
        front = await made.envoy()
        for number, address in enumerate(made.addresses):
            before = made.served()
            assert (await front.post(chat(group=number), **{"test-subset": address})).status_code == 200
            assert made.served()[number] == before[number] + 1
