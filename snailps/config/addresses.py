"""Parses and formats addresses, port ranges and ``package.module:Class``.

    "tcp://node1:16831" -> parse_addr -> ("node1", 16831) -> format_addr -> "node1:16831"

Text only: must not resolve a name, connect or import.
"""

from __future__ import annotations

import ipaddress
import re

from snailps.errors import ConfigError

Address = tuple[str, int]
"""Host and port."""
PORT_MAX = 65535
HOST_CHARS_MAX = 253
ANY_HOSTS = ("0.0.0.0", "::")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_FORMS = "10.0.0.5:16831, node1:16831 or [::1]:16831, with or without tcp://"


def parse_addr(text: str, origin: str, *, port_optional: bool = False) -> tuple[str, int]:
    """Split ``host:port`` or ``[ipv6]:port``, with or without ``tcp://``; `origin` begins an error.

    Host ``*`` becomes ``0.0.0.0``.  With `port_optional` the port may be absent or 0: 0 then.
    """

    def refuse(why: str) -> ConfigError:
        return ConfigError(f"{origin}: expected an address such as {_FORMS}; got {text!r}: {why}")

    rest = text.strip()
    if "://" in rest:
        scheme, _, rest = rest.partition("://")
        if scheme.lower() != "tcp":
            raise refuse(f"only tcp is supported, not {scheme!r}")
    if rest.startswith("["):
        host, bracket, rest = rest[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise refuse("brackets enclose an IPv6 address, and a colon and port follow them")
        colon, port_text = rest[:1], rest[1:]
        if not _is_ip(host, ipaddress.IPv6Address):
            raise refuse(f"{host!r} is not an IPv6 address")
    else:
        host, colon, port_text = rest.partition(":")
        if ":" in port_text:
            raise refuse("write an IPv6 address in brackets")
        host = "0.0.0.0" if host == "*" else host
        numeric = host.replace(".", "").isdigit()
        if not (_is_ip(host, ipaddress.IPv4Address) if numeric else _HOST_NAME.fullmatch(host)):
            raise refuse(f"{host!r} is not a host" if host else "the host is missing")
        if fault := host_fault(host):
            raise refuse(fault)
    if not colon and port_optional:
        return host, 0
    port_low = 0 if port_optional else 1
    if not re.fullmatch("[0-9]{1,5}", port_text) or not port_low <= int(port_text) <= PORT_MAX:
        fault = f"{port_text!r} is not a port" if port_text else "the port is missing"
        raise refuse(f"{fault} (expected a port from {port_low} to {PORT_MAX})")
    return host, int(port_text)


def host_fault(host: str) -> str:
    """Say what makes `host` malformed, without resolving it; empty if nothing does.

    `getaddrinfo` raises only `OSError` for a host that passes.
    """
    if not host:
        return "the host is missing"
    if len(host) > HOST_CHARS_MAX:
        return f"a host has at most {HOST_CHARS_MAX} characters, this one {len(host):,}"
    if not host.isprintable() or " " in host:
        return "a host has only printable characters and no spaces"
    try:
        host.encode("idna")
    except UnicodeError:  # a label that is empty, or longer than 63 characters
        return "the parts between the dots of a host have 1 to 63 characters each"
    return ""


def format_addr(host: str, port: int) -> str:
    """Write ``host:port``, with brackets round an IPv6 address; the inverse of `parse_addr`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(header: str) -> str:
    """Return the host in an HTTP request's header Host, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def parse_port_range(text: str, origin: str) -> tuple[int, int] | None:
    """Parse ``"20000-20100"`` to (low, high), both included; None for an empty text."""
    if not text.strip():
        return None
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*-\s*([0-9]{1,5})\s*", text)
    low, high = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= low <= high <= PORT_MAX:
        raise ConfigError(
            f"{origin}: expected a range of ports such as 20000-20100, the lower one first, "
            f"within 1 to {PORT_MAX}; got {text!r}"
        )
    return low, high


def check_reachable_addr(text: str, origin: str) -> str:
    """Normalise an address to connect to; refuse a wildcard address."""
    host, port = parse_addr(text, origin)
    return format_addr(_reachable(host, text, origin), port)


def check_advertised_addr(text: str, origin: str) -> str:
    """Like `check_reachable_addr`, but the port may be absent; an empty text stays empty."""
    if not text:
        return text
    host, port = parse_addr(text, origin, port_optional=True)
    return format_addr(_reachable(host, text, origin), port)


def check_listen_addr(text: str, origin: str) -> str:
    """Normalise an address to listen on; the port may be absent; an empty text stays empty."""
    return format_addr(*parse_addr(text, origin, port_optional=True)) if text else text


def check_port_range(text: str, origin: str) -> str:
    ports = parse_port_range(text, origin)
    return f"{ports[0]}-{ports[1]}" if ports else ""


def check_class_path(text: str, origin: str) -> str:
    """Refuse what is not ``package.module:Class`` or empty; does not import it."""
    if text and not _CLASS_PATH.fullmatch(text):
        raise ConfigError(
            f"{origin}: expected package.module:Class, "
            f"such as snailps.models.word_vectors:WordVectors; got {text!r}"
        )
    return text


def _reachable(host: str, text: str, origin: str) -> str:
    if host in ANY_HOSTS:
        raise ConfigError(
            f"{origin}: {text!r} is an address to listen on, and nothing can connect to it; write "
            f"the name or address at which other machines reach this one"
        )
    return host


def _is_ip(host: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    try:
        kind(host)
    except ValueError:
        return False
    return True
