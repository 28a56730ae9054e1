"""Cycles of references that ended work leaves behind.

The gateway runs a full collection rarely, because it takes long (`garbage_collection.py`). What only that collection releases
adds up until then, and the small objects between it keep whole arenas of memory.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cycles_left() -> Iterator[Counter[str]]:
    """Count the unreachable cycles with one of our objects that the block leaves behind, by the classes in them."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        for cycle in _cycles(gc.garbage):
            classes = {type(each) for each in cycle}
            ours = sorted({each.__qualname__ for each in classes if str(each.__module__).startswith("taskgate.")})
            if ours:
                found[" ".join(ours)] += 1
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _cycles(objects: list[object]) -> list[list[object]]:
    """The strongly connected components with more than one object (Tarjan's algorithm, without recursion)."""
    number_of = {id(each): number for number, each in enumerate(objects)}
    targets = [[number_of[id(to)] for to in gc.get_referents(each) if id(to) in number_of] for each in objects]
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    cycles: list[list[object]] = []
    for root in range(len(objects)):
        work = [(root, iter(targets[root]))] if root not in order else []
        while work:
            node, rest = work[-1]
            if node not in order:
                order[node] = lowest[node] = len(order)
                path.append(node)
                on_path.add(node)
            for target in rest:
                if target not in order:
                    work.append((target, iter(targets[target])))
                    break
                if target in on_path:
                    lowest[node] = min(lowest[node], lowest[target])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    first = path.index(node)
                    members, path[first:] = path[first:], []
                    on_path.difference_update(members)
                    if len(members) > 1:
                        cycles.append([objects[each] for each in members])
    return cycles
