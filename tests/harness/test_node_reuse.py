"""A Node program that runs again in the same process: which differences to a new process it can observe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.node_reuse import NodeAgain

pytestmark = pytest.mark.peers("ts1")
PROGRAM = """
import { appendFileSync } from 'node:fs';
let runs = 0;
const [way] = process.argv.slice(2);
console.error('said aside');
if (way === 'rejects') { Promise.reject(new Error('nobody handles this')); await new Promise(() => {}); }
if (way === 'throws') setTimeout(() => { throw new Error('nobody catches this'); });
if (way === 'throws' || way === 'hangs') await new Promise(() => {});
if (way === 'loads badly') throw new Error('cannot be loaded');
if (way === 'waits') {
    appendFileSync(process.env.MARKS, 'x');
    while ((await import('node:fs')).readFileSync(process.env.MARKS, 'utf8').length < 2)
        await new Promise(later => setTimeout(later, 5));
}
const seen = { runs: ++runs, words: process.argv.slice(2), mine: process.env.MINE ?? null, pid: process.pid };
await new Promise(out => process.stdout.write(JSON.stringify(seen) + '\\n', out));
try { process.exit(way === 'seven' ? 7 : 0); } catch { process.exit(9); }
"""


@pytest.fixture
def again() -> Iterator[NodeAgain]:
    made = NodeAgain()
    yield made
    made.close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    made = tmp_path / "program.mjs"
    made.write_text(PROGRAM)
    return made


async def test_each_run_has_its_own_module_arguments_environment_and_exit_code(again: NodeAgain, program: Path) -> None:
    code, out, err = await again.run(program, ["seven", "x"], {"MINE": "y"})
    first = json.loads(out)
    assert (code, err) == (7, "said aside\n")
    assert (first["runs"], first["words"], first["mine"]) == (1, ["seven", "x"], "y")
    code, out, err = await again.run(program, [])
    assert (code, err) == (0, "said aside\n")
    assert json.loads(out) == {"runs": 1, "words": [], "mine": None, "pid": first["pid"]}


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("rejects", "nobody handles this"),
        ("throws", "nobody catches this"),
        ("loads badly", "cannot be loaded"),
    ],
)
async def test_a_run_that_ends_its_process_is_followed_by_a_new_process(
    again: NodeAgain, program: Path, way: str, why: str
) -> None:
    before = json.loads((await again.run(program, []))[1])["pid"]
    code, out, err = await again.run(program, [way])
    assert (code, out) == (1, "")
    assert why in err
    assert json.loads((await again.run(program, []))[1])["pid"] != before


async def test_a_run_that_does_not_end_is_killed(again: NodeAgain, program: Path) -> None:
    code, _, err = await again.run(program, ["hangs"], within=1)
    assert code == -1
    assert "ended after 1 s" in err
    assert (await again.run(program, []))[0] == 0


async def test_runs_at_once_have_a_process_each(again: NodeAgain, program: Path, tmp_path: Path) -> None:
    marks = {"MARKS": str(tmp_path / "marks")}
    both = await asyncio.gather(*(again.run(program, ["waits"], marks) for _ in range(2)))
    assert len({json.loads(out)["pid"] for _, out, _ in both}) == 2


@pytest.mark.fresh_interpreter
async def test_a_test_may_require_a_real_node_process(again: NodeAgain, program: Path) -> None:
    seen = [json.loads((await again.run(program, ["x"], {"MINE": "y"}))[1]) for _ in range(2)]
    assert seen[0]["pid"] != seen[1]["pid"]
    assert [each["mine"] for each in seen] == ["y", "y"]
