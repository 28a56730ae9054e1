"""What governance and sampling ask of the outside: channels that put held calls before people, a policy engine, models' vendors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from taskgate.core.choose_model import Estimate, Model, SamplingAnswer
from taskgate.core.governance.approval import Verdict
from taskgate.core.governance.card import Card
from taskgate.core.governance.pipeline import PolicyAnswer
from taskgate.core.identity import CredentialFacts
from taskgate.core.patterns import PatternKind
from taskgate.core.sampling_request import SamplingRequest

# How held calls are put before people outside the gateway's own inbox, and how their word comes back.
#
# A channel announces a card, keeps it up to date and, if it can, hands decisions to the gateway. It decides nothing
# itself: who may decide, and whether a decision still counts, is answered by the gateway for every channel alike.
# Delivery may take a while (back-off, rate limits), so the gateway awaits it beside the call, and a channel that fails
# never stops an approval: the inbox always has it.


@dataclass(frozen=True, slots=True)
class Said:
    """A person's word. `who` is the id of a token, as the channel's own check established it.

    `arguments_digest` tells what the person was shown, where the channel knows it; the gateway refuses a word
    about other arguments.
    """

    approval_id: str
    verdict: Verdict
    who: str
    reason: str
    channel: str
    arguments_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """What became of it, in words for that person. `refusal` is empty when it counted.

    Otherwise it is a value of `core.governance.approval.Refusal`, or one of the two below.
    """

    text: str
    refusal: str = ""


UNKNOWN_APPROVAL = "unknown_approval"
OTHER_ARGUMENTS = "other_arguments"

Decide: TypeAlias = Callable[[Said], Awaitable[Heard]]


@dataclass(frozen=True, slots=True)
class Delivered:
    """It arrived. `receipt` is what the channel needs to find it again, also after a restart."""

    receipt: str


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """It did not. `lasting` means that trying again is useless until somebody changes the configuration."""

    reason: str
    lasting: bool


Delivery: TypeAlias = Delivered | NotDelivered


class ApprovalChannel(Protocol):
    """One configured place where people are asked."""

    @property
    def name(self) -> str:
        """How logs and votes call it, such as `slack` or `webhook`."""

    @property
    def place(self) -> str:
        """Where it asks, as a name that is the same after a restart and holds no secret."""

    async def start(self, decide: Decide) -> None:
        """Begin to listen, if this channel does. Returns soon, also when the other side is away."""

    async def announce(self, card: Card) -> Delivery:
        """Put an open approval before people."""

    async def update(self, card: Card, receipt: str) -> Delivery:
        """Show how an announced approval stands now: another vote, decided, expired or withdrawn."""

    async def resume(self, card: Card, receipt: str) -> None:
        """Take up an approval that was announced before a restart."""

    async def close(self) -> None:
        """Stop listening and release everything."""


@dataclass(frozen=True, slots=True)
class CallbackReply:
    """The HTTP answer to a callback."""

    status: int
    body: bytes


@runtime_checkable
class CallbackChannel(ApprovalChannel, Protocol):
    """A channel whose decisions arrive as HTTP requests at the gateway's own door."""

    async def receive(self, headers: Mapping[str, str], body: bytes) -> CallbackReply:
        """One request, with lower-case header names. Never raises for anything in it."""


# What the gateway asks a policy engine, and what it hears back.
#
# An engine is loaded once per configuration revision and then asked once per call whose rule says `action: policy`.
# Asking is synchronous: it is a computation of some hundred microseconds, not a conversation. An engine never raises
# for anything in the request; what it cannot judge it rejects.

_DAY_S = 86_400
_THURSDAY = 4


@dataclass(frozen=True, slots=True)
class PolicyTime:
    """When the call is judged, in UTC. Days of the week count from Sunday = 0; `timestamp` is in seconds."""

    hour: int
    day_of_week: int
    timestamp: int

    @classmethod
    def at(cls, timestamp: int) -> PolicyTime:
        """The hour and the day of a moment."""
        days, seconds = divmod(timestamp, _DAY_S)
        # The first of January 1970 was a Thursday.
        return cls(seconds // 3_600, (days + _THURSDAY) % 7, timestamp)


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """One call to be judged. `arguments` were read strictly (`core.governance.digest.parse_strict`)."""

    principal: str
    roles: frozenset[str]
    server: str
    name: str
    arguments: Mapping[str, Any]
    scope: str
    policy_id: str
    time: PolicyTime
    tags: frozenset[str] = frozenset()
    kind: PatternKind = PatternKind.TOOL
    facts: CredentialFacts | None = None
    """What the caller's token says; None where it has none of an issuer."""


class PolicyEngine(Protocol):
    """A loaded set of policies."""

    @property
    def revision(self) -> str:
        """A digest of everything that can change an answer."""

    def evaluate(self, request: PolicyRequest) -> PolicyAnswer:
        """Judge one call. Anything that goes wrong is a rejection with the cause as its reason."""

    def workflows(self) -> Mapping[str, str]:
        """The approval workflows that policies pick, each with the place that names it."""

    def contradictions(self, server: str, tool: str, input_schema: Mapping[str, Any]) -> tuple[str, ...]:
        """Warnings where a policy expects other arguments than the tool's input schema describes."""


# What the gateway needs of a language model's vendor: an answer, a list, a price.
#
# A provider answers a server's sampling request where no caller and no person does. It makes one attempt within one
# deadline, spends nothing on its own initiative, and raises `SamplingError` for everything that goes wrong; budgets and
# consent are asked before it.


class ModelProvider(Protocol):
    """One vendor with one key."""

    @property
    def name(self) -> str:
        """The name it has in the configuration."""
        ...

    def available_models(self) -> tuple[Model, ...]:
        """The models that the operator declared, in their order."""
        ...

    def estimate_cost(self, request: SamplingRequest, model: Model) -> Estimate:
        """What a request will cost at most."""
        ...

    async def create_message(self, request: SamplingRequest, model: Model) -> SamplingAnswer:
        """Ask the model once. Raises SamplingError."""
        ...

    async def close(self) -> None:
        """Give back what it holds open."""
        ...
