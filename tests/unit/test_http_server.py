"""`BoundedServer`: where it listens."""

import socket
from http.server import BaseHTTPRequestHandler

import pytest
from skips import has_ipv6

from snailps.node.http_server import BoundedServer

ADDRESSES = {"four": ["127.0.0.1"], "six": ["::1"], "both": ["::1", "127.0.0.1"]}


@pytest.mark.parametrize("name", ADDRESSES)
def test_name_is_listened_at_and_with_both_families_at_its_ipv4(monkeypatch, name):
    lookup = socket.getaddrinfo

    def known(host, *more, **how):
        return [place for one in ADDRESSES[host] for place in lookup(one, *more, **how)]

    monkeypatch.setattr(socket, "getaddrinfo", known)
    if name == "six" and not has_ipv6():
        pytest.skip("no IPv6 loopback here")
    with BoundedServer(name, 0, BaseHTTPRequestHandler, 1, 1.0) as server:
        assert server.server_address[0] == ADDRESSES[name][-1]
