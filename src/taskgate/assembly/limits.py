"""Convert the `limits` section to the limits of the gateway, by name."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

from taskgate.config.model.gateway_file import GatewayFile
from taskgate.core.limits import Limits
from taskgate.core.sampling.spending import SpendLimits

_FIELDS = frozenset(field.name for field in fields(Limits))


def build_limits(root: GatewayFile) -> Limits:
    """Return the configured limits; durations become seconds. Keys that are no field are read elsewhere in `assembly`."""
    given = (limit_of(key, value) for key, value in root.limits)
    tenant = SpendLimits(
        root.limits.sampling_tokens_per_tenant_per_hour, root.limits.sampling_money_per_tenant_per_hour
    )
    return Limits(**{name: value for name, value in given if name in _FIELDS}, sampling_of_tenant=tenant)


def limit_of(key: str, value: Any) -> tuple[str, Any]:
    """Return the field for a key of the section, and its value."""
    if isinstance(value, timedelta):
        return f"{key}_s", value.total_seconds()
    if key.endswith("_ms"):
        return f"{key.removesuffix('_ms')}_s", value / 1000
    return key, value
