"""The templates of the pages, and the functions that they use."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from taskgate.core.governance.card import show_value
from taskgate.core.text.plain_text import visible
from taskgate.dashboard import units
from taskgate.dashboard.assets import HERE
from taskgate.dashboard.text_filters import ago, clear, moment, segment, short_id, shown_name, span, task_status


@cache
def environment() -> jinja2.Environment:
    """One environment for all consoles of a process, with all templates compiled. The first call takes about 0.5 s."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        finalize=_with_escapes,
    )
    made.filters.update(
        ago=ago,
        moment=moment,
        span=span,
        clear=clear,
        shown_name=shown_name,
        shown=show_value,
        segment=segment,
        short_id=short_id,
        task_status=task_status,
    )
    made.filters.update(
        duration=units.duration, size=units.size, count=units.count, rate=units.rate, percent=units.percent
    )
    for name in made.list_templates():
        made.get_template(name)
    return made


def _with_escapes(value: Any) -> Any:
    """Escape invisible characters in every value of a template, including those that no filter was applied to."""
    return visible(value) if type(value) is str else value
