"""Turns prompts into the token ids that an engine will see, or into an estimate with a reason. It never raises for a
prompt.

Rules: work that takes longer than the switch to a thread is done in our own threads. Mostly that is the encoding of
text that no earlier prompt had. The rest is done on the loop, a conversation's next turn with a short message included,
but never for two long prompts in one iteration of the loop. Each estimate is counted with its reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from gateway.core.observer import Observer
from gateway.core.prompt import (
    BYTES_PER_TOKEN,
    ChatInput,
    OpaqueInput,
    Prompt,
    PromptInput,
    TextInput,
    TokenInput,
    estimate,
)
from gateway.tokens.agreement import Form
from gateway.tokens.encode import Encoder, Reading
from gateway.tokens.families import Obstacle
from gateway.tokens.lengths import MAX_TEXT, check, most_of, size_of
from gateway.tokens.loading import Loaded, load
from gateway.tokens.media import around_media, holds_media, without_payloads
from gateway.tokens.native import Native
from gateway.tokens.parity import Parity
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.render import Renderer
from gateway.tokens.render_cost import ALONE, LOOP_CHARACTERS, LOOP_ENCODED, LOOP_NEW, LOOP_TEXTS, is_cheap
from gateway.tokens.settings import TokenSettings
from gateway.tokens.status import Tally, status_of
from gateway.tokens.thread_queue import Closed, ThreadQueue

log = logging.getLogger("kvgate.tokens")

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 4
"""Threads of one model. A thread encodes a megabyte a second, far more than one engine prefills, and a client with
endless prompts must not take every core."""


class ModelTokens:
    """Tokenizes one model's prompts. ``load`` must have returned before ``tokenize`` is called."""

    def __init__(
        self, settings: TokenSettings, model: str, observer: Observer, *, parity: Parity | None = None
    ) -> None:
        """``parity``: judges whether our ids are the engines'; None: they are always trusted."""
        self.parity = parity or Parity(model)
        self._settings = settings
        self._model = model
        self._observer = observer
        self._loaded: Loaded | None = None
        self._encoder: Encoder | None = None
        self._renderer: Renderer | None = None
        self._failures: set[str] = set()
        self._tally = Tally()
        self._turn = asyncio.Lock()
        self._longest_token = 0
        self._threads = ThreadQueue(min(MAX_THREADS, os.cpu_count() or 1), f"tokens-{model}")

    @property
    def state(self) -> str:
        """How prompts are tokenized now, for people: ``exact``, ``exact for N % of prompts, else`` with the reasons, or
        ``estimated,`` with the reasons."""
        if self._settings.tokenizer is None:
            return "estimated, no tokenizer is configured"
        distrusted = {form: why for form in Form if (why := self.parity.distrust(form))}
        return status_of(self._tally, self.obstacles, distrusted, self.asks_engines)

    @property
    def configured(self) -> bool:
        """Whether a tokenizer is configured."""
        return self._settings.tokenizer is not None

    @property
    def share(self) -> float | None:
        """The share of the last prompts whose token ids are the engines', 0..1; None: there was no prompt yet."""
        return self._tally.share

    @property
    def obstacles(self) -> Mapping[Form, Obstacle]:
        """The forms of prompts that cannot be tokenized here, each with the reason; known after ``load``."""
        return {} if self._loaded is None else self._loaded.obstacles

    @property
    def asks_engines(self) -> bool:
        """Whether engines are asked for the ids of prompts that cannot be tokenized here."""
        return self._settings.tokens.ask

    def asks_engine_for(self, prompt: ChatInput | TextInput) -> bool:
        """Whether an engine is to be asked for the ids of this prompt."""
        if self._loaded is None or not self.asks_engines or prompt.truncated:
            return False
        hindered = _form(prompt) in self.obstacles
        if isinstance(prompt, TextInput):
            return hindered and len(prompt.texts) == 1
        converted = self._loaded.native is not None and (prompt.built or prompt.system_first)
        return (hindered or converted) and prompt.template is None and not prompt.thinking_disabled

    @property
    def may_ask_engines(self) -> bool:
        """Whether there can be a prompt for which an engine is asked."""
        loaded = self._loaded
        return loaded is not None and self.asks_engines and (bool(loaded.obstacles) or loaded.native is not None)

    @property
    def differing_words(self) -> tuple[bytes, ...]:
        """If a chat's messages hold one of these words, vLLM's ``/tokenize`` may give other ids than the chat route."""
        return () if self._loaded is None or self._loaded.family is None else self._loaded.family.differing_words

    @property
    def tokenize_agrees(self) -> bool:
        """Whether vLLM's ``/tokenize`` gives the same ids for a chat as the route that serves it."""
        return self._loaded is None or self._loaded.family is None or self._loaded.family.tokenize

    def from_engine(self, given: PromptInput, prompt: Prompt) -> Prompt:
        """Take the ids that an engine reported for ``given``. They are replaced by an estimate if most engines serve
        other ids than they report."""
        if (prompt.own is not None or prompt.why) and isinstance(given, ChatInput | TextInput):
            if self.parity.distrust(_form(given)) is not None:
                return replace(self._estimated(_raws(given), Why.PARITY), own=prompt.own)
            if differing := self.parity.differing(_form(given)):
                prompt = replace(prompt, differing=differing)
        if prompt.why:
            self._observer.tokens_estimated(self._model, prompt.why)
        self._note(prompt.why)
        return prompt

    @property
    def forwards_ids(self) -> bool:
        """Whether engines get our ids instead of the text, where that changes no answer."""
        return self._settings.tokens.forward

    async def load(self) -> None:
        """Load the configured tokenizer, if there is one, in a thread.

        Raises:
            ConfigError: it cannot be loaded; names the path and the remedy.
        """
        if self._settings.tokenizer is None:
            return
        log.info("model %s: loading the tokenizer %s", self._model, self._settings.tokenizer)
        self._loaded, self._encoder, self._renderer = await self._threads.run("", 0, self._load)
        self.parity.begin(complete=self.asks_engines or not self.obstacles)

    async def close(self) -> None:
        """Let the threads end. A prompt that still waits for a thread is estimated."""
        self._threads.close()

    async def tokenize(
        self,
        prompt: PromptInput,
        *,
        client: Callable[[], str] = lambda: "",
        room: Callable[[], int | None] = lambda: None,
    ) -> Prompt:
        """The ids of ``prompt``, or an estimate that says why.

        ``client`` and ``room`` are called for a long prompt only: threads are shared fairly between clients, and no
        engine takes a prompt that is longer than its context. ``room``: the longest context of an engine in tokens;
        None: not known.
        """
        if isinstance(prompt, OpaqueInput):
            return self._estimated([prompt.raw], prompt.why)
        if isinstance(prompt, TokenInput):
            self._note("")
            return _exact([ids if isinstance(ids, array) else array("I", ids) for ids in prompt.ids])
        why, own = self._obstacle(prompt), None
        if why is None:
            try:
                found = await self._tokens_of(prompt, client, room)
                form = _form(prompt)
                if self.parity.distrust(form) is None:
                    if found.why:
                        self._observer.tokens_estimated(self._model, found.why)
                    self._note(found.why)
                    differing = self.parity.differing(form)
                    return replace(found, differing=differing) if differing else found
                why, own = Why.PARITY, found.own
            except Unrenderable as unrenderable:
                why = unrenderable.why
        estimated = self._estimated(_raws(prompt), why)
        return estimated if own is None else replace(estimated, own=own)

    def log_status(self) -> None:
        """Log how the model's prompts are tokenized, once the tokenizer is loaded and will serve."""
        if self._settings.tokenizer is None:
            remedy = "set tokenizer to the engines', so that hits in their caches are known"
            log.warning("model %s: its tokens are %s: %s", self._model, self.state, remedy)
        elif self.obstacles:
            remedies = "; ".join(dict.fromkeys(one.remedy for one in self.obstacles.values()))
            log.warning("model %s: its tokens are %s: %s", self._model, self.state, remedies)
        else:
            log.info("model %s: its tokens are %s", self._model, self.state)

    def _load(self) -> tuple[Loaded, Encoder | None, Renderer | None]:
        loaded = load(self._settings, self._model)
        if loaded.tokenizer is None:
            return loaded, None, None
        encoder = Encoder(loaded.tokenizer, self._model, self._settings.memory_bytes)
        self._longest_token = max(map(len, loaded.tokenizer.get_vocab()), default=0)
        return loaded, encoder, Renderer(loaded, self._settings)

    def _obstacle(self, prompt: ChatInput | TextInput) -> Why | None:
        """Why the ids cannot be known, if that is clear before any work."""
        if self._loaded is None:
            return Why.NO_TOKENIZER
        if prompt.truncated:
            return Why.TRUNCATED
        obstacle = self._loaded.obstacles.get(_form(prompt))
        return None if obstacle is None else obstacle.why

    async def _tokens_of(
        self, prompt: ChatInput | TextInput, client: Callable[[], str], room: Callable[[], int | None]
    ) -> Prompt:
        """The ids. Raises Unrenderable and nothing else."""
        size = size_of(prompt)
        native = None if self._loaded is None else self._loaded.native
        if native is not None and not (isinstance(prompt, ChatInput) or native.texts):
            native = None
        longest = self._longest_token if native is None else native.longest_token
        most = MAX_TEXT if size <= ALONE else most_of(room(), longest)

        async def in_thread(step: Callable[..., Prompt], *args: object, characters: int = size) -> Prompt:
            try:
                return await self._threads.run(client(), characters, lambda: self._guarded(step, *args))
            except Closed:
                raise Unrenderable(Why.CLOSED) from None

        if native is not None:
            return await in_thread(_by_library, native, prompt, most)
        if isinstance(prompt, ChatInput) and holds_media(prompt):
            return await in_thread(self._around_media, prompt, most)
        if isinstance(prompt, ChatInput) and not is_cheap(prompt):
            return await in_thread(self._render_and_encode, prompt, most)
        if size > ALONE:
            await self._turn.acquire()
            asyncio.get_running_loop().call_soon(self._turn.release)
        texts = self._guarded(self._texts_of, prompt, most)
        # Even with few characters a body may have many texts, and a known text still has to be copied.
        if len(texts) <= LOOP_TEXTS and sum(map(len, texts)) <= LOOP_CHARACTERS:
            reading = self._guarded(self._read, prompt, texts, LOOP_NEW)
            if reading.new <= LOOP_ENCODED:
                return self._guarded(self._finish, reading)
            return await in_thread(self._finish, reading, characters=reading.new)
        return await in_thread(self._encode, prompt, texts)

    def _render_and_encode(self, prompt: ChatInput, most: int) -> Prompt:
        return self._encode(prompt, self._texts_of(prompt, most))

    def _encode(self, prompt: ChatInput | TextInput, texts: Sequence[str]) -> Prompt:
        return self._finish(self._read(prompt, texts))

    def _around_media(self, prompt: ChatInput, most: int) -> Prompt:
        assert self._encoder is not None
        assert self._renderer is not None
        return around_media(self._renderer, self._encoder, prompt, limit=most)

    def _texts_of(self, prompt: ChatInput | TextInput, most: int) -> Sequence[str]:
        assert self._renderer is not None
        texts = prompt.texts if isinstance(prompt, TextInput) else (self._renderer.render(prompt),)
        check(texts, most)
        return texts

    def _read(self, prompt: ChatInput | TextInput, texts: Sequence[str], most: int | None = None) -> Reading:
        assert self._encoder is not None
        return self._encoder.read(texts, add_special_tokens=prompt.add_special_tokens, most=most)

    def _finish(self, reading: Reading) -> Prompt:
        assert self._encoder is not None
        ids = self._encoder.finish(reading)
        return _exact(ids, own=ids[0] if len(ids) == 1 else None)

    def _guarded(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``step``, blocking. Whatever it raises becomes Unrenderable."""
        try:
            return step(*args, **kwargs)
        except Unrenderable:
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in the tokenizer's Rust code is no Exception
            self._log_failure(type(error).__name__)
            raise Unrenderable(Why.FAILED) from error

    def _log_failure(self, name: str) -> None:
        """Log the first failure of each kind, since a client could cause one every millisecond. The prompt is not
        logged."""
        if name not in self._failures:
            self._failures.add(name)
            log.warning("model %s: a prompt could not be tokenized: %s; further ones are counted", self._model, name)

    def _note(self, why: str) -> None:
        self._tally.note(why)
        self._observer.prompts_exact(self._model, self._tally.share or 0.0)

    def _estimated(self, raws: Sequence[bytes], why: str) -> Prompt:
        self._note(why)
        self._observer.tokens_estimated(self._model, why)
        if len(raws) == 1:
            return estimate(without_payloads(raws[0]), why)
        prompt = estimate(raws[0], why)
        return replace(prompt, count=max(1, sum(map(len, raws)) // BYTES_PER_TOKEN), single=False)


def _form(prompt: ChatInput | TextInput) -> Form:
    return Form.CHAT if isinstance(prompt, ChatInput) else Form.TEXT


def _raws(prompt: ChatInput | TextInput) -> list[bytes]:
    """The bytes from which an estimate is made."""
    if isinstance(prompt, ChatInput):
        return [prompt.raw]
    return [text.encode("utf-8", "replace") for text in prompt.texts]


def _by_library(native: Native, prompt: ChatInput | TextInput, most: int) -> Prompt:
    if size_of(prompt) > MAX_TEXT:
        raise Unrenderable(Why.TOO_LONG)
    if isinstance(prompt, TextInput):
        check(prompt.texts, most)
        ids = [native.text(text, add_special_tokens=prompt.add_special_tokens) for text in prompt.texts]
    elif holds_media(prompt):
        raise Unrenderable(Why.MEDIA)
    else:
        ids = [native.chat(prompt, most)]
    return _exact(ids, own=ids[0] if len(ids) == 1 else None)


def _exact(ids: Sequence[array[int]], own: array[int] | None = None) -> Prompt:
    return Prompt(ids=ids[0], count=sum(map(len, ids)), exact=True, single=len(ids) == 1, own=own)
