"""The scenes by their names, and whose requests are in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gateway.commands.replay.tenants.scenes import SCENES, WARM_UP, scenes
from gateway.errors import ConfigError
from tests.commands.replay.tenants.scenes import SMALL


@pytest.mark.parametrize("name", SCENES)
def test_each_scene_has_what_it_says(name: str) -> None:
    scene = SCENES[name]
    assert scene.light
    assert scene.about.endswith(".")
    calls = scene.workload(30.0, 60.0, 1).start()
    assert len(calls) == pytest.approx(30 * (60 + WARM_UP), rel=0.15)
    assert [call.at for call in calls] == sorted(call.at for call in calls)
    counts = Counter(call.tenant.name for call in calls)
    assert set(counts) == {member.name for member in scene.members}
    parts = sum(member.part for member in scene.members)
    for member in scene.members:
        if member.part / parts > 0.1:
            assert counts[member.name] / len(calls) == pytest.approx(member.part / parts, rel=0.25)


def test_what_one_sends_does_not_depend_on_the_others() -> None:
    alone = replace(SMALL, members=SMALL.members[:1])

    def of_first(rate: float, scene) -> list[tuple[float, int, int]]:
        calls = scene.workload(rate, 30.0, 1).start()
        return [(call.at, call.input_tokens, call.output_tokens) for call in calls if call.tenant.name == "light-1"]

    assert of_first(8.0, SMALL) == of_first(2.0, alone)


def test_conversations_are_sessions_and_bands_and_weights_are_the_tenants() -> None:
    first = replace(SMALL.members[0], band=2, weight=3.0)
    calls = replace(SMALL, members=(first, *SMALL.members[1:])).workload(8.0, 30.0, 1).start()
    for call in calls:
        if call.tenant.name == "greedy":
            assert (call.session, call.band, call.tenant.weight) == (None, 0, 1.0)
        elif call.tenant.name == "light-1":
            assert call.session is not None
            assert call.session.startswith("light-1/")
            assert (call.band, call.tenant.weight) == (2, 3.0)


def test_scenes_are_found_by_name() -> None:
    assert [scene.name for scene in scenes("thrashing, greedy-long")] == ["thrashing", "greedy-long"]
    assert [scene.name for scene in scenes("all")] == list(SCENES)
    with pytest.raises(ConfigError, match="there is no scene 'greedy-lon'; did you mean 'greedy-long'"):
        scenes("greedy-lon")
    with pytest.raises(ConfigError, match="at least one scene"):
        scenes(" , ")
