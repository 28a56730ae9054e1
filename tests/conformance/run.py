"""`python -m tests.conformance.run`: the official suite directly and through Taskgate, as a table of what is lost.

python -m tests.conformance.run --direct-only
python -m tests.conformance.run --arrangement 0 --revision 2026-07-28
python -m tests.conformance.run --replicas
"""

from __future__ import annotations

import argparse
import asyncio

from tests.conformance.arrangements import ARRANGEMENTS, OFFICIAL, Official, directly, through_replicas
from tests.conformance.suite import REVISIONS, Verdicts, count, failures, losses, run_suite
from tests.harness.absent import reason_for


async def run_both(url: str, revisions: list[str]) -> dict[str, Verdicts]:
    found = await asyncio.gather(*(run_suite(url, revision) for revision in revisions))
    return dict(zip(revisions, found, strict=True))


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--direct-only", action="store_true", help="do not start Taskgate")
    parser.add_argument("--arrangement", type=int, action="append", choices=range(len(ARRANGEMENTS)))
    parser.add_argument("--replicas", action="store_true", help="three gateways on PostgreSQL behind a balancer")
    parser.add_argument("--revision", action="append", choices=REVISIONS)
    chosen = parser.parse_args()
    revisions = chosen.revision or list(REVISIONS)
    async with directly() as url:
        direct = await run_both(url, revisions)
    for revision, verdicts in direct.items():
        print(f"directly, {revision}: {count(verdicts)}")
        show(failures(verdicts))
    lost_any = any(failures(verdicts) for verdicts in direct.values())
    wanted = [] if chosen.direct_only else chosen.arrangement or range(len(ARRANGEMENTS))
    for number in wanted:
        arrangement = ARRANGEMENTS[number]
        async with through_replicas(arrangement) if chosen.replicas else arrangement.through() as url:
            through = await run_both(url, revisions)
        for revision, verdicts in through.items():
            lost = losses(direct[revision], verdicts)
            due = {name: why for name, why in lost.items() if arrangement.must_pass(name, replicas=chosen.replicas)}
            lost_any = lost_any or bool(due)
            print(f"{ARRANGEMENTS[number].name}, {revision}: {count(verdicts)}, {len(due)} lost")
            show(lost)
    if not chosen.direct_only and not chosen.replicas and chosen.arrangement is None:
        for server in OFFICIAL:
            lost_any = await run_official(server, revisions) or lost_any
    return 1 if lost_any else 0


async def run_official(server: Official, revisions: list[str]) -> bool:
    """The same comparison with an official everything-server; whether anything was lost."""
    if reason := reason_for(server.peer):
        print(f"{server.name}: ABSENT, {reason}")
        return False
    async with server.directly() as url:
        direct = await run_both(url, revisions)
    for revision, verdicts in direct.items():
        print(f"{server.name} directly, {revision}: {count(verdicts)}")
    lost_any = False
    for way, stdio in server.ways.items():
        async with server.through(stdio=stdio) as url:
            through = await run_both(url, revisions)
        for revision, verdicts in through.items():
            lost = losses(direct[revision], verdicts)
            lost_any = lost_any or bool(server.due(lost))
            print(f"{server.name} over {way}, {revision}: {count(verdicts)}, {len(lost)} lost")
            show(lost)
    return lost_any


def show(reasons: dict[str, str]) -> None:
    for name, reason in sorted(reasons.items()):
        print(f"    {name}: {reason}")


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
