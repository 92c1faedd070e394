from __future__ import annotations

import struct

from gateway.commands.demo.chart import draw
from gateway.commands.demo.drive import Result
from gateway.commands.demo.scene import Scene


def test_a_picture_of_its_size_is_written_into_a_new_folder(tmp_path) -> None:
    path = tmp_path / "out" / "demo.png"
    results = [
        Result("round robin", 2, 0, 1000, 300, (0.3, 0.4), 2.0),
        Result("kvgate, default profile", 2, 0, 1000, 900, (0.02, 0.03), 1.0),
    ]
    draw(results, Scene(), path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (1800, 800)
    assert len(content) > 10_000, "a white page compresses to less"
