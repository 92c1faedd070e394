"""Loads a tokenizer from a folder or the hub, and finds out from its files how vLLM renders its model's chats.

Rules: ``transformers`` is imported here only, and only for a tokenizer that ``file_tokenizer`` cannot read (it takes
seconds). Everything that can go wrong is a ``ConfigError`` that names the model, the path and the remedy. Blocking:
call it in a thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from gateway.errors import ConfigError
from gateway.tokens.agreement import Form
from gateway.tokens.content_format import variables_of
from gateway.tokens.families import RENDERS_ITSELF, Family, Obstacle, family_of, obstacles
from gateway.tokens.file_rules import is_otherwise
from gateway.tokens.file_tokenizer import FileTokenizer, read_folder
from gateway.tokens.hub import Files
from gateway.tokens.native import Native
from gateway.tokens.settings import TokenSettings

_ONE_AT_A_TIME = threading.Lock()
"""transformers and its packages put another module in their own place while they are imported. A thread that waits for
the import of another one gets the first, in which names are missing."""

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True, slots=True)
class Loaded:
    """``tokenizer``: of ``transformers``, or a ``FileTokenizer``; None: ``native`` tokenizes plain texts, too.
    ``template``: the configured file's text, or None.

    ``toolless_template``: a processor's template, which vLLM uses for chats without tools. ``family``: set if vLLM does
    not render the model's chats with a template, or does not tokenize with ``transformers``. ``obstacles``: forms of
    prompts that cannot be tokenized here, with the reason. ``native``: the family's own tokenizer.
    """

    tokenizer: Any
    template: str | None
    toolless_template: str | None
    family: Family | None
    obstacles: Mapping[Form, Obstacle]
    native: Native | None = None


def load(settings: TokenSettings, model: str) -> Loaded:
    """Load what ``settings.tokenizer`` names; it must not be None.

    Raises:
        ConfigError: the tokenizer or the template file cannot be loaded.
    """
    template = None if settings.chat_template is None else _read_template(settings.chat_template, model)
    files = Files(settings.tokenizer or "", settings.revision)
    settings = replace(settings, revision=files.revision)
    family = family_of(_json_file(files, "config.json"), lambda name: files.path(name) is not None)
    tokenizer = native = None
    renders_itself = False
    try:
        if family is not None and family.installed:
            with _ONE_AT_A_TIME:
                native = _load_native(family.module, settings)
        if native is None or not native.texts:
            tokenizer = _load_by_file(files, settings)
            if tokenizer is None:
                if files.cached and files.path("config.json") is None:
                    raise FileNotFoundError("the hub cannot be reached, and it is not in the hub's cache")
                tokenizer, renders_itself = _load_by_library(settings, cached=files.cached)
    except Exception as error:  # a repository's files can make it raise anything
        raise ConfigError(_refusal(settings, model, family, error)) from error
    if family is None and renders_itself:
        family = RENDERS_ITSELF
    toolless = _processor_template(files)
    has_template = bool(template or toolless or getattr(tokenizer, "chat_template", None))
    return Loaded(
        tokenizer=tokenizer,
        template=template,
        toolless_template=toolless,
        family=family,
        obstacles=obstacles(family, template=has_template),
        native=native,
    )


def _load_by_file(files: Files, settings: TokenSettings) -> FileTokenizer | None:
    """None: only the library knows what it is."""
    if settings.trust_remote_code or is_otherwise(files.source):  # a repository's own code may do anything
        return None
    folder = files.folder()
    return None if folder is None else read_folder(folder)


def _load_by_library(settings: TokenSettings, *, cached: bool) -> tuple[Any, bool]:
    """A tokenizer of ``transformers``, and whether it renders chats in code of its own. ``cached``: the hub is not
    asked. May raise any exception."""
    with _ONE_AT_A_TIME:
        from transformers import AutoTokenizer, PreTrainedTokenizerBase

        library = PreTrainedTokenizerBase.apply_chat_template
        tokenizer = AutoTokenizer.from_pretrained(
            settings.tokenizer or "",
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
            local_files_only=cached,
        )
    return tokenizer, getattr(type(tokenizer), "apply_chat_template", None) is not library


def _load_native(module: str, settings: TokenSettings) -> Native:
    """The tokenizer for a family's ``module``, which is imported only if it is wanted: it may not be installed. May
    raise any exception, as its files can cause any."""
    if module == "openai_harmony":
        from gateway.tokens.harmony import Harmony

        return Harmony(settings.memory_bytes)
    from gateway.tokens.mistral import Mistral

    return Mistral(settings)


def _read_template(path: str, model: str) -> str:
    try:
        template = Path(path).read_text(encoding="utf-8")
        variables_of(template)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"model {model}: chat_template: {path!r} cannot be read: {error}", param="chat_template"
        ) from error
    except RecursionError as error:
        raise ConfigError(
            f"model {model}: chat_template: {path!r} is nested too deeply to be compiled; give the file that the "
            "engines have",
            param="chat_template",
        ) from error
    except TemplateSyntaxError as error:  # else every chat would be estimated, which only a counter would show
        raise ConfigError(
            f"model {model}: chat_template: {path!r} is no jinja template: line {error.lineno}: {error.message}; "
            "give the file that the engines have",
            param="chat_template",
        ) from error
    return template


def _refusal(settings: TokenSettings, model: str, family: Family | None, error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    path = settings.tokenizer or ""
    if Path(path).is_dir():
        remedy = "it must hold tokenizer.json and tokenizer_config.json, as the engines' model folder does"
    elif path.startswith((".", "/", "~")):
        remedy = "there is no such folder"
    else:
        remedy = "give a folder, or a hub id that this machine can reach or has downloaded"
    if family is not None and family.texts and family.extra and not family.installed:
        remedy = f"{family.name} is {family.way}: pip install 'kvgate[{family.extra}]'"
    if "trust_remote_code" in text or "requires you to execute" in text:
        remedy = "it brings Python code of its own: set trust_remote_code: true if you trust it"
    return (
        f"model {model}: tokenizer: {path!r} cannot be loaded: {text.splitlines()[0]}; {remedy} "
        "(without a tokenizer, lengths and prefixes are estimated from bytes)"
    )


def _processor_template(files: Files) -> str | None:
    """Of a model with a processor (for images, ...) whose template is in a file that tokenizers do not read."""
    if all(files.path(name) is None for name in PROCESSOR_FILES):
        return None
    if files.path("chat_template.jinja") is not None:
        return None  # the tokenizer has read it
    template = _json_file(files, "chat_template.json").get("chat_template")
    return template if isinstance(template, str) else None


def _json_file(files: Files, name: str) -> Mapping[str, Any]:
    path = files.path(name)
    if path is None:
        return {}
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
