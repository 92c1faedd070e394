from __future__ import annotations

import base64
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from gateway.core.prompt import ChatInput, Prompt
from gateway.tokens.agreement import LEAST, Form
from gateway.tokens.media import BEYOND_VOCABULARY, TOKENS, without_payloads
from gateway.tokens.tokenizer import ModelTokens
from tests.support.examples import examples
from tests.tokens.conftest import Load, Reasons

QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type in ('audio', 'video') %}<|{{ part.type }}|>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
)
LLAVA = (  # all images of a message ahead of its text
    "{% for m in messages %}<|im_start|>{{ m.role }}: "
    "{% for part in m.content %}{% if part.type == 'image' %}<image>\n{% endif %}{% endfor %}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
LLAMA = (  # another system message where there is an image
    "{% set ns = namespace(images=false) %}{% for m in messages %}{% for part in m.content %}"
    "{% if part.type == 'image' %}{% set ns.images = true %}{% endif %}{% endfor %}{% endfor %}"
    "<|im_start|>system\n{% if not ns.images %}Cutting knowledge date{% endif %}<|im_end|>"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}"
    "{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
TEXTS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

Tokenize = Callable[..., Awaitable[tuple[Prompt, ModelTokens]]]


def image(url: str = "data:image/png;base64,AAAA", **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.fixture
def tokenize(load: Load, tmp_path: Path) -> Tokenize:
    async def made(template: str, *messages: Any, **chat: Any) -> tuple[Prompt, ModelTokens]:
        file = tmp_path / "template.jinja"
        file.write_text(template)
        tokens = await load(chat_template=str(file))
        return await tokens.tokenize(ChatInput(messages, b"[]" * 50, **chat)), tokens

    return made


def decoded(tokens: ModelTokens, ids: Sequence[int]) -> str:
    assert tokens._loaded is not None
    return str(tokens._loaded.tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False))


def known(prompt: Prompt, tokens: ModelTokens) -> str:
    """The text of the leading ids up to the first stand-in."""
    end = next(place for place, one in enumerate(prompt.ids) if one >= BEYOND_VOCABULARY)
    return decoded(tokens, prompt.ids[:end])


@pytest.mark.parametrize(
    "part",
    [
        image(),
        {"type": "input_image", "image_url": "http://x", "detail": "auto"},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"image_url": "http://x"},
        {"uuid": "u", "type": "image_url", "image_url": None},
    ],
)
async def test_the_text_ahead_of_an_image_is_exact(tokenize: Tokenize, reasons: Reasons, part: dict[str, Any]) -> None:
    system = {"role": "system", "content": "Be brief."}
    prompt, tokens = await tokenize(QWEN, system, user(text("What is on this picture? "), part, text("And why?")))
    assert (
        known(prompt, tokens) == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is on this picture? "
    )
    assert prompt.exact
    assert not prompt.whole
    assert prompt.why == "media"
    assert prompt.own is None
    assert prompt.count == len(prompt.ids) > TOKENS
    assert reasons.seen == [("m", "media")]


async def test_sound_and_video(tokenize: Tokenize) -> None:
    for part in (
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "http://x"}},
        {"type": "video_url", "video_url": {"url": "http://x"}},
    ):
        prompt, tokens = await tokenize(QWEN, user(text("Hear "), part))
        assert known(prompt, tokens) == "<|im_start|>user\nHear "


async def test_ids_are_those_of_the_whole_text(tokenize: Tokenize, load: Load) -> None:
    """What stands ahead of an image might be one token with what the template writes for it."""
    prompt, tokens = await tokenize(
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}llo{% else %}"
        "{{ p.text }}{% endif %}{% endfor %}{% endfor %}",
        user(text("say he"), image()),
    )
    assert tokens._encoder is not None
    (whole,) = tokens._encoder.encode(["say hello"], add_special_tokens=False)
    end = next(place for place, one in enumerate(prompt.ids) if one >= BEYOND_VOCABULARY)
    common = next((at for at, (a, b) in enumerate(zip(prompt.ids, whole, strict=False)) if a != b), len(whole))
    assert common <= end


async def test_a_template_that_puts_images_first(tokenize: Tokenize) -> None:
    prompt, tokens = await tokenize(LLAVA, user(text("first")), user(text("what"), image(), text("is"), image()))
    assert tokens._encoder is not None
    (sure,) = tokens._encoder.encode(["<|im_start|>user: first<|im_start|>user: "], add_special_tokens=False)
    assert prompt.ids[: len(sure) - 1] == sure[:-1]  # its last blank may be one token with what follows
    (engines,) = tokens._encoder.encode(
        ["<|im_start|>user: first<|im_start|>user: <image>\n<image>\nwhatis"], add_special_tokens=False
    )
    assert prompt.ids[: len(sure) + 3] != engines[: len(sure) + 3]


async def test_a_template_that_writes_another_head_where_there_is_an_image(tokenize: Tokenize) -> None:
    prompt, tokens = await tokenize(LLAMA, user(text("what"), image()))
    assert tokens._encoder is not None
    (engines,) = tokens._encoder.encode(
        ["<|im_start|>system\n<|im_end|><|im_start|>user\nwhat<|image|>"], add_special_tokens=False
    )
    (head,) = tokens._encoder.encode(["<|im_start|>system\n"], add_special_tokens=False)
    assert prompt.ids[: len(head)] == engines[: len(head)] == head
    assert known(prompt, tokens).startswith("<|im_start|>system\n")


