"""``kvgate doctor`` on real engines: green where all is well, and red with the right words where it is not."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from simulator.tokenizer import build_tokenizer
from tests.engines.engine import BLOCK_SIZE, Engine, serving

SECONDS = 240.0
OFF = json.dumps({"enable_kv_cache_events": False})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``endpoints``: check -> its finding, for each endpoint in order."""

    code: int
    endpoints: list[dict[str, dict[str, Any]]]

    def red(self, place: int = 0) -> dict[str, str]:
        """Check -> what is said, of all that is red of an endpoint."""
        return {
            check: f"{one['said']}; {one['remedy']}"
            for check, one in self.endpoints[place].items()
            if one["level"] == "failed"
        }

    def short(self, place: int = 0) -> dict[str, str]:
        return {check: one["short"] for check, one in self.endpoints[place].items()}


Doctor = Callable[..., Diagnosis]
Run = Callable[..., tuple[int, Any]]


def as_a_process(*words: str) -> tuple[int, Any]:
    """A command's exit code, and the JSON that it prints."""
    command = [sys.executable, "-m", "gateway.cli", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def here(*words: str) -> tuple[int, Any]:
    """The same in this process: one of its own imports for seconds before it does anything."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    assert code in (0, 1), err.getvalue()
    return code, json.loads(out.getvalue())


@pytest.fixture
def doctor(model_folder: Path, tmp_path: Path) -> Doctor:
    """The doctor on engines, or on endpoints as given; keywords are keys of the model."""

    def examine(
        *endpoints: Engine | Mapping[str, Any], options: tuple[str, ...] = (), run: Run = here, **model: Any
    ) -> Diagnosis:
        given = [{"url": one.url} if isinstance(one, Engine) else dict(one) for one in endpoints]
        config = tmp_path / "doctor.yaml"
        named = {"name": "tiny-chat", "tokenizer": str(model_folder), "endpoints": given}
        config.write_text(json.dumps({"models": [named | model]}))
        code, told = run("doctor", "--json", str(config), *options)
        assert told["healthy"] is (code == 0)
        found = [{one["check"]: one for one in endpoint["findings"]} for endpoint in told["models"][0]["endpoints"]]
        return Diagnosis(code, found)

    return examine


@pytest.fixture(scope="module")
def odd(engine_venv: Path, model_folder: Path, run_folder: Path) -> Iterator[tuple[Engine, Engine]]:
    """One without events, and one whose block hashes are of another kind and seed."""
    cbor = ("--prefix-caching-hash-algo", "sha256_cbor")
    engines = (
        Engine("off", engine_venv, model_folder, run_folder, flags=("--kv-events-config", OFF)),
        Engine("seeded", engine_venv, model_folder, run_folder, flags=cbor, variables={"PYTHONHASHSEED": "42"}),
    )
    with serving(*engines):
        yield engines


def test_sound_engines_are_green(engines: list[Engine], doctor: Doctor) -> None:
    found = doctor(*engines, run=as_a_process)
    assert found.code == 0, found.endpoints
    for place in range(len(engines)):
        told = found.short(place)
        assert told.pop("last event") == "none yet" or "ago" in found.short(place)["last event"]
        assert told == {
            "reachable": "0.32.0",
            "model": "tiny",
            "block size": str(BLOCK_SIZE),
            "events": "live",
            "replay": "yes",
            "tokens": "equal (3)",
            "hashes": "sha256",
            "usage": "hits",
            "transfer": "both, none",
        }


def test_another_tokenizer_is_red(engine: Engine, doctor: Doctor, model_folder: Path, tmp_path: Path) -> None:
    other = build_tokenizer(tmp_path / "other")
    found = doctor(engine, tokenizer=str(other))
    assert found.code == 1
    (said,) = found.red().values()
    assert "its tokenizer is another than ours" in said
    assert str(other) in said
    assert str(model_folder) in said


def test_another_template_is_red(engine: Engine, doctor: Doctor, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}")
    found = doctor(engine, chat_template=str(template))
    assert found.code == 1
    assert "its chat template is another than ours" in found.red()["tokens"]


def test_a_block_size_that_lies_is_red(engine: Engine, doctor: Doctor) -> None:
    found = doctor(engine, kv_cache={"block_size": 48})
    assert found.code == 1
    (said,) = found.red().values()
    assert f"kv_cache.block_size is 48, and its blocks have {BLOCK_SIZE} tokens" in said


def test_another_engine_s_events_are_red(engines: list[Engine], doctor: Doctor) -> None:
    source = engines[1].kv_source()
    kv_events = {"endpoint": source["endpoint"], "replay": source["replay_endpoint"]}
    found = doctor({"url": engines[0].url, "kv_events": kv_events}, engines[1])
    assert found.code == 1
    said = found.red()["events"]
    assert "another engine's" in said or "announced nothing" in said
    assert "kv_events" in said
    assert not found.red(1)


def test_events_that_are_off_are_red(odd: tuple[Engine, Engine], doctor: Doctor) -> None:
    found = doctor(odd[0])
    assert found.code == 1
    (said,) = found.red().values()
    assert "its KV events are off" in said
    assert "--kv-events-config" in said
    assert found.short()["tokens"] == "equal (3)", "the rest of it is examined all the same"


def test_hashes_of_another_seed_are_made_again_if_it_is_named(odd: tuple[Engine, Engine], doctor: Doctor) -> None:
    found = doctor(odd[1])
    assert (found.code, found.short()["hashes"]) == (0, "unknown")
    assert doctor(odd[1], options=("--hash-seed", "42")).short()["hashes"] == "sha256_cbor"


def test_an_engine_that_is_gone_is_red(odd: tuple[Engine, Engine], doctor: Doctor) -> None:
    """Last, since it ends one."""
    odd[1].kill()
    found = doctor(*odd)
    assert found.short(1) == {"reachable": "refused"}
