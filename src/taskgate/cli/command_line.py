"""Commands declared by their functions: the annotation of a parameter declares the option or argument that it receives.

    def show(task_id: Annotated[str, Argument(help="Task id.")], as_json: Annotated[bool, Option("--json")] = False):
        \"\"\"Show one task.\"\"\"

A small layer over click. It supports the types of parameters that the commands use, and creates a command when it is selected:
most commands run for less time than a library that converts values takes to import.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import click
from click import BadParameter as BadParameter
from click import Context as Context
from click import confirm as confirm
from click import echo as echo
from click import prompt as prompt
from click.exceptions import Exit as Exit

from taskgate.cli.exit_codes import ExitCode

CommandFunction = Callable[..., None]
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


def without_secrets(text: str) -> str:
    """Redact the secrets of the configuration."""
    from taskgate.telemetry.logs import log

    return log.without_secrets(text)


class Failed(click.ClickException):
    """A command cannot do what it was called for. Its message goes to stderr; with `--json`, an object goes to stdout."""

    def __init__(self, message: str, code: ExitCode, **facts: object) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # click reads it from the instance
        self.facts = facts

    def show(self, file: Any = None) -> None:
        echo(without_secrets(self.message), file=file, err=True)


class Option:
    """A named parameter. Without names it is called like the parameter, and a switch gets a `--no-` form."""

    def __init__(
        self,
        *names: str,
        help: str = "",
        min: float | None = None,
        max: float | None = None,
        metavar: str | None = None,
        show_default: bool = True,
        hidden: bool = False,
    ) -> None:
        self.names = names
        self.help = help
        self.min, self.max = min, max
        self.metavar = metavar
        self.show_default = show_default
        self.hidden = hidden


class Argument:
    """A positional parameter."""

    def __init__(self, *, help: str = "", metavar: str | None = None) -> None:
        self.help = help
        self.metavar = metavar


class Commands:
    """Commands and groups of commands, by name. Each is created when it is selected."""

    def __init__(self, help: str = "") -> None:
        self._help = help
        self._factories: dict[str, Callable[[], click.Command]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._factories)

    def command(
        self,
        name: str,
        *,
        kind: type[SimpleCommand] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Callable[[CommandFunction], CommandFunction]:
        """Register a function as a command. `kind` parses its arguments, `settings` are click's for its context."""

        def register(function: CommandFunction) -> CommandFunction:
            self._factories[name] = lambda: _command(name, function, kind or SimpleCommand, settings)
            return function

        return register

    def add(self, group: Commands, name: str, *, hidden: bool = False) -> None:
        self._factories[name] = lambda: Group(name, group, hidden=hidden)

    def create(self, name: str) -> click.Command | None:
        factory = self._factories.get(name)
        return factory() if factory is not None else None

    @property
    def help(self) -> str:
        return self._help


class SuggestingGroup(click.Group):
    """A group that suggests similar names for an unknown command."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"There is no command {name!r}.{self._suggestion(ctx, name)}")
        return super().resolve_command(ctx, args)

    def _suggestion(self, ctx: Context, name: str) -> str:
        import difflib

        similar = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
        return f" Did you mean {similar[0]}?" if similar else ""


class Group(SuggestingGroup):
    """A group that lists its commands in the order of their registration and creates only the selected one."""

    def __init__(self, name: str, commands: Commands, *, hidden: bool = False) -> None:
        super().__init__(name, help=commands.help, no_args_is_help=True, hidden=hidden)
        self._registered = commands

    def list_commands(self, ctx: Context) -> list[str]:
        return list(self._registered.names)

    def get_command(self, ctx: Context, cmd_name: str) -> click.Command | None:
        return self._registered.create(cmd_name)


def _printed_as_json(problem: click.ClickException) -> Exit:
    """Print a failure for a script. Return the exception that ends the command."""
    facts = problem.facts if isinstance(problem, Failed) else {}
    text = without_secrets(problem.format_message())
    echo(json.dumps({"error": text, "exit_code": problem.exit_code, **facts}, ensure_ascii=False))
    return Exit(problem.exit_code)


class SimpleCommand(click.Command):
    """A command whose help describes its arguments, which click omits."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        as_json = "--json" in args and any(param.name == "as_json" for param in self.params)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as problem:
            if not as_json:
                raise
            raise _printed_as_json(problem) from None

    def format_options(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (param.make_metavar(ctx), param.description)
            for param in self.params
            if isinstance(param, DescribedArgument)
        ]
        if described := [row for row in rows if row[1]]:
            with formatter.section("Arguments"):
                formatter.write_dl(described)
        super().format_options(ctx, formatter)


