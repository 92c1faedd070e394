"""What long prompts that come together do to the loop: which steps are done on it, and how many in one of its turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.prompt import ChatInput, KnownMessages
from gateway.tokens import render
from gateway.tokens.render import Renderer
from gateway.tokens.render_cost import ALONE, LOOP_NEW, LOOP_VALUES, SMALL
from gateway.tokens.segments import LONG, Cuts
from simulator.template import CHATML
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

    def watching(prompt: ChatInput, most: int, **how: Any) -> Any:
        seen.append((len(prompt.raw), now[0]))
        return render(prompt, most, **how)

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


TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Each chat that is rendered from now on: whether on the loop's thread, and how many messages it did not render."""
    found: list[tuple[bool, int]] = []
    render = Renderer.render

    def watching(renderer: Renderer, *what: Any, **how: Any) -> str:
        text = render(renderer, *what, **how)
        found.append((threading.current_thread() is threading.main_thread(), how.get("least_known", 0)))
        return text

    monkeypatch.setattr(Renderer, "render", watching)
    return found


async def test_a_chat_is_rendered_on_the_loop_only_behind_its_known_messages(
    load: Load, variant: Callable[..., Path], rendered: list[tuple[bool, int]]
) -> None:
    tokens = await load(tokenizer=str(variant(chat_template__jinja=TOOLS + CHATML)))
    heavy = [{"role": "user", "content": "a", "unread": [1] * LOOP_VALUES}, USER, USER]
    known = KnownMessages(heavy)
    on_loop, elsewhere = (True, len(heavy)), (False, 0)
    for more, wanted in (
        ({}, elsewhere),
        ({}, on_loop),
        ({"tools": [TOOL]}, elsewhere),  # the text is known behind another opening
        ({"tools": [TOOL]}, on_loop),
        ({}, on_loop),
        ({"template_kwargs": {"unread": 1}}, on_loop),
        ({"continue_final_message": True, "add_generation_prompt": False}, elsewhere),
    ):
        rendered.clear()
        given = chat(*heavy, {"role": "user", "content": f"long enough {SMALL * 'x'}"}, **more)
        prompt = await tokens.tokenize(replace(given, known=known))
        assert (prompt.exact, rendered) == (True, [wanted])
        assert (await tokens.tokenize(given)).ids == prompt.ids
    rendered.clear()
    late = chat(*heavy, {"role": "developer", "content": SMALL * "x"}, known=known)
    assert (await tokens.tokenize(late)).exact
    assert rendered == [elsewhere], "the template knows no developer, so that all messages may change"


async def test_a_light_chat_is_rendered_on_the_loop_though_its_text_is_not_known(
    load: Load, variant: Callable[..., Path], rendered: list[tuple[bool, int]]
) -> None:
    tokens = await load(tokenizer=str(variant(chat_template__jinja=TOOLS + CHATML)))
    known = KnownMessages([{"role": "user", "content": "x" * SMALL}])
    for tools in ([], [TOOL]):
        assert (await tokens.tokenize(chat(*known.messages, USER, tools=tools, known=known))).exact
    assert rendered == [(True, 0), (True, 0)]


async def test_the_chats_that_are_compared_are_rendered_in_a_thread(
    load: Load, rendered: list[tuple[bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "SAMPLE", 3)
    tokens = await load()
    heavy = [{"role": "user", "content": "a", "unread": [1] * LOOP_VALUES}, USER]
    known = KnownMessages(heavy)
    for _ in range(7):
        await tokens.tokenize(chat(*heavy, {"role": "user", "content": SMALL * "x"}, known=known))
    on_loop, elsewhere = (True, len(heavy)), (False, 0)
    assert rendered == [elsewhere, on_loop, elsewhere, on_loop, on_loop, elsewhere, on_loop]
