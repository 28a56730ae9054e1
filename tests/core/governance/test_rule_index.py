"""The index of rules returns the same as trying every rule in order, and is fast for a thousand tools."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.cpu_time import least_cpu

from taskgate.core.globs import Glob, PatternError
from taskgate.core.governance.glob_index import MAX_SERVERS, RuleIndex
from taskgate.core.governance.rules import RuleSet, compile_rules
from taskgate.core.patterns import Pattern, PatternKind, checked_skeleton
from taskgate.core.settings.governance import Action, Rule
from taskgate.core.text.lookalikes import skeleton

_LETTERS = "abA_-."
_glob = st.text(alphabet=_LETTERS + "**?[]!", min_size=1, max_size=7)
_server = st.sampled_from(["s", "t", "s2", "*", "s*", "?"])
_kind = st.sampled_from(["", "resource:", "prompt:", "tool:"])


@st.composite
def _rules(draw: st.DrawFn) -> list[Rule]:
    made: list[Rule] = []
    for _ in range(draw(st.integers(0, 12))):
        kind, server = draw(_kind), draw(st.one_of(st.none(), _server))
        head = f"{server}:{kind or 'tool:'}" if server is not None else kind
        text = head + draw(_glob)
        try:
            Pattern.compile(text)
        except PatternError:
            continue
        made.append(Rule(text, draw(st.sampled_from(Action)), server=draw(st.sampled_from([None, None, "s", "t"]))))
    return made


def slowly(rules: list[Rule], kind: PatternKind, server: str, name: str) -> str:
    """The reference: the first rule, in order, whose server and pattern match."""
    for index, rule in enumerate(rules):
        if rule.server in (None, server) and Pattern.compile(rule.match).matches(server, name, kind):
            return f"rules[{index}] {rule.match}"
    return "defaults"


@given(
    _rules(), st.sampled_from(PatternKind), st.sampled_from(["s", "t", "s2"]), st.text(alphabet=_LETTERS, max_size=6)
)
def test_the_index_gives_the_same_decision_as_trying_every_rule(
    rules: list[Rule], kind: PatternKind, server: str, name: str
) -> None:
    compiled = compile_rules(rules)
    assert compiled.match(kind, server, name)[-1].label == slowly(rules, kind, server, name)
    assert compiled.match(kind, server, name)[-1].label == slowly(rules, kind, server, name), "and again, from memory"


@given(
    _rules(), st.sampled_from(PatternKind), st.sampled_from(["s", "t", "s2"]), st.text(alphabet=_LETTERS, max_size=6)
)
def test_lookalikes_get_the_same_decision_as_from_trying_every_rule(
    rules: list[Rule], kind: PatternKind, server: str, name: str
) -> None:
    expected = "defaults"
    for index, rule in reversed([*enumerate(rules)]):
        pattern = Pattern.compile(rule.match)
        if rule.server in (None, server) and pattern.kind is kind and pattern.server.matches(server):
            folded = _folded(pattern.name)
            expected = f"rules[{index}] {rule.match}" if folded.matches(checked_skeleton(name, kind)) else expected
    assert compile_rules(rules).match_lookalike(kind, server, name)[-1].label == expected


def _folded(glob: Glob) -> Glob:
    """The glob over skeletons; the glob itself if folding reverses a character class."""
    try:
        return Glob.unchecked(skeleton(glob.text))
    except PatternError:
        return glob


def test_patterns_without_capital_letters_are_compiled_once_for_names_and_lookalikes() -> None:
    plain = compile_rules([Rule("drop_*", Action.DENY), Rule("*[a-c]?", Action.DENY)])
    assert plain.match_lookalike(PatternKind.TOOL, "s", "DROP_a")[-1].label == "rules[0] drop_*"
    assert plain._lookalikes is not None
    assert plain._lookalikes[0] is plain._index
    mixed = compile_rules([Rule("drop_*", Action.DENY), Rule("Wipe", Action.DENY)])
    assert mixed.match_lookalike(PatternKind.TOOL, "s", "wipe")[-1].label == "rules[1] Wipe"
    assert mixed.match(PatternKind.TOOL, "s", "wipe")[-1].label == "defaults"


def _thousand_rules() -> RuleSet:
    shapes = ("drop_{0}_*", "*_purge_{0}", "*_{0}_mid*", "tool_{0}x", "a{0}*b*c", "[abc]{0}*", "s{0}:write_*", "*q{0}")
    rules = [Rule(shapes[n % len(shapes)].format(n), Action.DENY) for n in range(1000)]
    return compile_rules(rules, force_required=[f"export_{n}_*" for n in range(200)])


def test_a_thousand_rules_decide_a_thousand_tools_within_a_tenth_of_a_second() -> None:
    names = [f"{verb}_{n}_file_{n % 7}" for n in range(250) for verb in ("read", "drop", "purge", "acquire")]

    def decide_all(rules: RuleSet) -> None:
        for name in names:
            rules.match(PatternKind.TOOL, f"s{len(name) % 3}", name)
            rules.forced("s1", name)

    fresh = iter([_thousand_rules() for _ in range(6)])
    assert least_cpu(lambda: decide_all(next(fresh)), below=0.1) < 0.1


def test_the_first_of_several_rules_of_every_kind_decides() -> None:
    """Prefixes, suffixes, infixes and whole names together, and names shorter than any of them."""
    globs = ["*_long_ending", "*_end", "*iddl*", "long_begin_*", "be*g", "be*", "be_exactly", "*ee*"]
    rules = [Rule(glob, Action.DENY) for glob in globs]
    index = compile_rules(rules)
    names = [
        "x_end",
        "a_middle_b",
        "begin",
        "beg",
        "be_exactly",
        "b",
        "",
        "x",
        "a_long_ending",
        "see_end",
        "long_begin_x",
    ]
    for name in names:
        assert index.match(PatternKind.TOOL, "s", name)[-1].label == slowly(rules, PatternKind.TOOL, "s", name)


def test_a_rule_of_one_server_with_the_pattern_of_another_covers_nothing() -> None:
    rules = [Rule("t:drop", Action.DENY, server="s"), Rule("s:drop", Action.DENY, server="s")]
    index = compile_rules(rules)
    for _ in range(2):
        assert index.match(PatternKind.TOOL, "s", "drop")[-1].label == "rules[1] s:drop"
        assert index.match(PatternKind.TOOL, "t", "drop")[-1].label == "defaults"


def test_decisions_are_the_same_beyond_the_cache_of_servers() -> None:
    rules = [Rule("srv*:drop", Action.DENY), Rule("other:drop", Action.DENY)]
    index = RuleIndex(
        [(number, Pattern.compile(rule.match), rule.server) for number, rule in enumerate(rules)],
        lambda pattern: pattern.name,
    )
    for _ in range(2):
        found = {index.first(PatternKind.TOOL, f"srv{n}", "drop") for n in range(MAX_SERVERS + 2)}
        assert found == {0}
    assert index.first(PatternKind.TOOL, "other", "drop") == 1


def test_lookalikes_are_decided_by_the_same_rules_each_time() -> None:
    rules = compile_rules([Rule("drop", Action.DENY)])
    for _ in range(2):
        assert rules.match_lookalike(PatternKind.TOOL, "s", "DROP")[-1].action is Action.DENY
        assert rules.match_lookalike(PatternKind.TOOL, "s", "read")[-1].action is not Action.DENY


def test_the_first_of_many_rules_for_middles_decides() -> None:
    """With this many rules, the parts of a name are looked up instead of the patterns."""
    globs = ["*w?z*", *(f"*m{number:03}[a-f]?" for number in range(200)), "*m007*?x", "*7b?"]
    rules = [Rule(glob, Action.DENY) for glob in globs]
    index = compile_rules(rules)
    for name in ("a_m007ax", "am199fy", "m007gx", "a7bx", "m1", "", "wyz", "wyz_m007ax", "m003a1_m002b2"):
        assert index.match(PatternKind.TOOL, "s", name)[-1].label == slowly(rules, PatternKind.TOOL, "s", name)