class DescribedArgument(click.Argument):
    def __init__(self, names: list[str], description: str, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.description = description


def _command(
    name: str, function: CommandFunction, kind: type[SimpleCommand], settings: Mapping[str, Any] | None
) -> click.Command:
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    contexts = [parameter.name for parameter in parameters if parameter.annotation is Context]
    text = inspect.cleandoc(function.__doc__ or "")

    def run(**given: Any) -> None:
        try:
            function(**given, **dict.fromkeys(contexts, click.get_current_context()))
        except click.ClickException as problem:
            if not given.get("as_json"):
                raise
            raise _printed_as_json(problem) from None

    return kind(
        name,
        params=[_parameter(parameter) for parameter in parameters if parameter.name not in contexts],
        callback=run,
        help=text,
        short_help=" ".join(text.split("\n\n")[0].split()),
        context_settings=dict(settings or {}),
    )


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    if get_origin(parameter.annotation) is not Annotated:
        raise TypeError(f"{parameter.name} must be Annotated with an Option or an Argument")
    annotation, declared = get_args(parameter.annotation)[:2]
    several = list in {get_origin(part) for part in (annotation, *get_args(annotation))}
    kind = str if several else _without_none(annotation)
    required = parameter.default is inspect.Parameter.empty
    default = None if required else parameter.default
    # click takes a default of None for a given value, so that nothing is missing.
    presence: dict[str, Any] = {"required": True} if required else {"default": default}
    if isinstance(declared, Argument):
        return DescribedArgument(
            [parameter.name],
            declared.help,
            type=_type(kind, None, None),
            metavar=declared.metavar,
            nargs=-1 if several else 1,
            **presence,
        )
    assert isinstance(declared, Option), declared
    is_switch = kind is bool
    return click.Option(
        [parameter.name, *(declared.names or _default_names(parameter.name, is_switch=is_switch))],
        help=declared.help,
        type=None if is_switch else _type(kind, declared.min, declared.max),
        is_flag=is_switch,
        multiple=several,
        metavar=declared.metavar,
        show_default=declared.show_default and default not in (None, False, ""),
        hidden=declared.hidden,
        **presence,
    )


def _without_none(annotation: Any) -> Any:
    """Return `str` for `str | None`."""
    return next((part for part in get_args(annotation) if part is not NoneType), annotation)


def _default_names(name: str, *, is_switch: bool) -> list[str]:
    option = name.replace("_", "-")
    return [f"--{option}/--no-{option}"] if is_switch else [f"--{option}"]


def _type(kind: Any, minimum: float | None, maximum: float | None) -> click.ParamType[Any]:
    if kind in (int, float) and minimum is None and maximum is None:
        return click.INT if kind is int else click.FLOAT
    if kind is int:
        return click.IntRange(None if minimum is None else int(minimum), None if maximum is None else int(maximum))
    if kind is float:
        return click.FloatRange(minimum, maximum)
    if kind is Path:
        return click.Path(path_type=Path)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _EnumChoice(kind)
    if kind is not str:
        raise TypeError(f"parameters of type {kind} are not supported")
    return click.STRING


class _EnumChoice(click.Choice[str]):
    """The members of an enumeration, by their values."""

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__([member.value for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        return self._kind(super().convert(value, param, ctx))
