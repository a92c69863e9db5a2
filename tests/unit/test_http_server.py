"""`BoundedServer`: where it listens."""

import socket
from http.server import BaseHTTPRequestHandler

import pytest
from skips import has_ipv6

from snailps.node.http_server import BoundedServer

ADDRESSES = {"four": "127.0.0.1", "six": "::1"}


@pytest.mark.parametrize("name", ADDRESSES)
def test_name_with_addresses_of_one_family_is_listened_at(monkeypatch, name):
    lookup = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **how: lookup(ADDRESSES[host], *more, **how)
    )
    if name == "six" and not has_ipv6():
        pytest.skip("no IPv6 loopback here")
    with BoundedServer(name, 0, BaseHTTPRequestHandler, 1, 1.0) as server:
        assert server.server_address[0] == ADDRESSES[name]
