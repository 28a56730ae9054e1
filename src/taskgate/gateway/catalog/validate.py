"""Check arguments and results against the schemas that the servers declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from taskgate import clock
from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.catalog.schema_check import InvalidArguments, InvalidOutput, SchemaCheck, UnusableSchema, Violation
from taskgate.core.errors import TaskgateError
from taskgate.core.wire import Raw
from taskgate.gateway.features import Validate
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.large_results import members_of
from taskgate.late_imports import SCHEMAS, load
from taskgate.reading import read_value
from taskgate.telemetry.logs import log
from taskgate.turns import LARGE_BYTES, let_others_run

QUIET_S: Final = 60.0
MAX_COMPILED: Final = 20_000
SCHEMAS_AT_ONCE: Final = 4
"""Schemas compiled without yielding when a list arrives; one may take milliseconds."""
MAX_CHECKED: Final = 1 << 20
"""Maximum size of structured output that is checked."""
_MISSING: Final = Violation("", "there is none, though the tool declares an output schema")


class Checks:
    """The two schemas of one definition, each compiled on first use."""

    def __init__(self, entry: CatalogEntry) -> None:
        self.entry = entry
        self.logged_at = 0.0

    @cached_property
    def arguments(self) -> SchemaCheck | UnusableSchema | None:
        return _compiled(self.entry.input_schema)

    @cached_property
    def output(self) -> SchemaCheck | UnusableSchema | None:
        return _compiled(self.entry.definition.get("outputSchema"))


def _compiled(schema: Any) -> SchemaCheck | UnusableSchema | None:
    if schema is None:
        return None
    try:
        return SchemaCheck.compile(schema)
    except UnusableSchema as problem:
        return problem


def unusable_schemas(entry: CatalogEntry) -> list[tuple[str, str]]:
    """Return which of a tool's schemas are invalid, and why."""
    sides = {"input": entry.input_schema, "output": entry.definition.get("outputSchema")}
    compiled = {side: _compiled(schema) for side, schema in sides.items()}
    return [(side, check.message) for side, check in compiled.items() if isinstance(check, UnusableSchema)]


