from __future__ import annotations

from gateway.kvcache.index.layers import Layer, tier_of


def test_media_are_read_in_any_case():
    media = (None, "gpu", "CPU", "Storage", "TAPE", "PREDICTED")
    assert [tier_of(medium) for medium in media] == [Layer.GPU, Layer.GPU, Layer.CPU, Layer.STORAGE, None, None]
