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
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from gateway.core.observer import Observer
from gateway.core.prompt import ChatInput, OpaqueInput, Prompt, PromptInput, TextInput, TokenInput
from gateway.tokens.agreement import Form
from gateway.tokens.encode import Encoder, Reading
from gateway.tokens.families import Obstacle
from gateway.tokens.heap import give_back
from gateway.tokens.known_text import NotKnown
from gateway.tokens.lengths import MAX_TEXT, most_of
from gateway.tokens.loading import Loaded, load
from gateway.tokens.media import around_media, holds_media
from gateway.tokens.native import Native
from gateway.tokens.parity import Parity
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.render import Renderer
from gateway.tokens.render_cost import ALONE, LOOP_CHARACTERS, LOOP_ENCODED, LOOP_NEW, LOOP_TEXTS, SMALL, is_cheap
from gateway.tokens.results import estimated, exact, form_of, raws_of
from gateway.tokens.settings import TokenSettings
from gateway.tokens.status import Tally, status_of
from gateway.tokens.thread_queue import Closed, ThreadQueue

log = logging.getLogger("kvgate.tokens")

MAX_THREADS = 4
"""Threads of one model. A thread encodes a megabyte a second, far more than one engine prefills, and a client with
endless prompts must not take every core."""


class _Rest(NamedTuple):
    """Work of so many characters that is left for a thread. ``step`` does it, blocking."""

    step: Callable[[], Prompt]
    characters: int


