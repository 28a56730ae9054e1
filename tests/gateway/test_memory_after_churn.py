"""Garbage in circles does not pile up: sessions and calls that came and went leave little behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHURN = """
import resource
from taskgate.lifecycle import spare_the_collector
class Node:
    pass
spare_the_collector()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kept = []
for number in range(1_500_000):
    node = Node()
    node.self = node
    node.more = {"a": [number]}
    # As with sessions, each lives for a while before it goes.
    kept.append(node)
    if len(kept) > 20_000:
        del kept[:10_000]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_circles_are_found_before_they_fill_the_memory() -> None:
    done = subprocess.run([sys.executable, "-c", CHURN], capture_output=True, text=True, timeout=110, check=True)
    grown_kib = int(done.stdout)
    assert grown_kib < 80 * 1024
