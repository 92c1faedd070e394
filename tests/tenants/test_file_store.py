from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.tenants_file import TenantsFile
from gateway.errors import NotFound
from gateway.tenants.changes import Change, StoreFailed, add, put_tenant, revoke, rotate
from gateway.tenants.file_store import FileStore
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsFileSettings

OWN = TenantsFileSettings()
ONE, TWO, THREE = "11" * 32, "2a" * 32, "33" * 32

WRITTEN = f"""\
# Ours. Ask ops before you change it.
tenants:
- name: red   # the search team
  weight: 2.0
  limits: {{concurrent: 4}}

- {{name: blue, models: ["qwen*"]}}
keys:
- id: ci # of the build
  sha256: "{ONE}"
  tenant: red
  expires: 2027-01-01
prices:
  qwen: {{input: 1, output: 2.5}}
"""


def store(path: Path) -> FileStore:
    return FileStore(TenantsFile(str(path), OWN, {}))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tenants.yaml"
    path.write_text(WRITTEN)
    return path


def key(key_id: str, sha256: str, tenant: str = "red", **values) -> TenantKeySettings:
    return TenantKeySettings(key_id, sha256, tenant, **values)


async def test_what_people_wrote_stays(file):
    limits = LimitSettings(requests_per_minute=5)
    after = await store(file).change(add(key("web", TWO, "blue", models=("qwen3",), limits=limits)))
    assert [one.id for one in after.keys] == ["ci", "web"]
    assert after == await store(file).read()
    assert file.read_text() == WRITTEN.replace(
        "prices:",
        f"- id: web\n  sha256: {TWO}\n  tenant: blue\n  models:\n  - qwen3\n"
        "  limits:\n    requests_per_minute: 5\nprices:",
    )


async def test_a_key_that_goes_takes_its_lines_only(file):
    await store(file).change(add(key("web", TWO)))
    await store(file).change(revoke("web"))
    assert file.read_text() == WRITTEN


async def test_a_rotation_ends_the_old_key(file):
    after = await store(file).change(rotate("ci", TWO, now=0.0, keep=60.0))
    assert [one.ends for one in after.keys] == [60.0, key("x", ONE, expires="2027-01-01").ends]
    assert "- id: ci # of the build" in file.read_text()


async def test_a_tenant_is_changed_in_its_place(file):
    budget = BudgetSettings(5.0, "money")
    await store(file).change(put_tenant(TenantSettings("red", weight=3.0, budget=budget)))
    text = file.read_text()
    assert "- name: red   # the search team\n  weight: 3.0\n" in text
    assert "concurrent" not in text
    assert (await store(file).read()).tenants[0].budget == budget


async def test_a_file_that_is_not_there_is_made_for_the_gateway_s_user_to_read(tmp_path):
    path = tmp_path / "tenants.yaml"
    assert await store(path).read() == TenantsFileSettings()
    await store(path).change(add(key("ci", ONE), create_tenant=True))
    assert path.read_text() == f"tenants:\n- name: red\nkeys:\n- id: ci\n  sha256: '{ONE}'\n  tenant: red\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["tenants.yaml"]


@pytest.mark.parametrize("text", ["keys: []\n", "# none yet\n", "{}\n", "tenants: []\nkeys: []\n"])
async def test_what_is_empty_is_filled(tmp_path, text):
    path = tmp_path / "tenants.yaml"
    path.write_text(text)
    assert [one.id for one in (await store(path).change(add(key("ci", ONE, "default")))).keys] == ["ci"]


async def test_mode_and_links_stay(file, tmp_path):
    file.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    await store(link).change(add(key("web", TWO)))
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "id: web" in file.read_text()


async def test_a_refusal_changes_nothing(file):
    with pytest.raises(NotFound):
        await store(file).change(revoke("none"))
    with pytest.raises(StoreFailed, match="not written, since it could not be read again"):
        await store(file).change(lambda content: Change(keys=(key("web", TWO, "green"),)))
    assert file.read_text() == WRITTEN
    assert os.listdir(file.parent) == ["tenants.yaml"]


async def test_a_file_that_cannot_be_used_is_not_touched(file):
    file.write_text("tenants: [")
    with pytest.raises(StoreFailed, match=r"tenants.yaml:1: not YAML.*correct the file first"):
        await store(file).change(add(key("web", TWO)))
    assert file.read_text() == "tenants: ["


async def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StoreFailed, match="cannot be written: No such file"):
        await store(tmp_path / "none" / "tenants.yaml").change(add(key("ci", ONE, "default")))


async def test_changes_at_the_same_time_are_all_made(file):
    stores = [store(file) for _ in range(8)]
    await asyncio.gather(*(one.change(add(key(f"k{number}", f"{number:064x}"))) for number, one in enumerate(stores)))
    assert {one.id for one in (await store(file).read()).keys} == {"ci", *(f"k{number}" for number in range(8))}


DIGESTS = st.integers(0, 3).map(lambda number: f"{number:x}e" * 32)
KEYS = st.builds(
    TenantKeySettings,
    st.sampled_from(["a", "1e5", "true"]),
    DIGESTS,
    st.just("red"),
    st.sampled_from([None, "2027-01-01", "2027-01-01T00:00:00Z"]),
    st.sampled_from([None, ("*",), ("null", "qwen*")]),
    st.builds(LimitSettings, concurrent=st.sampled_from([None, 3])),
)
TENANTS = st.builds(
    TenantSettings,
    st.sampled_from(["red", "blue", "0x10"]),
    st.sampled_from([1.0, 2.5]),
    st.sampled_from([0, 1]),
    st.sampled_from([None, (-1, 1)]),
    per_model=st.sampled_from([{}, {"a: b*": LimitSettings(queued=2)}]),
)
STEPS = st.tuples(st.lists(TENANTS, max_size=2), st.lists(KEYS, max_size=2), st.booleans())


@given(st.lists(STEPS, max_size=5))
def test_the_file_has_what_the_changes_make(tmp_path_factory, steps):
    """Whatever is changed in whatever order: the file, read again, is the changed content."""
    path = tmp_path_factory.mktemp("store") / "tenants.yaml"
    path.write_text("tenants:\n- name: red # first\n")
    content = TenantsFileSettings((TenantSettings("red"),))

    async def run() -> None:
        nonlocal content
        for tenants, keys, removes in steps:
            gone = tuple(one.sha256 for one in content.keys[:1]) if removes else ()
            change = Change(tuple(tenants), tuple(one for one in keys if one.sha256 not in gone), gone)
            content = change.applied(content)
            assert await store(path).change(lambda _, change=change: change) == content

    asyncio.run(run())
    assert "# first" in path.read_text()
