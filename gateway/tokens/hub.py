"""The files of a model's folder or repository, as ``transformers`` would find them.

Of a repository the hub is asked which commit it is, and which files there are. What is cached of that commit is
not asked for again. A hub that cannot be reached is not tried for each file, which would take minutes: then there is
what is in the cache.
"""

from __future__ import annotations

import os
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


class Files:
    """``source``: a folder, or a hub id of ``revision``: a branch, tag or commit; None: the main branch. Blocking.

    ``revision``: the commit, where the hub has said it. ``cached``: there is only what is in the cache.
    """

    def __init__(self, source: str, revision: str | None) -> None:
        self.source = source
        self.revision = revision
        self.cached = False
        self._names: frozenset[str] | None = None  # None: not known
        if not os.path.isdir(source):
            self._ask()

    def path(self, name: str) -> str | None:
        """Where the file ``name`` is; None if there is none, or if that cannot be found out now."""
        if os.path.isdir(self.source):
            path = os.path.join(self.source, name)
            return path if os.path.isfile(path) else None
        if self._names is not None and name not in self._names:
            return None
        from huggingface_hub import hf_hub_download

        try:
            return hf_hub_download(self.source, name, revision=self.revision, local_files_only=self.cached)
        except (OSError, ValueError):  # no such repository, revision or file, no access, no connection; or no hub id
            return None

    def folder(self) -> str | None:
        """The folder with all of ``FILES`` that there are; None: only the library knows, or says what is wrong."""
        if os.path.isdir(self.source):
            return self.source
        if not self.cached and (self._names is None or any(name.startswith(f"{TEMPLATES}/") for name in self._names)):
            return None
        paths = {name: self.path(name) for name in FILES}
        folders = {str(Path(path).parent) for path in paths.values() if path is not None}
        return folders.pop() if len(folders) == 1 and all(paths[name] is not None for name in NEEDED) else None

    def _ask(self) -> None:
        from huggingface_hub import HfApi, hf_hub_download, is_offline_mode  # takes a fifth of a second
        from huggingface_hub.errors import HfHubHTTPError

        if is_offline_mode():
            self.cached = True
            return
        try:
            found = HfApi().model_info(self.source, revision=self.revision, timeout=PATIENCE)
            names = frozenset(file.rfilename for file in found.siblings or ())
            if found.sha != self.revision and "config.json" in names:
                # Notes in the cache which commit the branch is: one that is asked for by its number is not.
                hf_hub_download(self.source, "config.json", revision=self.revision)
        except (HfHubHTTPError, ValueError):  # no such repository, no access, or no hub id: the library says which
            return
        except Exception:  # it cannot be reached, which each version of the library says in its own way
            self.cached = True
        else:
            self.revision, self._names = found.sha, names
