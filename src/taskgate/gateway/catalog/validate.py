"""Arguments and output against the schemas in force, and what callers used before and were given."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from taskgate import clock
from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.catalog.links import uris_between, uris_in
from taskgate.core.catalog.schema_check import InvalidArguments, InvalidOutput, SchemaCheck, UnusableSchema, Violation
from taskgate.core.completion.memory import CompletionPlace, Usage, UsageMemory
from taskgate.core.completion.ranking import CandidateIndex
from taskgate.core.errors import TaskgateError
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.view import ToolRef
from taskgate.gateway.events import DataErased, EventHub, SessionEnded
from taskgate.gateway.plan import Live, Plan, Validate
from taskgate.gateway.requests.caller_keys import memory_key
from taskgate.gateway.requests.large_results import members_of
from taskgate.gateway.requests.request import Request
from taskgate.reading import read_value
from taskgate.telemetry.logs import log
from taskgate.turns import LARGE_BYTES, let_others_run

QUIET_S: Final = 60.0
MAX_COMPILED: Final = 20_000
SCHEMAS_AT_ONCE: Final = 4
"""Tools whose schemas are compiled in one go when a list arrives; one may take milliseconds."""
MAX_CHECKED: Final = 1 << 20
"""Bytes of structured output; what is larger is not even read."""
_MISSING: Final = Violation("", "there is none, though the tool declares an output schema")


class Checks:
    """The two schemas of one definition, each compiled when first needed."""

    def __init__(self, entry: CatalogEntry) -> None:
        self.entry = entry
        self.told = 0.0

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
    """Which of a tool's schemas cannot be used for checking, and why."""
    sides = {"input": entry.input_schema, "output": entry.definition.get("outputSchema")}
    compiled = {side: _compiled(schema) for side, schema in sides.items()}
    return [(side, check.message) for side, check in compiled.items() if isinstance(check, UnusableSchema)]


