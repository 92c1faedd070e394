"""Compiles modules by mypyc into a wheel for one platform; the sources are those of the pure wheel.

Off by default: ``HATCH_BUILD_HOOKS_ENABLE=1 python -m pip wheel --no-deps .``, or ``make wheel``. The modules are
listed in pyproject.toml. Nothing is written into the checkout, where an editable install would import it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "kvgate"
"""The library with the code of all modules is named after it. mypyc takes no dotted name for several C files."""


class CompiledModules(BuildHookInterface[Any]):
    """``modules`` of the hook's configuration: files and globs, relative to the root. ``except``: files of those that
    stay as they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # there the sources are what runs
            return
        compiler_needed()
        self._folder = TemporaryDirectory(prefix="kvgate-compiled-")
        for path in compiled(self.modules(), Path(self._folder.name)):
            build_data["force_include"][str(path)] = str(path.relative_to(Path(self._folder.name) / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()

    def modules(self) -> list[str]:
        """Paths relative to the root, in order. Raises ValueError where a pattern fits no file."""
        root, left_out = Path(self.root), set(self.config.get("except", ()))
        found = set()
        for pattern in self.config["modules"]:
            paths = {str(path.relative_to(root)) for path in root.glob(pattern)}
            if not paths:
                raise ValueError(f"no module fits {pattern!r}")
            found |= paths
        if gone := left_out - found:
            raise ValueError(f"no module would be compiled but for 'except': {', '.join(sorted(gone))}")
        return sorted(path for path in found - left_out if not path.endswith("__init__.py"))


def compiler_needed() -> None:
    """Raises RuntimeError, in words for who builds, if there is no C compiler or no header of Python."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    pure = "Without HATCH_BUILD_HOOKS_ENABLE the pure wheel is built, which needs no compiler."
    if shutil.which(command) is None:
        raise RuntimeError(f"no C compiler {command!r}, which compiled modules need; CC may name another. {pure}")
    if not header.exists():
        raise RuntimeError(f"no {header}, which compiled modules need: install Python's headers. {pure}")


def compiled(modules: Sequence[str], folder: Path) -> list[Path]:
    """Compile modules of the working directory; returns the libraries, below ``folder``/lib as in the wheel."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    extensions = mypycify(
        [*modules, f"--cache-dir={folder / 'cache'}"],
        opt_level="2",
        debug_level="0",
        multi_file=True,  # a C file for each module, so that all processors compile
        group_name=GROUP,
        target_dir=str(folder / "c"),
    )
    build = build_ext(Distribution({"name": "kvgate", "ext_modules": extensions}))
    build.build_lib, build.build_temp = str(folder / "lib"), str(folder / "objects")
    build.ensure_finalized()
    build.build_extensions = lambda: _side_by_side(build)
    build.run()
    return sorted((folder / "lib").rglob("*.so"))


def _side_by_side(build: Any) -> None:
    """Build all extensions, with a compiler for each processor: setuptools has one for each extension, and the code of
    all modules is in one."""
    compile_ = build.compiler.compile

    def each(sources: Sequence[str], **options: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [one for made in pool.map(lambda source: compile_([source], **options), sources) for one in made]

    build.compiler.compile = each
    for extension in build.extensions:
        build.build_extension(extension)
