"""What long prompts that come together do to the loop: which steps are done on it, and how many in one of its turns."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from gateway.core.prompt import ChatInput
from gateway.tokens.render_cost import ALONE, LOOP_NEW
from gateway.tokens.segments import LONG, Cuts
from tests.tokens.conftest import Load
from tests.tokens.test_tokenizer import USER, chat, turns


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Characters that are searched for a cut from now on, each time with whether that was done on the loop's thread."""
    found: list[tuple[int, bool]] = []
    end = Cuts.end

    def watching(cuts: Cuts, text: str, start: int, *how: int) -> int:
        place = end(cuts, text, start, *how)
        found.append((place - start, threading.current_thread() is threading.main_thread()))
        return place

    monkeypatch.setattr(Cuts, "end", watching)
    return found


async def test_what_is_new_in_a_long_text_is_not_looked_at_on_the_loop(
    load: Load, searches: list[tuple[int, bool]]
) -> None:
    tokens = await load()
    long = turns(100)
    searches.clear()
    first = await tokens.tokenize(long)
    on_loop = sum(size for size, here in searches if here)
    assert on_loop < LOOP_NEW + LONG * 2
    assert 400_000 < sum(size for size, _ in searches) < 450_000, "no part is looked at twice"
    searches.clear()
    assert await tokens.tokenize(long) == first
    other = chat({"role": "system", "content": "Be brief."}, *long.messages)
    answered = chat(*long.messages, {"role": "assistant", "content": "Yes. " * 5000}, USER)
    for asked in (other, answered):
        await tokens.tokenize(asked)
        assert await tokens.tokenize(asked) == await (await load()).tokenize(asked)
    searches.clear()
    for asked in (long, other, answered):
        await tokens.tokenize(asked)
    assert sum(size for size, _ in searches) < LONG * 4, "what is known is compared"
    assert all(here for _, here in searches)


async def test_no_two_long_prompts_are_worked_on_in_one_turn_of_the_loop(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = await load()
    await tokens.tokenize(turns(40))
    loop, now, seen = asyncio.get_running_loop(), [0], []

    def count() -> None:
        now[0] += 1
        again[0] = loop.call_soon(count)

    assert tokens._renderer is not None
    render = tokens._renderer.render

    def watching(prompt: ChatInput, most: int) -> Any:
        seen.append((len(prompt.raw), now[0]))
        return render(prompt, most)

    again = [loop.call_soon(count)]
    monkeypatch.setattr(tokens._renderer, "render", watching)
    await asyncio.gather(*(tokens.tokenize(asked) for _ in range(10) for asked in (turns(40), chat(USER))))
    again[0].cancel()
    long, short = [{turn for size, turn in seen if (size > ALONE) is which} for which in (True, False)]
    assert (len(seen), len(long), len(short)) == (20, 10, 1)


async def test_who_leaves_while_waiting_for_a_turn_holds_up_nobody(load: Load) -> None:
    tokens = await load()
    waiting = [asyncio.create_task(tokens.tokenize(turns(40))) for _ in range(6)]
    await asyncio.sleep(0)
    for task in waiting[1::2]:
        task.cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [False, True] * 3
    assert (await tokens.tokenize(turns(40))).exact
