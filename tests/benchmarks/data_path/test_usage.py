from __future__ import annotations

import os
import time

import pytest

from benchmarks.data_path.usage import cpu, resident, tree
from gateway.commands.processes import Processes


def test_cpu_is_counted_of_all_threads_and_of_children(processes: Processes) -> None:
    own = [os.getpid()]
    before, began = cpu(own), time.process_time()
    while time.process_time() - began < 0.05:
        pass
    spent = time.process_time() - began
    assert cpu(own) - before == pytest.approx(spent, rel=0.5)
    child = processes.start("sleep", ["sleep", "60"])
    assert child.pid in tree(os.getpid())
    child.kill()
    assert cpu([child.pid]) == 0.0, "one that has ended is no error"
    assert resident(own) > 1_000_000
