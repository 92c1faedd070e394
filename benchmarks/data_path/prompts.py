"""What is asked: chats of a given size, made of text that is like no other or known but for its last 64 bytes.

Text is Python's own library's, cut into chunks of 256 and of 32 bytes that begin with a blank and end with a word, so
that a chat's tokens are the sum of its chunks' and every answer can report the right number. A message begins with two
small chunks (270 million pairs), so that two fresh ones have not even their first block in common. Trained on the same
text is a tokenizer with as many bytes a token as real ones have; both are made once and kept.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.data_path.engines import MODEL, ORDERS
from simulator.template import CHATML, ChatTemplate
from simulator.tokenizer import BOS, END, EOS, START, build_tokenizer

SMALL, LARGE = 32, 256
CHUNKS = 16_384
"""Of each size: 4 MB of text."""

VOCABULARY = 32_000
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Llama 3's tokenizer splits."""

VERSION = "1"
"""Of what is kept: another one is made anew."""

LONG = 100_000
"""Tokens of the longest prompt."""

KIB = 1024


@dataclass(frozen=True, eq=False)
class Text:
    """``small`` and ``large``: chunks end to end, in files; with the tokens of each. ``folder``: the tokenizer."""

    folder: Path
    small: Path
    large: Path
    small_tokens: tuple[int, ...]
    large_tokens: tuple[int, ...]

    def words(self, chance: random.Random, size: int) -> str:
        """A message of ``size`` bytes: 64, or 64 more than a multiple of 256."""
        small, large = _read(self.small), _read(self.large)
        cut = [small[at * SMALL : (at + 1) * SMALL] for at in chance.choices(range(CHUNKS), k=2)]
        cut += [large[at * LARGE : (at + 1) * LARGE] for at in chance.choices(range(CHUNKS), k=size // LARGE)]
        return "".join(cut)


@cache
def _read(path: Path) -> str:
    return path.read_text()


def kept() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgate" / f"data-path-{VERSION}"


def text() -> Text:
    """What was made before, or made now (half a minute)."""
    home = kept()
    if not (home / "tokens.json").exists():
        shutil.rmtree(home, ignore_errors=True)
        _make(home)
    tokens = json.loads((home / "tokens.json").read_text())
    return Text(
        home / "tokenizer", home / "small.txt", home / "large.txt", tuple(tokens["small"]), tuple(tokens["large"])
    )


def sizes(kib: int) -> list[int]:
    """Bytes of a chat's messages: a system prompt, turns, and a last question of 64 bytes. About ``kib`` in all."""
    if kib <= 2:
        return [576, 576, 576, 64]
    turn = (576, 1344) if kib <= 16 else (1088, 3136)
    system = turn[1]
    turns = (kib * KIB - system - 256) // (sum(turn) + 80)
    return [system, *turn * turns, 64]


@dataclass(frozen=True)
class Chat:
    """``messages`` as (role, text); in the place of text that is new each time, the number of its bytes."""

    messages: Sequence[tuple[str, str | int]]
    tokens: int
    """Of all that does not change from one request to the next, the template included."""

    @property
    def known(self) -> list[dict[str, str]]:
        """The messages that are always the same."""
        return [{"role": role, "content": text} for role, text in self.messages if isinstance(text, str)]

    def prefix(self, text: Text) -> list[int]:
        """Their token ids."""
        return encoder(text).encode(render(self.known), add_special_tokens=False).ids


def chat(text: Text, lengths: Sequence[int], fresh: bool, seed: int = 4) -> Chat:
    chance = random.Random(seed)
    messages: list[tuple[str, str | int]] = []
    for number, size in enumerate(lengths):
        role = "system" if number == 0 else ("assistant", "user")[number % 2]
        last = number == len(lengths) - 1
        messages.append((role, size if fresh or last else text.words(chance, size)))
    whole = [{"role": role, "content": "" if isinstance(content, int) else content} for role, content in messages]
    rendered = render(whole, ask=True)
    return Chat(messages, len(encoder(text).encode(rendered, add_special_tokens=False).ids))


def render(messages: Sequence[dict[str, str]], *, ask: bool = False) -> str:
    """The text that is tokenized; ``ask``: up to where the answer begins."""
    return ChatTemplate(CHATML, {}).render(messages, add_generation_prompt=ask)


@cache
def encoder(text: Text) -> Tokenizer:
    return Tokenizer.from_file(str(text.folder / "tokenizer.json"))


def long_sizes(text: Text) -> list[int]:
    """Of a chat of ``LONG`` tokens."""
    lengths = sizes(128)
    each = sum(text.large_tokens) / CHUNKS / LARGE
    turns = round(LONG / each / (1088 + 3136))
    return [lengths[0], *(1088, 3136) * turns, 64]


def plan(text: Text, asked: Chat, *, stream: bool, orders: str = "", answer_tokens: int = 64) -> str:
    """``drive.lua``'s plan, as Lua: the body cut into what stays, and numbers of bytes that are new each time."""
    pieces: list[str | int] = []
    running = f'{{"model":"{MODEL}","max_tokens":{answer_tokens},"stream":{str(stream).lower()},"messages":['
    for number, (role, content) in enumerate(asked.messages):
        running += f'{"," if number else ""}{{"role":"{role}","content":"'
        if isinstance(content, int):
            pieces += [running, content]
            running = ""
        else:
            running += content
        running += '"}'
    pieces.append(running + f'],"{ORDERS}":"{orders} tokens=')
    told = ", ".join(_lua(piece) if isinstance(piece, str) else str(piece) for piece in pieces)
    return (
        f"return {{small={_lua(str(text.small))}, large={_lua(str(text.large))}, stream={str(stream).lower()},\n"
        f"tokens={asked.tokens}, pieces={{{told}}},\n"
        f"small_tokens={_lua(bytes(text.small_tokens))}, large_tokens={_lua(bytes(text.large_tokens))}}}\n"
    )


def _lua(value: str | bytes) -> str:
    data = value.encode() if isinstance(value, str) else value
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03d}" for b in data) + '"'


def _make(home: Path) -> None:
    folder = build_tokenizer(home / "tokenizer")
    source = list(_words())
    trained = _train(" ".join(source))
    trained.save(str(folder / "tokenizer.json"))
    chance = random.Random(4)
    tokens = {}
    for name, size in (("small", SMALL), ("large", LARGE)):
        chunks = [_chunk(source, chance.randrange(len(source) - size), size) for _ in range(CHUNKS)]
        (home / f"{name}.txt").write_text("".join(chunks))
        tokens[name] = [len(made.ids) for made in trained.encode_batch_fast(chunks, add_special_tokens=False)]
    (home / "tokens.json").write_text(json.dumps(tokens))


def _words() -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.glob("*.py")) + sorted(library.glob("[a-s]*/*.py")):
        if path.parent.name not in ("site-packages", "test"):
            for found in re.finditer(r"[A-Za-z][A-Za-z'-]{0,14}[.,;:)]?", path.read_text(errors="replace")):
                yield found[0]


def _chunk(source: Sequence[str], at: int, size: int) -> str:
    chunk = ""
    while len(chunk) < size:
        chunk += " " + source[at]
        at += 1
    # Cut within a word if need be, but never to end with a blank.
    return chunk[:size] if chunk[size - 1] != " " else chunk[: size - 1] + "."


def _train(source: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in (EOS, START, END, BOS)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([source], trainer)
    return tokenizer
