"""Outcomes with figures of one's choice."""

from __future__ import annotations

from gateway.commands.replay.tenants.figures import ALL, LIGHT, Outcome


def outcome(scene: str, way: str, load: float, seed: int) -> Outcome:
    slower = 1.0 if way == "fair-cost" else 3.0
    values = {
        "requests": 200.0,
        "ttft_p50": 0.1 * slower * seed,
        "ttft_p99": slower * seed,
        "tpot_p99": 0.1,
        "good": 0.9,
        "good_rate": 9.0 * load,
        "served_rate": 9.5,
        "hit_rate": 0.5,
        "refused": 0.05,
        "engine_share": 0.25,
    }
    return Outcome(scene, way, load, 10.0 * load, 20.0, seed, 1.0, dict.fromkeys((ALL, LIGHT, "a", "b"), values))


def outcomes(loads: tuple[float, ...] = (1.0, 1.2)) -> list[Outcome]:
    """Of two scenes and two ways, with two seeds."""
    return [
        outcome(scene, way, load, seed)
        for scene in ("s", "t")
        for load in loads
        for way in ("at-once", "fair-cost")
        for seed in (1, 2)
    ]
