"""The control plane over sockets: a server for the master, a client for all other processes.

    `ControlServer`  the master's end                     server.py
    `ControlClient`  a node's end; `visit`: a caller's    client.py
    `listen`, `dial` the sockets they are given           transport/sockets.py
    `Encoded`        a message made ready for many        encoded.py
    `Trust`          which peers to admit                        transport/security/trust.py

This module only gathers the names that processes use.
"""

from snailps.config.addresses import Address
from snailps.transport.control.client import AnswerOrFuture, ControlClient, visit
from snailps.transport.control.encoded import Encoded
from snailps.transport.control.server import ControlServer, Peer
from snailps.transport.security.trust import Trust
from snailps.transport.sockets import Listener, dial, listen, route_host, show

__all__ = [
    "Address",
    "AnswerOrFuture",
    "ControlClient",
    "ControlServer",
    "Encoded",
    "Listener",
    "Peer",
    "Trust",
    "dial",
    "listen",
    "route_host",
    "show",
    "visit",
]
