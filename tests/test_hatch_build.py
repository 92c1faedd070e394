"""Covers: hatch_build.py, gateway/core/build.py.

Which modules a wheel has compiled, what they may not have in them, and that a run has all of them compiled or none.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from gateway.core.build import BUILD

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONFIG = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]

_spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
assert _spec is not None
assert _spec.loader is not None
hatch_build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hatch_build)


def hook(root: Path = ROOT, **config):
    return hatch_build.CompiledModules(str(root), {**CONFIG, **config}, None, None, "", "wheel")


def test_all_listed_modules_are_compiled_or_none_is():
    for path in hook().modules():
        module = import_module(path.removesuffix(".py").replace("/", "."))
        suffix = ".py" if BUILD == "pure Python" else sysconfig.get_config_var("EXT_SUFFIX")
        assert module.__file__.endswith(suffix), path


def test_what_stays_as_it_is_stays_so():
    for path in CONFIG["except"]:
        assert import_module(path.removesuffix(".py").replace("/", ".")).__file__.endswith(".py")


@pytest.mark.parametrize("path", hook().modules())
def test_no_compiled_class_is_one_that_mypyc_makes_wrong(path):
    """It drops the keywords of a class (``eq=False`` of a struct), and leaves a dataclass's fields with ``init=False``
    without their values."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ClassDef):
            assert not node.keywords, f"{path}: {node.name}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
            assert not any(each.arg == "init" for each in node.keywords), f"{path}:{node.lineno}"


def test_a_pattern_that_fits_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"no module fits 'gateway/nothing/\*\.py'"):
        hook(modules=["gateway/nothing/*.py"]).modules()
    with pytest.raises(ValueError, match=r"but for 'except': gateway/gone\.py"):
        hook(**{"except": ["gateway/gone.py"]}).modules()


def test_without_a_compiler_the_error_says_what_is_needed(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(RuntimeError, match=r"no C compiler 'no-such-compiler'.*the pure wheel is built"):
        hook().initialize("standard", {"force_include": {}})


def test_without_pythons_headers_too(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", sys.executable)  # anything that is there
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(RuntimeError, match=r"no .*Python\.h.*the pure wheel is built"):
        hook().initialize("standard", {"force_include": {}})


def test_an_editable_install_has_nothing_compiled():
    data = {"force_include": {}}
    hook().initialize("editable", data)
    assert data == {"force_include": {}}
