"""The environment that the libraries for tokenizers need. A process's entry point sets it: it is the process's."""

from __future__ import annotations

from collections.abc import MutableMapping


def set_environment(environ: MutableMapping[str, str]) -> None:
    """Set it in ``environ`` (``os.environ``), before the first prompt."""
    # ``tokenizers`` reads it at each call. With both cores busy, a call from the loop with two short texts would wait
    # up to a quarter of a second for the library's threads, behind other prompts' texts. Our own threads are enough.
    environ["TOKENIZERS_PARALLELISM"] = "false"
    # Else ``transformers`` warns at each start that PyTorch is missing, which is not needed here.
    environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
