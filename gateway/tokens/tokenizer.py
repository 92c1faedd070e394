"""Prompts to the token ids that an engine will see, or to an estimate with a reason. Never an error for a prompt.

Rules: short prompts are done on the loop, long ones in threads of our own, rendering and encoding in one hand-over. An
estimate is counted with its reason, so that it never goes unseen.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gateway.framework import (
    BYTES_PER_TOKEN,
    ChatInput,
    Observer,
    OpaqueInput,
    Prompt,
    PromptInput,
    TextInput,
    TokenInput,
    estimate,
)
from gateway.tokens.encode import Encoder
from gateway.tokens.loading import Loaded, load
from gateway.tokens.parity import Parity
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.render import Renderer
from gateway.tokens.settings import TokenSettings

log = logging.getLogger("kvgate.tokens")

MAX_THREADS = 4
"""Of one model: encoding runs at a megabyte a second and thread, far above what one engine prefills; and a client with
endless prompts must not take every core."""

MAX_TEXT = 8 * 1024 * 1024
"""Characters of a body's prompts that are encoded: two million tokens of English, twice what long contexts take. The
library needs up to 300 bytes a token and a thread cannot be stopped: a whole ``listen.max_body`` of short words would
take gigabytes and a minute, long after its client left."""


class ModelTokens:
    """The tokens of one model's prompts. ``load`` must have returned before ``tokenize``."""

    def __init__(
        self, settings: TokenSettings, model: str, observer: Observer, *, parity: Parity | None = None
    ) -> None:
        """``parity``: the judge of our ids; None: they are always believed."""
        self.parity = parity or Parity(model)
        self._settings = settings
        self._model = model
        self._observer = observer
        self._loaded: Loaded | None = None
        self._encoder: Encoder | None = None
        self._renderer: Renderer | None = None
        self._failures: set[str] = set()
        self._threads = ThreadPoolExecutor(
            max_workers=min(MAX_THREADS, os.cpu_count() or 1), thread_name_prefix=f"tokens-{model}"
        )

    @property
    def state(self) -> str:
        """How prompts become tokens now, for people: ``exact``, or ``estimated`` and why."""
        if self._settings.tokenizer is None:
            return "estimated: no tokenizer is configured"
        return "exact" if self.parity.trusted else f"estimated: {self.parity.lost}"

    async def load(self) -> None:
        """Load the configured tokenizer, if there is one, in a thread.

        Raises:
            ConfigError: it cannot be loaded; names the path and the remedy.
        """
        if self._settings.tokenizer is None:
            return
        log.info("model %s: loading the tokenizer %s", self._model, self._settings.tokenizer)
        loop = asyncio.get_running_loop()
        self._loaded, self._encoder, self._renderer = await loop.run_in_executor(self._threads, self._load)
        self.parity.begin()

    async def close(self) -> None:
        """Let the threads end; what they are at is of no use any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def tokenize(self, prompt: PromptInput) -> Prompt:
        """The ids of ``prompt``, or an estimate that says why."""
        if isinstance(prompt, OpaqueInput):
            return self._estimated([prompt.raw], prompt.why)
        if isinstance(prompt, TokenInput):
            return _exact([ids if isinstance(ids, array) else array("I", ids) for ids in prompt.ids])
        why, own = self._obstacle(prompt), None
        if why is None:
            try:
                if _size(prompt) <= self._settings.inline_bytes and _plain(prompt):
                    found = self._encode(prompt)
                else:
                    found = await asyncio.get_running_loop().run_in_executor(self._threads, self._encode, prompt)
                own = found.ids if found.single and not found.why else None
                if self.parity.trusted:
                    return replace(found, own=own)
                why = Why.PARITY
            except Unrenderable as unrenderable:
                why = unrenderable.why
        raws = (
            [prompt.raw]
            if isinstance(prompt, ChatInput)
            else [text.encode("utf-8", "replace") for text in prompt.texts]
        )
        estimated = self._estimated(raws, why)
        return estimated if own is None else replace(estimated, own=own)

    def _load(self) -> tuple[Loaded, Encoder, Renderer]:
        loaded = load(self._settings, self._model)
        return loaded, Encoder(loaded.tokenizer, self._model), Renderer(loaded, self._settings)

    def _obstacle(self, prompt: ChatInput | TextInput) -> Why | None:
        """What is known before any work to make the ids unknowable."""
        if self._loaded is None:
            return Why.NO_TOKENIZER
        if prompt.truncated:
            return Why.TRUNCATED
        if self._loaded.own_tokenizer or (self._loaded.own_renderer and isinstance(prompt, ChatInput)):
            return Why.RENDERER
        return None

    def _encode(self, prompt: ChatInput | TextInput) -> Prompt:
        """Blocking. Raises Unrenderable, and nothing else."""
        assert self._encoder is not None
        assert self._renderer is not None
        try:
            texts = prompt.texts if isinstance(prompt, TextInput) else (self._renderer.render(prompt),)
            if sum(map(len, texts)) > MAX_TEXT:
                raise Unrenderable(Why.TOO_LONG)
            return _exact(self._encoder.encode(texts, add_special_tokens=prompt.add_special_tokens))
        except Unrenderable:
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in the tokenizer's Rust code is no Exception
            self._log_failure(type(error).__name__)
            raise Unrenderable(Why.FAILED) from error

    def _log_failure(self, name: str) -> None:
        """The first of each kind; a client could send the next every millisecond. The prompt is not logged."""
        if name not in self._failures:
            self._failures.add(name)
            log.warning("model %s: a prompt could not be tokenized: %s; further ones are counted", self._model, name)

    def _estimated(self, raws: Sequence[bytes], why: str) -> Prompt:
        self._observer.tokens_estimated(self._model, why)
        prompt = estimate(raws[0], why)
        if len(raws) == 1:
            return prompt
        return replace(prompt, count=max(1, sum(map(len, raws)) // BYTES_PER_TOKEN), single=False)


def _exact(ids: Sequence[array[int]]) -> Prompt:
    return Prompt(ids=ids[0], count=sum(map(len, ids)), exact=True, single=len(ids) == 1)


def _size(prompt: ChatInput | TextInput) -> int:
    """Bytes, about: characters for texts, since to count their bytes would be to encode them."""
    return len(prompt.raw) if isinstance(prompt, ChatInput) else sum(map(len, prompt.texts))


def _plain(prompt: ChatInput | TextInput) -> bool:
    """No argument of the template could be long: it is not among the measured bytes, yet a template may print it."""
    if isinstance(prompt, TextInput):
        return True
    return not any(isinstance(value, (str, list, dict)) and len(value) > 0 for value in prompt.template_kwargs.values())
