"""The folder in the hub's cache with a repository's tokenizer, as ``transformers`` would find its files.

One question to the hub says which commit and which files there are; what is cached of that commit is not asked for
again. Where anything is unclear the answer is None, and ``transformers`` finds out, or says, what is wrong.
"""

from __future__ import annotations

from pathlib import Path

TEMPLATES = "additional_chat_templates"
FILES = frozenset(
    {
        *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        "chat_template.jinja",
    }
)
"""Files of a repository that ``transformers`` reads for a tokenizer whose tokenizer.json says everything."""

NEEDED = frozenset({"config.json", "tokenizer.json"})
"""Without the first one it reads no repository, other than a folder."""


def folder_of(repository: str, revision: str | None) -> str | None:
    """All of ``FILES`` that ``repository`` has, downloaded. ``revision``: a branch, tag or commit; None: the main
    branch. Blocking."""
    from huggingface_hub import HfApi, hf_hub_download, is_offline_mode, snapshot_download  # a fifth of a second

    try:
        if is_offline_mode():  # what is not in the cache then does not exist for the library, either
            folder = snapshot_download(repository, revision=revision, local_files_only=True)
            return folder if {path.name for path in Path(folder).iterdir()} >= NEEDED else None
        found = HfApi().model_info(repository, revision=revision)
        names = {file.rfilename for file in found.siblings or ()}
        if not names >= NEEDED or any(name.startswith(f"{TEMPLATES}/") for name in names):
            return None
        paths = [hf_hub_download(repository, name, revision=found.sha) for name in sorted(FILES & names)]
        folders = {str(Path(path).parent) for path in paths}
        return folders.pop() if len(folders) == 1 else None
    except Exception:  # no connection, no such repository, no access, no id of one
        return None
