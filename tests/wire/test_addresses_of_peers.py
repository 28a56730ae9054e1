"""Every special range of IPv4 and IPv6 counts as private, in every form in which such an address can be written."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.mcp.addresses import is_public_address

# Every row of https://www.iana.org/assignments/iana-ipv4-special-registry, and multicast.
SPECIAL_IPV4 = (
    "0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32", "192.0.0.171/32",
    "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32", "192.168.0.0/16",
    "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    "255.255.255.255/32",
)  # fmt: skip

# Every row of https://www.iana.org/assignments/iana-ipv6-special-registry except the two forms that contain an IPv4
# address; multicast, the deprecated forms, and a range of each block that is not delegated for global unicast.
SPECIAL_IPV6 = (
    "::/128", "::1/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32", "2001:1::1/128",
    "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28", "2001:20::/28",
    "2001:30::/28", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10",
    "ff00::/8",
    "::/96", "::ffff:0:0:0/96", "fec0::/10", "200::/7", "400::/6", "4000::/3", "6000::/3", "8000::/1", "e000::/4",
    "f000::/5", "f800::/6", "fe00::/9",
)  # fmt: skip

PUBLIC = (
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
    "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0", "192.0.3.0",
    "192.31.195.255", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
    "198.51.99.255", "203.0.114.0", "223.255.255.255",
    "2000::", "2001:200::", "2001:db7:ffff::1", "2001:db9::1", "2003::1", "2606:4700:4700::1111", "2620:4f:7fff::1",
    "2620:4f:8001::1", "3ffe:ffff::1", "3fff:1000::1",
)  # fmt: skip


def ends(network: str) -> tuple[str, ...]:
    found = ipaddress.ip_network(network)
    middle = found.network_address + found.num_addresses // 2
    return tuple(map(str, (found.network_address, middle, found.broadcast_address)))


def as_ipv6(prefix: str, address: str) -> str:
    return str(ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(ipaddress.IPv4Address(address))))


@pytest.mark.parametrize("network", [*SPECIAL_IPV4, *SPECIAL_IPV6])
def test_special_ranges_are_private_from_first_to_last_address(network: str) -> None:
    assert [address for address in ends(network) if is_public_address(address)] == []


@pytest.mark.parametrize("network", SPECIAL_IPV4)
@pytest.mark.parametrize(
    "prefix",
    ["::ffff:0:0", "64:ff9b::", "64:ff9b:1::", "::", "::ffff:0:0:0", "2606:4700::5efe:0:0", "2606:4700::200:5efe:0:0"],
    ids=["mapped", "nat64", "nat64-local", "compatible", "translated", "isatap", "isatap-global"],
)
def test_special_ipv4_address_inside_ipv6_is_private(prefix: str, network: str) -> None:
    assert [address for address in ends(network) if is_public_address(as_ipv6(prefix, address))] == []


@pytest.mark.parametrize("address", ["8.8.8.8", "10.0.0.1", "127.0.0.1"])
def test_tunnelled_addresses_are_private_regardless_of_their_target(address: str) -> None:
    inner = int(ipaddress.IPv4Address(address))
    sixtofour = ipaddress.IPv6Address((0x2002 << 112) | (inner << 80) | 1)
    teredo_client = ipaddress.IPv6Address((0x20010000 << 96) | (0x08080808 << 64) | (inner ^ 0xFFFFFFFF))
    teredo_server = ipaddress.IPv6Address((0x20010000 << 96) | (inner << 64) | (0x08080808 ^ 0xFFFFFFFF))
    assert sixtofour.sixtofour == ipaddress.IPv4Address(address)
    assert teredo_client.teredo is not None
    assert not any(is_public_address(str(each)) for each in (sixtofour, teredo_client, teredo_server))


@pytest.mark.parametrize("zone", ["%eth0", "%1", "%25eth0"])
@pytest.mark.parametrize("address", ["fe80::1", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_address_with_zone_is_private(address: str, zone: str) -> None:
    assert not is_public_address(address + zone)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "010.0.0.1",
        "8.8.8.8/32",
        "[::1]",
        " 8.8.8.8",
    ],
)
def test_text_that_is_not_one_address_is_private(text: str) -> None:
    assert not is_public_address(text)


@pytest.mark.parametrize("address", PUBLIC)
def test_neighbours_of_special_ranges_are_public(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize("prefix", ["::ffff:0:0", "64:ff9b::"])
def test_public_ipv4_address_written_as_ipv6_is_public(prefix: str) -> None:
    assert is_public_address(as_ipv6(prefix, "8.8.8.8"))


@given(st.ip_addresses())
def test_no_address_is_public_that_python_calls_special(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    special = not address.is_global or address.is_multicast or address.is_reserved
    if special and getattr(address, "ipv4_mapped", None) is None:
        assert not is_public_address(str(address))
