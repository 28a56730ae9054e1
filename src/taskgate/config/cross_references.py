"""Check references between parts of a configuration: workflows, servers, scopes, profiles, tags, and patterns.

Works on the tree rather than on validated sections, so that these mistakes are reported together with all others.
With `registry_dir`, an unknown server or tag is only a warning: a missing record must not prevent the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec import field

from taskgate.config import rule_conditions
from taskgate.config.problems import Mark, Problem, did_you_mean, one_of, problem_at
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence, plain, text_of
from taskgate.core.globs import Glob, PatternError
from taskgate.core.governance.pattern_mistakes import mistake_in, taken_apart
from taskgate.core.governance.rules import OrderedRule, unreachable
from taskgate.core.patterns import Pattern, PatternKind

_NOT_SERVERS = ("resource", "prompt", "tool")
# Server name of the gateway's own tools in patterns.
_OWN_SERVER = "taskgate"
GLOB_CHARACTERS = frozenset("*?[")
_VERSION = set("@=:")
_RUNNERS = ("npx", "bunx", "uvx", "pipx")


class References(msgspec.Struct):
    """The defined names, and the problems and warnings about references to undefined ones."""

    root: Mapping
    servers: dict[str, Entry]
    lenient: bool
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    _shown: dict[str, str] | None = None
    """The result of `_shown_as`: there may be thousands of rules and of servers."""
    _selecting: dict[str, bool] = field(default_factory=dict)
    """The results of `_selects_any`, by reference."""

    def unknown(
        self, mark: Mark, key: str, what: str, reference: str, known: list[str], *, lenient: bool = False
    ) -> None:
        hint = did_you_mean(reference, known) or (f"defined: {one_of(known)}" if known else "none is defined")
        (self.warnings if lenient else self.problems).append(
            problem_at(mark, key, f'there is no {what} "{reference}"', hint)
        )

    def server(self, node: Node, key: str) -> None:
        reference = text_of(node)
        if reference is None or reference == "*" or reference in self.servers:
            return
        if not GLOB_CHARACTERS & set(reference):
            self.unknown(node.mark, key, "server", reference, list(self.servers), lenient=self.lenient)
        elif not self.selected_by(reference, node.mark, key):
            self.warnings.append(
                problem_at(node.mark, key, f'no server matches "{reference}"', "check the pattern; it selects nothing")
            )

    def selected_by(self, reference: str, mark: Mark, key: str) -> list[str]:
        """Return the servers that match an id or a glob."""
        try:
            glob = Glob.compile(reference)
        except PatternError as error:
            self.problems.append(problem_at(mark, key, error.message))
            return list(self.servers)
        return [name for name in self.servers if glob.matches(name)]

    def pattern(self, node: Node, key: str, *, only: str = "", lenient: bool = False) -> None:
        """Check that a pattern can match something: a deny rule that never matches gives false safety.

        `only` is the server of a pattern that applies to one server. `lenient`: a wrong name is a warning, as all else is.
        """
        text = text_of(node) or ""
        mistake = mistake_in(text)
        if mistake is not None:
            self.warnings.append(problem_at(node.mark, key, mistake.what, mistake.hint))
        if ":" not in text and "__" not in text:
            return
        prefix, name = taken_apart(text)
        before = prefix.partition(":")[0]
        if not prefix or before in _NOT_SERVERS:
            self._own_name(node, key, prefix, name, lenient=lenient)
        elif only and not self._matches(before, only):
            message = f'applies to the server "{only}" only, so "{_shortened(text)}" matches nothing'
            self.warnings.append(problem_at(node.mark, key, message, f"write {prefix[len(before) + 1 :]}{name}"))
        elif GLOB_CHARACTERS & set(before):
            if not self._selects_any(before):
                message = f'no server matches "{before}", so "{_shortened(text)}" matches nothing'
                self.warnings.append(problem_at(node.mark, key, message, "check the part before the colon"))
        elif before not in self.servers and before != _OWN_SERVER:
            self.unknown(node.mark, key, "server", before, list(self.servers), lenient=lenient or self.lenient)

    def tools_only(self, node: Node, key: str) -> None:
        """Report a pattern on prompts or resources at a key that concerns only tools."""
        with suppress(PatternError):
            kind = Pattern.compile(text_of(node) or "").kind
            if kind is not PatternKind.TOOL:
                message = f"applies to tools only, so a pattern on {kind}s matches nothing"
                self.warnings.append(problem_at(node.mark, key, message, "remove it"))

    @staticmethod
    def _matches(reference: str, server: str) -> bool:
        glob = glob_of(reference)
        return glob is None or glob.matches(server)

    def _selects_any(self, reference: str) -> bool:
        found = self._selecting.get(reference)
        if found is None:
            known = any(self._matches(reference, name) for name in (*self.servers, _OWN_SERVER))
            found = self._selecting[reference] = known
        return found

    def _own_name(self, node: Node, key: str, kind: str, name: str, *, lenient: bool) -> None:
        """Report a pattern on `server__tool`, the name that callers use; it would match nothing."""
        shown, separator, own = name.partition("__")
        if not separator or not own or kind == "resource:":
            return
        server = self._shown_as().get(shown)
        if server is None:
            return
        message = f'"{name}" is the name that callers use; patterns match the server\'s own tool names'
        found = self.warnings if lenient else self.problems
        found.append(problem_at(node.mark, key, message, f"write {server}:{kind}{own}"))

    def _shown_as(self) -> dict[str, str]:
        """Return the server of each tool name prefix."""
        if self._shown is None:
            self._shown = {name: name for name in self.servers}
            for name, entry in self.servers.items():
                reference = entry.value.text("namespace") if isinstance(entry.value, Mapping) else None
                if reference is not None:
                    self._shown[reference] = name
        return self._shown


def check_references(root: Mapping, servers: dict[str, Entry]) -> References:
    """Return all references to undefined names, and all contradictions."""
    found = References(root, servers, lenient="registry_dir" in root.entries)
    _check_governance(found)
    _check_namespaces(found)
    _check_profiles(found)
    _check_scopes(found)
    _check_versions(found)
    _check_deprecated(found)
    return found


def _check_governance(found: References) -> None:
    governance = found.root.map("governance")
    _check_workflow(found, governance.map("defaults"), "governance.defaults")
    uses_policy = governance.map("defaults").text("action") == "policy"
    for position, rule in enumerate(governance.list("rules")):
        if not isinstance(rule, Mapping):
            continue
        entries = rule.entries
        if "approval" in entries:
            _check_workflow(found, rule, f"governance.rules[{position}]")
        if (server := entries.get("server")) is not None:
            found.server(server.value, f"governance.rules[{position}].server")
        if (match := entries.get("match")) is not None:
            found.pattern(match.value, f"governance.rules[{position}].match", only=_known_server(found, rule))
        found.problems += rule_conditions.mistakes(rule, f"governance.rules[{position}]")
        found.warnings += rule_conditions.forgeable(rule, f"governance.rules[{position}]")
        uses_policy = uses_policy or rule.text("action") == "policy"
    _check_order_of_rules(found, governance.list("rules"))
    if uses_policy and not found.root.map("cedar").list("policies"):
        mark = found.root.entries["governance"].key_mark
        message = "a rule has action: policy, but there are no Cedar policies, so its calls are denied"
        found.warnings.append(problem_at(mark, "governance", message, "add cedar: {policies: [./my.cedar]}"))
    for server in found.servers.values():
        if isinstance(server.value, Mapping):
            _check_workflow(found, server.value.map("approval_policy"), f"servers.{server.key}.approval_policy")
            _check_server_patterns(found, server.key, server.value)
    _check_other_patterns(found)


def _known_server(found: References, rule: Mapping) -> str:
    """Return the server that a rule is limited to; empty if there is none, or if it is reported as unknown."""
    server = rule.text("server") or ""
    return server if server in found.servers else ""


def _check_other_patterns(found: References) -> None:
    for node, key in each(found.root.map("governance").get("force_required"), "governance.force_required"):
        found.pattern(node, key)
        found.tools_only(node, key)
    for node, key in each(found.root.map("telemetry").map("otel").get("baggage"), "telemetry.otel.baggage"):
        if (mistake := mistake_in(text_of(node) or "", PatternKind.RESOURCE)) is not None:
            found.warnings.append(problem_at(node.mark, key, mistake.what, mistake.hint))


def _check_server_patterns(found: References, name: str, server: Mapping) -> None:
    """Check the lists of one server. What is wrong in them is a warning: a server still starts with it."""
    for node, key in (
        *each(server.map("expose").get("tools"), f"servers.{name}.expose.tools"),
        *each(server.get("allowed_tools"), f"servers.{name}.allowed_tools"),
    ):
        found.pattern(node, key, only=name, lenient=True)
    for entry in server.map("approval_policy").map("tools"):
        node, key = Scalar(entry.key, entry.key_mark), f"servers.{name}.approval_policy.tools.{entry.key}"
        found.pattern(node, key, only=name, lenient=True)
        found.tools_only(node, key)


MAX_COMPARED = 500
"""Number of rules that are compared with each other; in longer lists only the first ones are."""


def _check_order_of_rules(found: References, rules: tuple[Node, ...]) -> None:
    """Warn about rules that never apply because an earlier rule matches the same calls."""
    marks: dict[int, Mark] = {}
    numbered: list[OrderedRule] = []
    for position, rule in enumerate(rules[:MAX_COMPARED]):
        text = rule.text("match") if isinstance(rule, Mapping) else None
        if not isinstance(rule, Mapping) or text is None:
            continue
        with suppress(PatternError):
            pattern = Pattern.compile(text)
            numbered.append(OrderedRule(position, pattern, rule.text("server"), _conditions(rule)))
            marks[position] = rule.mark
    covered = unreachable(numbered)
    for position, first in sorted(covered.items()):
        message = f"never applies: rules[{first}] matches the same calls first"
        hint = f"move it above rules[{first}], or remove it"
        found.warnings.append(problem_at(marks[position], f"governance.rules[{position}]", message, hint))


def _conditions(rule: Mapping) -> str:
    """Return a text that equal conditions have in common; empty without any."""
    return "".join(f"{key}={plain(rule.entries[key].value)!r} " for key in ("from", "when") if key in rule.entries)


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check_workflow(found: References, owner: Mapping, key: str) -> None:
    reference = owner.text("approval")
    workflows = found.root.map("approval").entries
    if reference is not None and reference not in workflows:
        found.unknown(
            owner.entries["approval"].value.mark, f"{key}.approval", "approval workflow", reference, list(workflows)
        )


def _check_namespaces(found: References) -> None:
    """Two servers must not share a prefix, ignoring case: a tool name must identify one server."""
    owners = {name.casefold(): name for name in found.servers}
    for name, entry in found.servers.items():
        if not isinstance(entry.value, Mapping):
            continue
        reference = entry.value.text("namespace")
        if reference is None:
            continue
        owner = owners.setdefault(reference.casefold(), name)
        if owner != name:
            mark = entry.value.entries["namespace"].value.mark
            message = f'the prefix "{reference}" is already used by server "{owner}"'
            found.problems.append(problem_at(mark, f"servers.{name}.namespace", message, "choose another"))


def _check_profiles(found: References) -> None:
    profiles = found.root.map("profiles")
    for entry in profiles:
        if not isinstance(entry.value, Mapping):
            continue
        key = f"profiles.{entry.key}"
        _check_selection(found, entry.value, key, "servers", "exclude_servers")
        base = entry.value.text("extends")
        if base is not None and base not in profiles.entries:
            mark = entry.value.entries["extends"].value.mark
            found.unknown(mark, f"{key}.extends", "profile", base, list(profiles.entries))
        elif base is not None and (cycle := _cycle(profiles, entry.key)):
            mark = entry.value.entries["extends"].value.mark
            message = f"circular inheritance: {' -> '.join(cycle)}"
            found.problems.append(problem_at(mark, f"{key}.extends", message, "remove one `extends`"))


def _cycle(profiles: Mapping, start: str) -> list[str]:
    seen = [start]
    here = profiles.map(start).text("extends")
    while here is not None and here in profiles.entries:
        if here == start:
            return [*seen, here]
        if here in seen:
            return []
        seen.append(here)
        here = profiles.map(here).text("extends")
    return []


def _check_scopes(found: References) -> None:
    profiles = found.root.map("profiles").entries
    for entry in found.root.map("scopes"):
        scope = entry.value
        if not isinstance(scope, Mapping):
            continue
        key = f"scopes.{entry.key}"
        _check_selection(found, scope, key, "default_servers", "allowed_servers")
        profile = scope.text("profile")
        if profile is not None and profile not in profiles:
            found.unknown(scope.entries["profile"].value.mark, f"{key}.profile", "profile", profile, list(profiles))
        _check_selection(
            found, scope.map("profile_overrides"), f"{key}.profile_overrides", "servers", "exclude_servers"
        )
        _check_defaults_allowed(found, scope, key)
        if not any(name in scope.entries for name in ("default_servers", "allowed_servers", "tags", "profile")):
            message = "selects no servers, so it is empty"
            hint = 'write default_servers: ["*"] for all servers'
            found.warnings.append(problem_at(entry.key_mark, key, message, hint))


def _check_selection(found: References, owner: Mapping, key: str, *lists: str) -> None:
    for name in lists:
        for node, where in each(owner.get(name), f"{key}.{name}"):
            found.server(node, where)
    known_tags = [tag for server in found.servers.values() for tag in tags_of(server)]
    for node, where in each(owner.get("tags"), f"{key}.tags"):
        if (tag := text_of(node)) is not None and tag not in known_tags:
            found.unknown(node.mark, where, "server with the tag", tag, sorted(set(known_tags)), lenient=found.lenient)
    for name in ("tool_allowlist", "tool_denylist"):
        for node, where in each(owner.get(name), f"{key}.{name}"):
            found.pattern(node, where)


def _check_defaults_allowed(found: References, scope: Mapping, key: str) -> None:
    if "allowed_servers" not in scope.entries:
        return
    allowed = [
        reference for node, _ in each(scope.get("allowed_servers"), "") if (reference := text_of(node)) is not None
    ]
    if "*" in allowed:
        return
    globs = [glob for reference in allowed if (glob := glob_of(reference)) is not None]
    for node, where in each(scope.get("default_servers"), f"{key}.default_servers"):
        reference = text_of(node)
        if reference == "*":
            hint = "name the servers, or remove allowed_servers"
            found.problems.append(problem_at(node.mark, where, '"*" includes servers outside allowed_servers', hint))
        elif reference is not None and reference not in allowed and not any(glob.matches(reference) for glob in globs):
            hint = "add it there, or remove it here"
            found.problems.append(problem_at(node.mark, where, f'"{reference}" is not in allowed_servers', hint))


def glob_of(reference: str) -> Glob | None:
    try:
        return Glob.compile(reference)
    except PatternError:
        return None


def _check_versions(found: References) -> None:
    """Warn about unpinned packages: `npx -y package` runs the newest version, even after a hostile takeover."""
    for entry in found.servers.values():
        if not isinstance(entry.value, Mapping):
            continue
        program = (entry.value.text("command") or "").rpartition("/")[2]
        arguments = [text_of(node) or "" for node in entry.value.list("args")]
        package = next((argument for argument in arguments if not argument.startswith("-")), None)
        is_pinned = package is None or package.startswith((".", "/", "~")) or bool(_VERSION & set(package[1:]))
        if program in _RUNNERS and not is_pinned:
            message = f"{program} runs the newest version of {package}, which may change between starts"
            hint = f"pin it, for example {package}@1.2.3"
            found.warnings.append(problem_at(entry.key_mark, f"servers.{entry.key}.args", message, hint))


def each(node: Node | None, key: str) -> Iterator[tuple[Node, str]]:
    if isinstance(node, Sequence):
        for position, item in enumerate(node.items):
            yield item, f"{key}[{position}]"
    elif isinstance(node, Scalar) and node.text is not None:
        yield node, key


def tags_of(server: Entry) -> list[str]:
    tags = server.value.get("tags") if isinstance(server.value, Mapping) else None
    return [text for node, _ in each(tags, "") if (text := text_of(node))]


def _check_deprecated(found: References) -> None:
    """Warn about values that the next release no longer has."""
    for entry in found.root.map("approval"):
        if not isinstance(entry.value, Mapping):
            continue
        for position, channel in enumerate(entry.value.list("channels")):
            if isinstance(channel, Mapping) and channel.text("mode") == "reactions":
                key = f"approval.{entry.key}.channels[{position}].mode"
                message = "decisions by reactions are deprecated and end with the next release"
                hint = "use buttons: add app_token and write mode: socket"
                found.warnings.append(problem_at(channel.entries["mode"].value.mark, key, message, hint))
