from __future__ import annotations

import pytest

from gateway.kvcache.extra_keys import trusted
from tests.kvcache.conftest import ids, stored


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({}, (3, None)),
        ({"extra_keys": [None, None, None]}, (3, None)),
        ({"extra_keys": [["salt"], None, None]}, (3, "salt")),
        ({"extra_keys": [["salt"], None, None], "parent": 7}, (0, None)),
        ({"extra_keys": [["a", "salt"], ["a"], ["a"]], "lora_name": "a"}, (3, "salt")),
        ({"extra_keys": [["a"], ["a"], ["a", ["image", 3]]], "lora_name": "a"}, (2, None)),
        ({"extra_keys": [None, [["image", 3]], None]}, (1, None)),
        ({"lora_id": 3}, (0, None)),
        ({"lora_id": 3, "lora_name": "a"}, (3, None)),
    ],
)
def test_how_far_a_run_is_told_by_its_tokens(others, told):
    assert trusted(stored([1, 2, 3], ids(1, 2, 3), **others)) == told
