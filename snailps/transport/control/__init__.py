"""The control plane over sockets: a server for the master, a client for all other processes.

    `ControlServer`  the master's end                     server.py
    `ControlClient`  a node's end; `visit`: a caller's    client.py
    `listen`, `dial` the sockets they are given           transport/sockets.py
    `Encoded`        a message made ready for many        encoded.py
    `Trust`          which peers to admit                        transport/security/trust.py

This module only gathers the names that processes use.
"""

from snailps.transport.control.client import AnswerOrFuture as AnswerOrFuture
from snailps.transport.control.client import ControlClient as ControlClient
from snailps.transport.control.client import visit as visit
from snailps.transport.control.encoded import Encoded as Encoded
from snailps.transport.control.server import ControlServer as ControlServer
from snailps.transport.control.server import Peer as Peer
from snailps.transport.security.tls_link import Address as Address
from snailps.transport.security.trust import Trust as Trust
from snailps.transport.sockets import Listener as Listener
from snailps.transport.sockets import dial as dial
from snailps.transport.sockets import listen as listen
from snailps.transport.sockets import route_host as route_host
from snailps.transport.sockets import show as show
