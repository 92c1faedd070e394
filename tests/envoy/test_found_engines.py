"""Engines that are found at run time: Envoy goes where the picker says, and knows of none itself."""

from __future__ import annotations

import json
from pathlib import Path

from gateway.commands.envoy.wanted import Mode
from tests.envoy.lab import Lab, lab
from tests.support.chat import chat
from tests.support.wait import until


async def test_engines_come_and_go_behind_envoy(folder: Path) -> None:
    async with lab(folder, picker=False) as made:
        found(made, *made.addresses[:1])
        made.settings["models"] = [{"name": "sim", "discover": [{"file": "engines.json"}]}]
        made.settings["retries"] = {"attempts": 1}
        made.write()
        made.engines, others = made.engines[:1], made.engines[1:]  # whom the start waits for
        await made.start_picker()
        made.engines += others
        for mode in (Mode.ENDS, Mode.FULL):
            front = await made.envoy(mode)
            before = made.served()
            steered = {"x-gateway-destination-endpoint": made.addresses[1]}
            answer = await front.post(chat(), **steered)
            assert answer.status_code == 200, answer.text
            assert [now - then for now, then in zip(made.served(), before, strict=True)] == [1, 0]
        found(made, made.addresses[1])

        async def moved() -> bool:
            before = made.served()
            answer = await front.post(chat(stream=True))
            assert answer.status_code == 200, answer.text
            assert "[DONE]" in answer.text
            return made.served()[1] > before[1]

        await until(moved, "the second engine is asked")
        found(made)

        async def gone() -> bool:
            return (await front.post(chat())).status_code == 503

        await until(gone, "there is none")
        await made.nothing_is_booked()


def found(made: Lab, *addresses: str) -> None:
    beside = made.folder / "engines.new"
    beside.write_text(json.dumps([{"targets": addresses}]))
    beside.rename(made.folder / "engines.json")
