"""Runs scripts of this folder that need vLLM and no engine: run by the engines' Python, not by pytest.

    python vllm_forks.py

Each line of the input is a job: ``{"script", "arguments", "environ", "folder"}``. The script runs in a fork of this
process, which has imported vLLM, with the files ``in``, ``out`` and ``err`` of the folder; its exit code is a line of
the output. vLLM's import takes longer than all else that they do.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import naming
import native_rendering
import rendering

WARM = (naming, native_rendering, rendering)
"""For what they import: each script is run anew."""


def do(job: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        for number, (name, flags) in enumerate((("in", os.O_RDONLY), ("out", os.O_WRONLY), ("err", os.O_WRONLY))):
            os.dup2(os.open(Path(job["folder"]) / name, flags | os.O_CREAT), number)
        os.environ |= job["environ"]
        sys.argv = [job["script"], *job["arguments"]]
        runpy.run_path(job["script"], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        print(do(json.loads(line)), flush=True)
