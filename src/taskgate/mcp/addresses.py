"""Which numbers lead to the open internet, and which into this machine or a network behind it.

Judged at the very moment of connecting, so a name that changes its mind gains nothing.
"""

from __future__ import annotations

import ipaddress

# IPv4 addresses written as IPv6 ones: translated by a router (NAT64), or the old "compatible" form.
_TRANSLATED = (
    ipaddress.IPv6Network("64:ff9b::/96"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
    ipaddress.IPv6Network("::/96"),
)


def is_public_address(address: str) -> bool:
    """Whether a number leads to the open internet, and not into this machine or a network behind it.

    An IPv4 address inside an IPv6 one (mapped, translated, tunnelled) is judged as the IPv4 address it leads to.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            return False
        inner = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
        if any(found in network for network in _TRANSLATED):
            inner.append(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
        if any(each is not None and not _is_global(each) for each in inner):
            return False
        if found.ipv4_mapped is not None:
            return True
    return _is_global(found)


def _is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_global and not address.is_multicast and not address.is_reserved