class ModelTokens:
    """Tokenizes one model's prompts. ``load`` must have returned before ``tokenize`` is called."""

    def __init__(
        self, settings: TokenSettings, model: str, observer: Observer, *, parity: Parity | None = None
    ) -> None:
        """``parity``: judges whether our ids are the engines'; None: they are always trusted."""
        self.parity = parity or Parity(model)
        self.forwards_ids = settings.tokens.forward
        """Engines get our ids instead of the text, where that changes no answer."""
        self.asks_engines = settings.tokens.ask
        """Engines are asked for the ids of prompts that cannot be tokenized here."""
        self.may_ask_first = settings.media.render
        """There can be a prompt for which an engine is asked before it is placed."""
        self._settings = settings
        self._model = model
        self._observer = observer
        self._loaded: Loaded | None = None
        self._encoder: Encoder | None = None
        self._renderer: Renderer | None = None
        self._failures: set[str] = set()
        self._tally = Tally(partial(observer.prompts_exact, model))
        self._turn = asyncio.Lock()
        self._longest_token = 0
        self._threads = ThreadQueue(min(MAX_THREADS, os.cpu_count() or 1), f"tokens-{model}")

    @property
    def state(self) -> str:
        """How prompts are tokenized now, for people: ``exact``, ``exact for N % of prompts, else`` with the reasons, or
        ``estimated,`` with the reasons."""
        if self._settings.tokenizer is None:
            return "estimated, no tokenizer is configured"
        return status_of(self._tally, self.obstacles, self.parity.distrusted, self.asks_engines)

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

    def asks_engine_for(self, prompt: ChatInput | TextInput) -> bool:
        """Whether an engine is to be asked for the ids of this prompt."""
        if self._loaded is None or not self.asks_engines or prompt.truncated:
            return False
        hindered = form_of(prompt) in self.obstacles
        if isinstance(prompt, TextInput):
            return hindered and len(prompt.texts) == 1
        converted = self._loaded.native is not None and (prompt.built or prompt.system_first)
        return (hindered or converted) and prompt.template is None and not prompt.thinking_disabled

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
            if form_of(given) in self.parity.distrusted:
                return replace(self._estimated(raws_of(given), Why.PARITY), own=prompt.own)
            if differing := self.parity.differing[form_of(given)]:
                prompt = replace(prompt, differing=differing)
        if prompt.why:
            self._observer.tokens_estimated(self._model, prompt.why)
        self._tally.note(prompt.why)
        return prompt

    async def load(self) -> None:
        """Load the configured tokenizer, if there is one, in a thread.

        Raises:
            ConfigError: it cannot be loaded; names the path and the remedy.
        """
        if self._settings.tokenizer is None:
            return
        log.info("model %s: loading the tokenizer %s", self._model, self._settings.tokenizer)
        loaded, self._encoder, self._renderer = await self._threads.run("", 0, self._load)
        self._loaded = loaded
        if self.asks_engines and (loaded.obstacles or loaded.native is not None):
            self.may_ask_first = True
        self.parity.begin(complete=self.asks_engines or not self.obstacles)

    async def close(self) -> None:
        """Let the threads end. A prompt that still waits for a thread is estimated."""
        self._threads.close()

    async def tokenize(
        self,
        prompt: PromptInput,
        *,
        client: Callable[[], str] = lambda: "",
        longest_context: Callable[[], int | None] = lambda: None,
    ) -> Prompt:
        """The ids of ``prompt``, or an estimate that says why.

        ``client`` and ``longest_context`` are called for a long prompt only: threads are shared fairly between clients,
        and no engine takes a prompt that is longer than its context. ``longest_context``: of an engine of the model, in
        tokens; None: not known.
        """
        if isinstance(prompt, OpaqueInput):
            return self._estimated([prompt.raw], prompt.why)
        if isinstance(prompt, TokenInput):
            self._tally.note("")
            return exact([ids if isinstance(ids, array) else array("I", ids) for ids in prompt.ids], ours=False)
        form, own = Form.CHAT if isinstance(prompt, ChatInput) else Form.TEXT, None
        try:
            found = await self._tokens_of(prompt, form, client, longest_context)
        except Unrenderable as unrenderable:
            why: str = unrenderable.why
        else:
            if form not in self.parity.distrusted:
                if found.why:
                    self._observer.tokens_estimated(self._model, found.why)
                self._tally.note(found.why)
                differing = self.parity.differing[form]
                return replace(found, differing=differing) if differing else found
            why, own = Why.PARITY, found.own
        guessed = self._estimated(raws_of(prompt), why)
        return guessed if own is None else replace(guessed, own=own)

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
        renderer = Renderer(loaded, self._settings)
        renderer.prepare()
        give_back()
        return loaded, encoder, renderer

    async def _tokens_of(
        self,
        prompt: ChatInput | TextInput,
        form: Form,
        client: Callable[[], str],
        longest_context: Callable[[], int | None],
    ) -> Prompt:
        """The ids. Raises Unrenderable and nothing else."""
        loaded = self._loaded
        if loaded is None:
            raise Unrenderable(Why.NO_TOKENIZER)
        if prompt.truncated:
            raise Unrenderable(Why.TRUNCATED)
        if form in loaded.obstacles:
            raise Unrenderable(loaded.obstacles[form].why)
        size = len(prompt.raw) if isinstance(prompt, ChatInput) else sum(map(len, prompt.texts))
        native = loaded.native if form is Form.CHAT or (loaded.native is not None and loaded.native.texts) else None
        longest = self._longest_token if native is None else native.longest_token
        most = MAX_TEXT if size <= ALONE else most_of(longest_context(), longest)
        if isinstance(prompt, TextInput) and (size > MAX_TEXT or max(map(len, prompt.texts), default=0) > most):
            raise Unrenderable(Why.TOO_LONG)
        known = 0
        if native is not None:
            rest = _Rest(partial(self._by_library, native, prompt, most, size), size)
        elif (
            isinstance(prompt, ChatInput)
            and (size > SMALL or prompt.tools or prompt.documents or prompt.template_kwargs)
            and not is_cheap(prompt, known := 0 if self._renderer is None else self._renderer.known(prompt))
        ):
            rest = _Rest(partial(self._whole, prompt, most), size)
        else:
            if size > ALONE:
                await self._turn.acquire()
                asyncio.get_running_loop().call_soon(self._turn.release)
            begun = self._begin(prompt, most, size, known)
            if isinstance(begun, Prompt):
                return begun
            rest = begun
        try:
            return await self._threads.run(client(), rest.characters, partial(self._guarded, rest.step))
        except Closed:
            raise Unrenderable(Why.CLOSED) from None

    def _begin(self, prompt: ChatInput | TextInput, most: int, size: int, known: int) -> Prompt | _Rest:
        """On the loop: the ids, or what is left to do in a thread. ``known``: so many of a chat's messages are not
        rendered here. Raises as ``_guarded``."""
        assert self._encoder is not None
        assert self._renderer is not None
        try:
            if isinstance(prompt, TextInput):
                texts = prompt.texts
            else:
                texts = (self._renderer.render(prompt, most, least_known=known),)
            # Even with few characters a body may have many texts, and a known text still has to be copied.
            if len(texts) > LOOP_TEXTS or sum(map(len, texts)) > LOOP_CHARACTERS:
                return _Rest(partial(self._encode, prompt, texts), size)
            reading = self._encoder.read(texts, add_special_tokens=prompt.add_special_tokens, most=LOOP_NEW)
            if reading.new > LOOP_ENCODED:
                return _Rest(partial(self._finish, reading), reading.new)
            found = self._encoder.finish(reading)
            if len(found) > 1:
                return exact(found)
            ids = found[0]
            return Prompt(ids, len(ids), True, own=ids)
        except NotKnown:
            if isinstance(prompt, ChatInput) and is_cheap(prompt):
                return self._begin(prompt, most, size, 0)
            return _Rest(partial(self._whole, prompt, most), size)
        except Unrenderable as unrenderable:
            if unrenderable.why is not Why.MEDIA:
                raise
            return _Rest(partial(self._whole, prompt, most), size)  # which renders such a chat more than once
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in the tokenizer's Rust code is no Exception
            raise self._failure(error) from error

    def _whole(self, prompt: ChatInput | TextInput, most: int) -> Prompt:
        """The ids, from the beginning."""
        assert self._encoder is not None
        assert self._renderer is not None
        if isinstance(prompt, TextInput):
            return self._encode(prompt, prompt.texts)
        if holds_media(prompt):
            return around_media(self._renderer, self._encoder, prompt, most)
        return self._encode(prompt, (self._renderer.render(prompt, most),))

    def _encode(self, prompt: ChatInput | TextInput, texts: Sequence[str]) -> Prompt:
        assert self._encoder is not None
        return self._finish(self._encoder.read(texts, add_special_tokens=prompt.add_special_tokens))

    def _finish(self, reading: Reading) -> Prompt:
        assert self._encoder is not None
        return exact(self._encoder.finish(reading))

    def _by_library(self, native: Native, prompt: ChatInput | TextInput, most: int, size: int) -> Prompt:
        if isinstance(prompt, TextInput):
            return exact([native.text(text, add_special_tokens=prompt.add_special_tokens) for text in prompt.texts])
        if size > MAX_TEXT:
            raise Unrenderable(Why.TOO_LONG)
        if holds_media(prompt):
            raise Unrenderable(Why.MEDIA)
        return exact([native.chat(prompt, most)])

    def _guarded(self, step: Callable[[], Prompt]) -> Prompt:
        """Run ``step``, blocking. Whatever it raises becomes Unrenderable."""
        try:
            return step()
        except (Unrenderable, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> Unrenderable:
        """What becomes of an error. The first one of each kind is logged, since a client could cause one every
        millisecond. The prompt is not logged."""
        name = type(error).__name__
        if name not in self._failures:
            self._failures.add(name)
            log.warning("model %s: a prompt could not be tokenized: %s; further ones are counted", self._model, name)
        return Unrenderable(Why.FAILED)

    def _estimated(self, raws: Sequence[bytes], why: str) -> Prompt:
        self._tally.note(why)
        self._observer.tokens_estimated(self._model, why)
        return estimated(raws, why)
