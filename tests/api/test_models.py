from __future__ import annotations

import json

from gateway.api.models import listing, one


def test_a_list_and_one_of_it() -> None:
    entries = [
        {"id": "m", "root": "org/m", "parent": None, "max_model_len": 4096},
        {"id": "lora", "root": None, "parent": "m", "max_model_len": None, "created": 7},
    ]
    whole = json.loads(listing(entries))
    assert whole["object"] == "list"
    assert whole["data"] == [json.loads(one(entry)) for entry in entries]
    assert whole["data"] == [
        {
            "id": "m",
            "object": "model",
            "created": 0,
            "owned_by": "kvgate",
            "root": "org/m",
            "parent": None,
            "max_model_len": 4096,
        },
        {
            "id": "lora",
            "object": "model",
            "created": 7,
            "owned_by": "kvgate",
            "root": "lora",
            "parent": "m",
            "max_model_len": None,
        },
    ]


def test_no_models() -> None:
    assert json.loads(listing([])) == {"object": "list", "data": []}
