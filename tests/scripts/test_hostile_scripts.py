"""Hostile scripts end with a clear error, and the next script of the same worker runs as if nothing had happened."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from tests.scripts.driving import FACTS, LIMITS, interpreter, resume, returned, start
from tests.scripts.hostile import TABLE, Hostile

from taskgate.ports.script_interpreter import Failed, FailureReason, Finished, Suspended


@pytest.mark.parametrize("hostile", TABLE, ids=lambda hostile: hostile.name)
async def test_hostile_script(hostile: Hostile) -> None:
    run = interpreter(max_workers=1)
    try:
        step = await start(run, hostile.code, hostile.limits)
        assert (
            None if isinstance(step, Finished) else isinstance(step, Failed) and (step.reason, step.error_type)
        ) == hostile.ends
        assert len(step.output.printed.encode()) <= hostile.limits.output_bytes
        after = await start(run, "1 + 1")
        assert isinstance(after, Finished), after
        assert len(run.pool.worker_pids) == 1
    finally:
        await run.aclose()


async def test_output_beyond_its_limit_is_cut_and_the_script_goes_on() -> None:
    run = interpreter(max_workers=1)
    step = await start(run, "for i in range(1000):\n    print('é' * 10)\n7", replace(LIMITS, output_bytes=101))
    await run.aclose()
    assert isinstance(step, Finished)
    assert json.loads(step.value) == 7
    assert step.output.printed_cut
    assert 95 <= len(step.output.printed.encode()) <= 101


async def test_calls_of_earlier_steps_count_as_parallel() -> None:
    limits = replace(LIMITS, parallel_calls=3)
    code = """
import asyncio
async def twice(n):
    await files.read_file(n)
    try:
        return await files.write_file(n)
    except RuntimeError as e:
        return tool_error(e).type
await asyncio.gather(twice(1), twice(2), twice(3))
"""
    run = interpreter(max_workers=1)
    step = await start(run, code, limits)
    assert isinstance(step, Suspended)
    assert len(step.pending) == 3
    step = await resume(run, step, {step.pending[0]: returned(1)}, limits)
    assert isinstance(step, Suspended)
    assert len(step.pending) == 3
    fewer = await resume(run, step, {step.pending[0]: returned(1)}, replace(limits, parallel_calls=2))
    assert isinstance(fewer, Suspended), fewer
    assert fewer.calls == ()
    assert len(fewer.pending) == 2
    end = await resume(run, fewer, {number: returned(1) for number in fewer.pending}, limits)
    assert isinstance(end, Suspended)
    end = await resume(run, end, {number: returned(1) for number in end.pending}, limits)
    await run.aclose()
    assert isinstance(end, Finished)
    assert "too_many_calls" in json.loads(end.value)


async def test_changed_snapshots_never_end_the_worker_of_others() -> None:
    """They are never loaded in the gateway, where the seal is checked first; if one were, only its own script is lost."""
    run = interpreter(max_workers=1)
    step = await start(run, "x = await files.read_file()\nx")
    assert isinstance(step, Suspended)
    outcomes = {step.pending[0]: returned(1)}
    for place in range(0, len(step.snapshot), 61):
        changed = bytearray(step.snapshot)
        changed[place] ^= 4
        bad = await run.resume(bytes(changed), outcomes, LIMITS, FACTS)
        assert isinstance(bad, Failed | Finished | Suspended)
    for forged in (b"", b"x", step.snapshot[:-1], step.snapshot[4:], b"TGS1" + bytes(1000)):
        bad = await run.resume(forged, outcomes, LIMITS, FACTS)
        assert isinstance(bad, Failed)
        assert bad.reason is FailureReason.INTERPRETER
    good = await resume(run, step, outcomes)
    await run.aclose()
    assert isinstance(good, Finished)
