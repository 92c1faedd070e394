"""The files of a model's folder or repository, as ``transformers`` would find them.

Of a repository the hub is asked which commit it is, and which files there are. What is cached of that commit is
not asked for again. A hub that cannot be reached, or answers that it cannot serve, is not tried for each file, which
would take minutes: then there is what is in the cache.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

TEMPLATES = "additional_chat_templates"
FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "chat_template.jinja",
)
"""Files that ``transformers`` reads for a tokenizer whose tokenizer.json says everything."""

NEEDED = ("config.json", "tokenizer.json")
"""Without the first one it reads no repository, other than a folder."""

PATIENCE = 10.0
"""Seconds for the hub to answer: the library's own for a file."""

TOO_MANY = 429
"""The status of an answer to too many requests: the library would wait and try again, for each file."""

COMMIT = re.compile(r"[0-9a-f]{40}")
"""A revision that is a commit, and not a branch or a tag."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the hub has said. ``commit``: None: nothing. ``names``: of all files; None: not known. ``away``: it cannot
    answer now."""

    commit: str | None = None
    names: frozenset[str] | None = None
    away: bool = False


class Files:
    """``source``: a folder, or a hub id of ``revision``: a branch, tag or commit; None: the main branch. Blocking.

    The hub is asked once, and not before it is needed: what is cached of a commit never changes.
    """

    def __init__(self, source: str, revision: str | None) -> None:
        self.source = source
        self._revision = revision
        self._is_folder = os.path.isdir(source)
        self._is_commit = revision is not None and COMMIT.fullmatch(revision) is not None

    @cached_property
    def revision(self) -> str | None:
        """The commit, where the hub has said it."""
        return self._revision if self._is_folder or self._is_commit else self._found.commit or self._revision

    @property
    def cached(self) -> bool:
        """Whether there is only what is in the cache."""
        return not self._is_folder and self._found.away

    def path(self, name: str) -> str | None:
        """Where the file ``name`` is; None if there is none, or if that cannot be found out now."""
        if self._is_folder:
            path = os.path.join(self.source, name)
            return path if os.path.isfile(path) else None
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        try:
            if self._is_commit and (known := try_to_load_from_cache(self.source, name, revision=self.revision)):
                return known if isinstance(known, str) else None  # else it is known that there is none
            if self._found.names is not None and name not in self._found.names:
                return None
            return hf_hub_download(self.source, name, revision=self.revision, local_files_only=self.cached)
        except (OSError, ValueError):  # no such repository, revision or file, no access, no connection; or no hub id
            return None

    def folder(self) -> str | None:
        """The folder with all of ``FILES`` that there are; None: only the library knows, or says what is wrong."""
        if self._is_folder:
            return self.source
        names = self._found.names
        if not self.cached and (names is None or any(name.startswith(f"{TEMPLATES}/") for name in names)):
            return None
        paths = {name: self.path(name) for name in FILES}
        folders = {str(Path(path).parent) for path in paths.values() if path is not None}
        return folders.pop() if len(folders) == 1 and all(paths[name] is not None for name in NEEDED) else None

    @cached_property
    def _found(self) -> Found:
        from huggingface_hub import HfApi, hf_hub_download, is_offline_mode  # takes a fifth of a second
        from huggingface_hub.errors import HfHubHTTPError

        if is_offline_mode():
            return Found(away=True)
        try:
            found = HfApi().model_info(self.source, revision=self._revision, timeout=PATIENCE)
            names = frozenset(file.rfilename for file in found.siblings or ())
            if found.sha != self._revision and "config.json" in names:
                # Notes in the cache which commit the branch is: one that is asked for by its number is not.
                hf_hub_download(self.source, "config.json", revision=self._revision)
        except HfHubHTTPError as error:  # where there is no such repository, or no access, the library says so
            status = error.response.status_code
            return Found(away=status >= 500 or status == TOO_MANY)
        except ValueError:  # no hub id: the library says so
            return Found()
        except Exception:  # it cannot be reached, which each version of the library says in its own way
            return Found(away=True)
        return Found(found.sha, names)
