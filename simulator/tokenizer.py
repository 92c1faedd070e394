"""Text to token ids and back: a Hugging Face tokenizer's files, or bytes where there is none.

``build_tokenizer`` makes a small real tokenizer, so that a demo or a test needs no download. Knows nothing of blocks,
of time or of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from simulator.corpus import CORPUS
from simulator.template import CHATML, ChatTemplate

VOCABULARY = 1024
"""Tokens of a built tokenizer: the corpus is too small to yield many more merges that are worth a name."""

BOS, EOS, START, END = "<|begin_of_text|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tools>", "</tools>")

OUTPUT_CANDIDATES = 4096
"""Ids that are looked at for the answer's text: real vocabularies have 150,000, and each costs a decode."""

BYTES = {START: 256, END: 257, EOS: 258}
"""Ids that the byte-level fallback gives to the specials, behind the 256 bytes."""


class Words(Protocol):
    """What an engine needs of a tokenizer."""

    @property
    def template(self) -> ChatTemplate: ...

    @property
    def eos(self) -> int:
        """The id that ends a generation."""
        ...

    @property
    def size(self) -> int:
        """Ids are 0..size-1."""
        ...

    @property
    def pieces(self) -> Sequence[tuple[int, str]]:
        """Ids that are whole pieces of plain text, each with its text: what answers are made of."""
        ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ByteWords:
    """One token for each byte of UTF-8; ChatML's two tags are one token each."""

    eos = BYTES[END]
    size = 259

    def __init__(self) -> None:
        self.template = ChatTemplate()
        # Mostly letters, some blanks: text that looks like text and is one byte a token.
        self.pieces = [(ord(letter), letter) for letter in "etaoin shrdlu cmfw ypvbgk "]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = []
        # Parts between ``<|im_start|>`` and ``<|im_end|>``; a split keeps no separator, so it goes in before each part.
        for index, opened in enumerate(text.split(START)):
            if index:
                ids.append(BYTES[START])
            for place, part in enumerate(opened.split(END)):
                if place:
                    ids.append(BYTES[END])
                ids.extend(part.encode(errors="replace"))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")


class FileWords:
    """A folder with tokenizer.json and, for chat, chat_template.jinja or tokenizer_config.json.

    Raises FileNotFoundError if the folder has no tokenizer.json.
    """

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder)
        if not (path / "tokenizer.json").is_file():
            raise FileNotFoundError(f"{path}: no tokenizer.json in it; give a folder that has one, or none at all")
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        config = _read_json(path / "tokenizer_config.json")
        special = {name: _content(config[name]) for name in ("bos_token", "eos_token", "pad_token") if config.get(name)}
        template = path / "chat_template.jinja"
        source = template.read_text() if template.is_file() else config.get("chat_template")
        self.template = ChatTemplate(source if isinstance(source, str) else CHATML, special)
        self.size = int(self._tokenizer.get_vocab_size())
        eos = self._tokenizer.token_to_id(special.get("eos_token", END))
        self.eos = eos if eos is not None else self.size - 1

    @cached_property
    def pieces(self) -> Sequence[tuple[int, str]]:
        found = []
        for token in range(min(self.size, OUTPUT_CANDIDATES)):
            text = self._tokenizer.decode([token], skip_special_tokens=True)
            # Whole words, blank included: an answer looks like text, and is split again into about as many tokens.
            if len(text) > 2 and text[0] == " " and text[1:].isalpha() and text.isascii():
                found.append((token, text))
        return found or [(0, "")]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # The batch call lets other threads run meanwhile, and keeps no offsets; ``encode`` does neither.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def load_words(folder: str | None) -> Words:
    """The tokenizer of a folder, or bytes if there is none."""
    return FileWords(folder) if folder else ByteWords()


def build_tokenizer(folder: str | Path, vocabulary: int = VOCABULARY, bos: bool = True) -> Path:
    """Write a small byte-level BPE tokenizer in Hugging Face's layout to ``folder`` (made if missing); returns it.

    Deterministic: the same arguments give the same files. ``vocabulary``: 512..2048 tokens. ``bos``: text encoded with
    special tokens begins with one, as Llama's does (chat never does: vLLM encodes a rendered chat without).
    ``transformers.AutoTokenizer.from_pretrained(folder)`` loads it offline.
    """
    if not 512 <= vocabulary <= 2048:
        raise ValueError(f"vocabulary: {vocabulary} must be in 512..2048")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(text, special=True, normalized=False) for text in (EOS, START, END, BOS)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TOOL_TAGS),
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TOOL_TAGS])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 131072,
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": EOS,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    _write_json(path / "tokenizer_config.json", config)
    _write_json(path / "special_tokens_map.json", {name: config[name] for name in config if name.endswith("_token")})
    (path / "chat_template.jinja").write_text(CHATML)
    return path


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _content(token: str | Mapping[str, str]) -> str:
    """A special token's text: older files wrap it in an object."""
    return token if isinstance(token, str) else str(token["content"])
