"""Models whose prompts vLLM does not render with a chat template, or does not tokenize with ``transformers``.

Rules: a form of prompts, chats or texts, that cannot be tokenized here as vLLM 0.32 does it has an ``Obstacle`` with
the reason and the remedy. The list is vLLM's own (``vllm/config/model.py``, ``vllm/tokenizers/registry.py``).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.tokens.agreement import Form
from gateway.tokens.reasons import Why


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of models. It is recognised by any of ``types`` and ``architectures`` of config.json, or ``files`` of the
    repository.

    ``way``: how vLLM tokenizes its prompts; completes "its chats are". ``texts``: that holds for texts, too. ``extra``:
    the extra of kvgate that installs ``module``, which tokenizes them here; empty: there is none. ``tokenize``: vLLM's
    ``/tokenize`` gives the same ids for a chat as the chat route, unless its messages hold one of ``differing_words``.
    """

    name: str
    way: str
    types: frozenset[str] = frozenset()
    architectures: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()
    texts: bool = False
    extra: str = ""
    module: str = ""
    tokenize: bool = True
    differing_words: tuple[bytes, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether its prompts can be tokenized here."""
        return bool(self.module) and importlib.util.find_spec(self.module) is not None


IN_CODE = "rendered by code of vLLM's own"

FAMILIES = (
    Family(
        "gpt-oss",
        "rendered by openai-harmony",
        types=frozenset({"gpt_oss"}),
        extra="harmony",
        module="openai_harmony",
        tokenize=False,  # there vLLM 0.32 renders chats with the chat template, which gives another text
    ),
    Family(
        "Mistral (tekken)",
        "tokenized by mistral-common",
        files=("tekken.json", "tokenizer.model.v3", "tokenizer.model.v7"),
        texts=True,
        extra="mistral",
        module="mistral_common",
        differing_words=(b"tool_call",),  # vLLM 0.32 shortens their ids on the chat route only
    ),
    Family("DeepSeek V3.2", IN_CODE, architectures=frozenset({"DeepseekV32ForCausalLM"})),
    Family(
        "DeepSeek V4",
        IN_CODE,
        architectures=frozenset(
            {"DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM"}
        ),
    ),
    Family("Kimi K3", IN_CODE, architectures=frozenset({"KimiK3ForConditionalGeneration"})),
    Family(
        "Inkling",
        IN_CODE,
        architectures=frozenset({"InklingForCausalLM", "InklingForConditionalGeneration"}),
    ),
    Family(
        "Kimi-Audio",
        "tokenized by code of vLLM's own",
        architectures=frozenset({"MoonshotKimiaForCausalLM"}),
        texts=True,
    ),
)

RENDERS_ITSELF = Family("a chat of this tokenizer", "rendered by its own apply_chat_template")
"""Python code in the model's repository. It calls the renderer of the installed ``transformers``, whose version differs
from the engines'."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why prompts of a form are not tokenized here. ``said``: completes "chats are estimated: ".

    ``engine_knows``: an engine's ``/tokenize`` gives the ids.
    """

    why: Why
    said: str
    remedy: str
    engine_knows: bool


def family_of(config: Mapping[str, Any], has: Callable[[str], bool]) -> Family | None:
    """The family of a model with this config.json; None: an ordinary model. ``has``: whether the repository has a
    file."""
    named = config.get("architectures")
    architectures = {name for name in named if isinstance(name, str)} if isinstance(named, list) else set()
    kind = config.get("model_type")
    for family in FAMILIES:
        if kind in family.types or not architectures.isdisjoint(family.architectures) or any(map(has, family.files)):
            return family
    return None


def obstacles(family: Family | None, *, template: bool) -> dict[Form, Obstacle]:
    """Which forms of prompts cannot be tokenized here. ``template``: there is a chat template."""
    if family is None:
        if template:
            return {}
        said = "the tokenizer has no chat template"
        remedy = "set chat_template to the file that the engine has; nothing, if it serves no chats"
        return {Form.CHAT: Obstacle(Why.NO_TEMPLATE, said, remedy, engine_knows=True)}
    if family.installed:
        return {}
    said = f"{family.name} is {family.way}"
    if family.extra:
        said, remedy = f"{said}, which is not installed", f"pip install 'kvgate[{family.extra}]'"
    else:
        remedy = "let requests to /tokenize through to the engines, and leave tokens.ask on"
    found = Obstacle(Why.RENDERER, said, remedy, engine_knows=family.tokenize)
    return dict.fromkeys(Form if family.texts else (Form.CHAT,), found)