class Validation:
    def __init__(self, plan: Live[Plan], count: Callable[[str], None]) -> None:
        self._plan = plan
        self._count = count
        self._checks: dict[tuple[str, str], Checks] = {}
        self._looked: dict[tuple[str, str], str] = {}

    @property
    def _mode(self) -> Validate:
        return self._plan.value.features.validate

    @property
    def on(self) -> bool:
        return self._mode is not Validate.OFF

    def looking(self, entries: Iterable[CatalogEntry]) -> Iterator[None]:
        """New lists have come: where checking is enforced, log at once which tools' output will not be checked. Yields between
        portions of them.
        """
        if self._mode is not Validate.ENFORCE:
            return
        for number, entry in enumerate(entries):
            if number and number % SCHEMAS_AT_ONCE == 0:
                yield
            tool = (entry.server, entry.name)
            if "outputSchema" not in entry.definition or self._looked.get(tool) == entry.digest:
                continue
            if len(self._looked) >= MAX_COMPILED:
                self._looked.clear()
            self._looked[tool] = entry.digest
            for side, why in unusable_schemas(entry):
                if side == "output":
                    log.info(f"Tool {entry.name}: output is not validated", server=entry.server, why=why)

    def arguments(self, entry: CatalogEntry, shown: str, arguments: Any, text: bytes) -> None:
        """Raises InvalidArguments or UnusableSchema where that is enforced. `text` is what the arguments were read from."""
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
            if len(text) <= check.without_looking and check.fits_whole(value):
                return
            violations = check.violations(value, text)
            if violations:
                raise InvalidArguments(shown, violations)
        except (InvalidArguments, UnusableSchema) as problem:
            self._found(checks, shown, problem)
            if self._mode is Validate.ENFORCE:
                raise

    def before_hold(self, entry: CatalogEntry | None, shown: str, arguments: Any, text: bytes) -> str:
        """For a call that people are to be asked about: why its arguments could not be checked, or an empty string if they fit.

        Raises InvalidArguments if they do not, also where that is otherwise only a warning: people are asked last.
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
        """Raises InvalidOutput where that is enforced. Errors and questions need not fit."""
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
            # The tool has run; what it gave is not withheld because its server describes it badly.
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
        if now - checks.told >= QUIET_S or not checks.told:
            checks.told = now
            log.warning("does not fit the schema", tool=shown, error_type=problem.error_type, why=problem.message)


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


# What callers used before, as suggestions, and which server a URI came from that a caller was given.

# What callers used before, and indexes of what may be suggested: the memory behind `complete`.
#
# A call leaves a note here that costs next to nothing; notes are read when somebody asks for suggestions, or with the
# house-keeping. Everything is bounded, per caller, and gone after a restart.

MAX_NOTES: Final = 1_000
MAX_NOTED_BYTES: Final = 4_096
MAX_INDEXES: Final = 500
MAX_ANSWERS: Final = 1_000
FRESH_S: Final = 2.0

_Note = tuple[str, str, str, Mapping[str, Any], float]


class Completions:
    def __init__(self, plan: Live[Plan], events: EventHub) -> None:
        self._plan = plan
        self._memory = UsageMemory()
        self._notes: deque[_Note] = deque(maxlen=MAX_NOTES)
        self._indexes: OrderedDict[Hashable, tuple[object, CandidateIndex]] = OrderedDict()
        self._answers: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()
        events.subscribe(SessionEnded, lambda event: self.forget(event.session.key))
        events.subscribe(DataErased, lambda event: self.forget(event.principal))

    def note(self, caller: str, server: str, name: str, arguments: Mapping[str, Any]) -> None:
        """These arguments were used; what of them is worth remembering is decided later. `caller` is a `memory_key`."""
        if caller:
            self._notes.append((caller, server, name, arguments, clock.monotonic()))

    def digest(self) -> None:
        """Read the notes."""
        learn = self._plan.value.features.learn
        if learn is not self._memory.enabled:
            self._memory.switch(learn)
        while self._notes:
            note = self._notes.popleft()
            self._memory.learn(*note)

    def used(self, caller: str, place: CompletionPlace) -> Mapping[str, Usage]:
        self.digest()
        return self._memory.used(caller, place)

    def forget(self, caller: str) -> None:
        """Forget what a caller used: its session has ended, or its data are erased."""
        self._notes = deque((note for note in self._notes if note[0] != caller), MAX_NOTES)
        self._memory.forget(caller)

    def index(self, key: Hashable, source: object, values: Callable[[], Iterable[str]]) -> CandidateIndex:
        """The index of one place, made anew when what it was made of has changed."""
        found = self._indexes.get(key)
        if found is not None and found[0] is source:
            self._indexes.move_to_end(key)
            return found[1]
        index = CandidateIndex.build(values())
        self._indexes[key] = (source, index)
        self._indexes.move_to_end(key)
        if len(self._indexes) > MAX_INDEXES:
            self._indexes.popitem(last=False)
        return index

    def recent(self, key: Hashable) -> bytes | None:
        """The same question was answered a moment ago."""
        found = self._answers.get(key)
        return found[1] if found is not None and clock.monotonic() - found[0] < FRESH_S else None

    def keep(self, key: Hashable, answer: bytes) -> None:
        self._answers[key] = (clock.monotonic(), answer)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)


class ArgumentChecks:
    """What is done with the arguments of every tool call, as the plan in force has it: checked, and remembered for completion."""

    def __init__(self, plan: Live[Plan], validation: Validation, completions: Completions) -> None:
        self._plan = plan
        self._validation = validation
        self._completions = completions

    def before_hold(self, request: Request, tool: ToolRef, arguments: Any) -> str:
        """See `Validation.before_hold`."""
        return self._validation.before_hold(tool.entry, tool.wire, arguments, request.message.raw_params or b"")

    def validate_and_learn(self, request: Request, tool: ToolRef, arguments: Any) -> None:
        features = self._plan.value.features
        if tool.entry is not None and features.validate is not Validate.OFF:
            self._validation.arguments(tool.entry, tool.wire, arguments, request.message.raw_params or b"")
        if arguments and features.learn and len(request.message.raw_params or b"") <= MAX_NOTED_BYTES:
            self._completions.note(memory_key(request), tool.server, tool.name, arguments)


# Which server a URI came from that a caller was given in a result: servers need not list what they link to.
#
# Remembered for each caller and scope, the latest first, and gone after a restart: for anonymous callers by conversation, or by
# address where there is none, so that a result for one does not decide where a URI leads for another. What may be read is
# decided elsewhere.

MAX_REMEMBERED: Final = 20_000
_PART_BYTES: Final = 1 << 20


class HandedOut:
    def __init__(self) -> None:
        self._servers: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def note(self, caller: str, scope: str, server: str, result: bytes) -> None:
        """A result of this server goes to this caller (a `fair_key`)."""
        self.note_uris(caller, scope, server, uris_in(result))

    async def note_large(self, caller: str, scope: str, server: str, result: bytes) -> None:
        """The same for a result that is too large to be read in one go."""
        for begin in range(0, len(result), _PART_BYTES):
            self.note_uris(caller, scope, server, uris_between(result, begin, begin + _PART_BYTES))
            await let_others_run()

    def note_uris(self, caller: str, scope: str, server: str, uris: list[str]) -> None:
        for uri in uris:
            key = (caller, scope, uri)
            self._servers[key] = server
            self._servers.move_to_end(key)
        while len(self._servers) > MAX_REMEMBERED:
            self._servers.popitem(last=False)

    def owner(self, caller: str, scope: str, uri: str) -> str | None:
        return self._servers.get((caller, scope, uri))