async def test_contents_as_texts_are_known_up_to_the_last_special_token(tokenize: Tokenize) -> None:
    """vLLM puts what stands for the image ahead of the message's text."""
    prompt, tokens = await tokenize(TEXTS, {"role": "system", "content": "Be brief."}, user(text("What is"), image()))
    assert tokens._encoder is not None
    sure = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>"
    (ids,) = tokens._encoder.encode([sure], add_special_tokens=False)
    assert prompt.ids[: len(ids)] == ids
    assert known(prompt, tokens) == sure + "user\n"
    shown = decoded(tokens, [one for one in prompt.ids if one < BEYOND_VOCABULARY])
    assert shown.endswith("user\n\nWhat is<|im_end|>\n")


async def test_two_images_are_told_apart_and_one_is_known_again(tokenize: Tokenize) -> None:
    first, _ = await tokenize(QWEN, user(text("a"), image("data:1")))
    second, _ = await tokenize(QWEN, user(text("a"), image("data:2")))
    later, _ = await tokenize(QWEN, user(text("a"), image("data:1")), user(text("b"), image("data:2")))
    end = next(place for place, one in enumerate(first.ids) if one >= BEYOND_VOCABULARY)
    assert first.ids[:end] == second.ids[:end]
    assert first.ids[end] != second.ids[end]
    assert later.ids[: end + TOKENS] == first.ids[: end + TOKENS]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {}},
        {"type": "prompt_embeds", "data": "AAAA"},
        {"type": "image_pil", "image_pil": "x"},
    ],
)
async def test_what_nothing_is_known_of_is_estimated(tokenize: Tokenize, part: dict[str, Any]) -> None:
    prompt, _ = await tokenize(QWEN, user(text("a"), part))
    assert (prompt.exact, prompt.why) == (False, "media")


async def test_a_template_that_drops_or_repeats_contents_is_estimated(tokenize: Tokenize) -> None:
    for template in (
        "{% for m in messages %}{{ m.role }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    ):
        prompt, _ = await tokenize(template, user(text("a"), image()))
        assert (prompt.exact, prompt.why) == (False, "media")


async def test_a_chat_that_is_not_trusted_any_more_is_estimated(tokenize: Tokenize) -> None:
    prompt, tokens = await tokenize(QWEN, user(text("a"), image()))
    assert prompt.exact
    for _ in range(LEAST):
        tokens.parity.compare_counts("a", Form.CHAT, 1, 2)
    again = await tokens.tokenize(ChatInput([user(text("a"), image())], b"[]" * 50))
    assert (again.exact, again.why) == (False, "parity")


def test_data_are_as_long_as_their_tokens_in_an_estimate() -> None:
    data = base64.b64encode(random.Random(0).randbytes(1_000_000))
    for before, behind in (
        (b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,', b'"}},"text"]'),
        (b'[{"type":"image","source":{"type":"base64","data":"', b'"}},"text"]'),
        (b'[{"type":"input_audio","input_audio":{"data":"', b'","format":"wav"}},"text"]'),
    ):
        short = without_payloads(before + data + behind)
        assert short.startswith(before.rpartition(b'"')[0])
        assert short.endswith(behind)
        assert len(short) < len(before) + len(behind) + TOKENS * 4 + 1
        assert short == without_payloads(before + data + behind)
        assert short != without_payloads(before + data.replace(b"a", b"b") + behind)
        assert without_payloads(before + data[:1000] + behind) == before + data[:1000] + behind
    for text in (b'"base64 "' * 100_000, b'["base64", "' + b"word " * 10_000 + b'"]', b'"' + b"A" * 10_000 + b'"'):
        assert without_payloads(text) == text


async def test_an_image_without_a_tokenizer_is_no_novel(load: Load) -> None:
    tokens = await load(tokenizer=None)
    raw = b'[{"image_url":{"url":"data:image/png;base64,' + b"QUJD" * 300_000 + b'"}}]'
    prompt = await tokens.tokenize(ChatInput([user(image())], raw))
    assert TOKENS <= prompt.count < 2 * TOKENS


PARTS = st.lists(
    st.one_of(st.text(st.sampled_from("ab \n<|im_end|>é\ue000"), max_size=6).map(text), st.just(image())), max_size=5
)


@given(turns=st.lists(PARTS, min_size=1, max_size=4))
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_what_is_known_is_what_the_engine_tokenizes(
    tokenize: Tokenize, turns: list[list[dict[str, Any]]]
) -> None:
    messages = [user(*parts) for parts in turns]
    prompt, tokens = await tokenize(QWEN, *messages)
    await tokens.close()
    shown = "".join(
        "<|im_start|>user\n"
        + "".join(part.get("text", "<|vision_start|><|image_pad|><|vision_end|>") for part in parts)
        + "<|im_end|>\n"
        for parts in turns
    )
    assert tokens._encoder is not None
    (engines,) = tokens._encoder.encode([shown], add_special_tokens=False)
    assert prompt.exact
    if prompt.whole:
        assert prompt.ids == engines
        return
    end = next(place for place, one in enumerate(prompt.ids) if one >= BEYOND_VOCABULARY)
    before = shown[: shown.index("<|vision_start|>")]
    (alone,) = tokens._encoder.encode([before], add_special_tokens=False)
    same = next((at for at, (a, b) in enumerate(zip(alone, engines, strict=False)) if a != b), len(alone))
    assert prompt.ids[:same] == engines[:same]
    assert end >= same
