"""Decide whether an IP address is public: global unicast, and outside every special-purpose range of IANA.

Callers resolve a name first and connect to the addresses they checked. The ranges are listed here instead of using
`ipaddress.is_global`, because that property differs between Python versions.
"""

from __future__ import annotations

import ipaddress
from typing import Final

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The IANA IPv4 Special-Purpose Address Registry, and multicast. Ranges that the registry calls globally reachable are
# anycast services of the network itself (AS112, AMT, PCP, TURN) and host no MCP server or issuer.
SPECIAL_IPV4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private use
            "100.64.0.0/10",  # shared by a carrier's customers
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local; metadata services of cloud providers
            "172.16.0.0/12",  # private use
            "192.0.0.0/24",  # IETF protocol assignments: DS-Lite, NAT64 discovery, PCP, TURN
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",  # private use
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarking
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and limited broadcast
        ),
    )
)

GLOBAL_UNICAST_IPV6: Final = ipaddress.IPv6Network("2000::/3")
"""Everything IANA delegates for global unicast. The rest is local, multicast, used for translation, or unassigned."""

# The IANA IPv6 Special-Purpose Address Registry, as far as it lies inside 2000::/3. 6to4 and Teredo lead to an IPv4 address
# through a relay that the sender does not choose.
SPECIAL_IPV6: Final = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # IETF protocol assignments: Teredo, benchmarking, ORCHID, AMT, AS112, anycast, drones
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)

# Forms that embed an IPv4 address in their last 32 bits: "mapped" is how the operating system writes IPv4, and the
# well-known NAT64 prefix is what DNS64 returns for public IPv4 servers where there is no IPv4.
_EMBEDS_IPV4: Final = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
"""The first 32 of the last 64 bits of an ISATAP address; the other 32 are the IPv4 address its router sends to."""


def is_public_address(address: str) -> bool:
    """Return whether the text is a public IP address. Other text and addresses with a zone are not."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return is_public(found)


def is_public(address: _Address) -> bool:
    """Return whether the address is public. An embedded IPv4 address must be public too."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in SPECIAL_IPV4)
    if address.scope_id is not None:
        return False
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if any(address in network for network in _EMBEDS_IPV4):
        return is_public(last)
    if address not in GLOBAL_UNICAST_IPV6 or any(address in network for network in SPECIAL_IPV6):
        return False
    return (int(address) >> 32) & 0xFFFFFFFF not in _ISATAP or is_public(last)