class Validation:
    def __init__(self, plan: Live[Plan], count: Callable[[str], None]) -> None:
        self._plan = plan
        self._count = count
        self._checks: dict[tuple[str, str], Checks] = {}
        self._checked: dict[tuple[str, str], str] = {}
        self.is_prepared = False
        """Whether the first call has prepared the checks. Read for every call, so not a property."""

    async def prepare(self) -> None:
        """Load the library for schemas, if values are checked. The first call does so, because a gateway without calls does not
        need the library, and importing it would block the event loop for some 10 ms. If a reload switches the checks on later,
        it is imported when the first value is checked.
        """
        if not self.is_prepared:
            if self.on:
                await load(*SCHEMAS)
            self.is_prepared = True

    @property
    def _mode(self) -> Validate:
        return self._plan.value.features.validate

    @property
    def on(self) -> bool:
        return self._mode is not Validate.OFF

    def inspecting(self, entries: Iterable[CatalogEntry]) -> Iterator[None]:
        """Check the schemas in new lists: if validation is enforced, log the tools whose output cannot be validated. Yields after
        every `SCHEMAS_AT_ONCE` entries.
        """
        if self._mode is not Validate.ENFORCE:
            return
        for number, entry in enumerate(entries):
            if number and number % SCHEMAS_AT_ONCE == 0:
                yield
            tool = (entry.server, entry.name)
            if not entry.traits.has_output_schema or self._checked.get(tool) == entry.digest:
                continue
            if len(self._checked) >= MAX_COMPILED:
                self._checked.clear()
            self._checked[tool] = entry.digest
            for side, why in unusable_schemas(entry):
                if side == "output":
                    log.info(f"Tool {entry.name}: output is not validated", server=entry.server, why=why)

    def arguments(self, entry: CatalogEntry, shown: str, arguments: Any, text: bytes | Raw) -> None:
        """Check arguments. Raises InvalidArguments or UnusableSchema if that is enforced. `text` is the JSON of the arguments."""
        checks = self._checks.get((entry.server, entry.name))
        if checks is None or checks.entry is not entry:
            checks = self._of(entry)
        check = checks.arguments
        if check is None:
            return
        value = arguments if arguments is not None else {}
        try:
            if isinstance(check, UnusableSchema):
                raise check.with_traceback(None)
            if len(text) <= check.max_direct_bytes and check.fits_whole(value):
                return
            violations = check.violations(value, text)
            if violations:
                raise InvalidArguments(shown, violations)
        except (InvalidArguments, UnusableSchema) as problem:
            self._found(checks, shown, problem)
            if self._mode is Validate.ENFORCE:
                raise

    def before_hold(self, entry: CatalogEntry | None, shown: str, arguments: Any, text: bytes | Raw) -> str:
        """Check the arguments of a call before approval is requested. Return why they could not be checked, or an empty string if
        they are valid.

        Raises InvalidArguments if they are invalid, even if validation only warns otherwise: approvers are not asked about a call
        that cannot succeed.
        """
        if not self.on:
            return "validation is switched off"
        check = self._of(entry).arguments if entry is not None else None
        if check is None:
            return "the tool has no input schema"
        try:
            if isinstance(check, UnusableSchema):
                raise check.with_traceback(None)
            violations = check.violations(arguments if arguments is not None else {}, text)
        except UnusableSchema as problem:
            return problem.message[:1].lower() + problem.message[1:].rstrip(".")
        if violations:
            raise InvalidArguments(shown, violations)
        return ""

    async def output(self, entry: CatalogEntry, shown: str, result: bytes) -> None:
        """Check a result. Raises InvalidOutput if that is enforced. Errors and input requests are not checked."""
        checks = self._of(entry)
        check = checks.output
        if check is None:
            return
        members = await members_of(result)
        if not _is_plain_result(members):
            return
        structured = members.get("structuredContent")
        try:
            if isinstance(check, UnusableSchema):
                raise check.with_traceback(None)
            violations = (_MISSING,) if structured is None else await _violations(check, bytes(structured))
            if violations:
                raise InvalidOutput(shown, violations)
        except InvalidOutput as problem:
            self._found(checks, shown, problem)
            if self._mode is Validate.ENFORCE:
                raise
        except UnusableSchema as problem:
            # The tool has run: its result is not withheld because of an invalid schema.
            self._found(checks, shown, problem)

    def _of(self, entry: CatalogEntry) -> Checks:
        key = (entry.server, entry.name)
        checks = self._checks.get(key)
        if checks is None or checks.entry is not entry:
            if len(self._checks) >= MAX_COMPILED:
                self._checks.clear()
            checks = self._checks[key] = Checks(entry)
        return checks

    def _found(self, checks: Checks, shown: str, problem: TaskgateError) -> None:
        self._count(problem.error_type)
        now = clock.monotonic()
        if now - checks.logged_at >= QUIET_S or not checks.logged_at:
            checks.logged_at = now
            log.warning("does not match the schema", tool=shown, error_type=problem.error_type, why=problem.message)


async def _violations(check: SchemaCheck, structured: bytes) -> tuple[Violation, ...]:
    if len(structured) > MAX_CHECKED:
        raise UnusableSchema(f"it would take too long to apply to {len(structured)} bytes")
    value = await read_value(structured)
    if len(structured) >= LARGE_BYTES:
        await let_others_run()
    return check.violations(value, structured)


def _is_plain_result(members: dict[str, Raw]) -> bool:
    kind = members.get("resultType")
    if kind is not None and bytes(kind) != b'"complete"':
        return False
    return bytes(members.get("isError", Raw(b"false"))) != b"true" and "task" not in members
