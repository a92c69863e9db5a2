"""The network: connections as two ordered, lossless pipes with delay, which break, stall and part.

    connect(process, address) -> Future of an End         listen(process, address, admit)
    End.send(bytes) -> delay -> the other End's on_data   close, break, partition, death of a host

It owns which hosts can reach each other.  Bytes come in order and whole within a connection, in any
order between connections; a partition holds them back, and lets them through when it heals, as TCP
does.
"""

from __future__ import annotations

from snailps.errors import ConnectionLost, RemoteError, SnailError
from tests.sim.scheduler import Future

CONNECT_LIMIT_S = 10.0
"""How long a connect to a host that does not answer takes."""


class End:
    """One end of a connection, in a process.

    Attributes
    ----------
    on_data, on_closed : callable
        Called with each piece of bytes; with the reason, once, when the connection has ended.
    """

    __slots__ = ("at", "ended", "hello", "link", "on_closed", "on_data", "open", "other",
                 "process", "waiting")  # fmt: skip

    def __init__(self, link, process, hello):
        self.link, self.process, self.hello = link, process, hello
        self.other = None
        self.open = True
        self.at = 0.0  # when the last bytes sent from here arrive
        self.waiting = []  # came before anyone listened
        self.ended = None  # why it ended before anyone listened
        self.on_data = self.waiting.append
        self.on_closed = self._note_end

    def _note_end(self, why):
        self.ended = why

    def send(self, data):
        """Sends bytes, which are lost if the connection has ended."""
        if self.open:
            self.link.carry(self, data)

    def close(self):
        """Closes after all that was sent has arrived; only the other end gets `on_closed`."""
        if self.open:
            self.open = False
            self.link.carry(self, None)

    def pause(self):
        """Keeps arriving bytes for the next call of `listen`."""
        self.on_data, self.on_closed = self.waiting.append, self._note_end

    def listen(self, on_data, on_closed):
        """Hands over the bytes that have arrived already, and then each piece as it arrives."""
        self.on_closed = on_closed
        waiting, self.waiting = self.waiting, []
        self.on_data = on_data
        for data in waiting:
            on_data(data)
        if self.ended is not None:
            on_closed(self.ended)


class Link:
    """A connection.

    Attributes
    ----------
    what : str
        The channel, for faults and the trace.
    """

    __slots__ = ("broken", "ends", "network", "what")

    def __init__(self, network, what, near, far, hello, answer):
        self.network, self.what, self.broken = network, what, False
        self.ends = (End(self, near, answer), End(self, far, hello))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]

    def carry(self, end, data):
        network, other = self.network, end.other
        when = network.arrival(end.process.host, other.process.host)
        end.at = when = max(when, end.at)
        network.world.at(when, self._arrive, other, data, process=other.process)

    def _arrive(self, end, data):
        if self.broken or not end.open:
            return
        if data is None:
            end.open = False
            self.network.links.pop(self, None)
            end.on_closed("connection closed")
        else:
            end.on_data(data)

    def break_(self, why="connection reset"):
        """Breaks the connection: bytes under way are lost, and each end gets `on_closed` later."""
        if self.broken:
            return
        self.broken = True
        self.network.links.pop(self, None)
        for end in self.ends:
            if end.open and end.process.alive:
                when = self.network.arrival(end.other.process.host, end.process.host)
                self.network.world.at(when, self._broken, end, why, process=end.process)

    def _broken(self, end, why):
        if end.open:
            end.open = False
            end.on_closed(why)


class Network:
    """All connections, and the pairs of hosts that are cut off from each other.

    Parameters
    ----------
    world : World
    delay_s : (float, float, float)
        Least and usual delay, seconds, and the share of pieces that take up to a hundred times as
        long.
    """

    def __init__(self, world, delay_s):
        self.world = world
        self._least, self._usual, self._late = delay_s
        self.links = {}
        self._listeners, self._reserved = {}, {}
        self._cut = {}  # (host, host) -> until when
        self.silent = set()  # hosts that lost their power: their peers see no end of a connection

    def delay(self):
        """Seconds that one piece takes."""
        rng = self.world.rng
        delay = self._least + rng.random() * self._usual
        return delay * rng.uniform(1, 100) if rng.random() < self._late else delay

    def arrival(self, source, target):
        """When something sent now arrives."""
        return max(self.world.now, self.cut_until(source, target)) + self.delay()

    # --- who listens, who connects ----------------------------------------------------------------

    def listen(self, process, address, admit):
        """Has a process take connections: `admit(hello)` says who it is, or raises a refusal;
        then `admit.take(end)`, in effect: it returns the function that takes the end.
        """
        self._listeners[address] = (process, admit)
        process.on_death.append(lambda: self.unlisten(process, address))

    def unlisten(self, process, address):
        """Stops taking connections."""
        if self._listeners.get(address, (None,))[0] is process:
            del self._listeners[address]

    def reserve(self, process, addresses):
        """Reserves addresses: connections to them wait until a process listens."""
        self._reserved.update(dict.fromkeys(addresses, process))

    def is_there(self, address):
        """Whether a process listens at an address."""
        reserved = self._reserved.get(address)
        return address in self._listeners or (reserved is not None and reserved.alive)

    def release(self, addresses):
        """Ends the reservations of these addresses."""
        for address in addresses:
            self._reserved.pop(address, None)

    def connect(self, process, address, hello):
        """A future of a connection to an address, shaken hands on; or of `ConnectionLost`, or of
        what the other side refused with.
        """
        made = Future()
        host = address[0]
        when = self.arrival(process.host, host)
        if host in self.silent:
            self.world.at(when + CONNECT_LIMIT_S, self._refuse, made, "no answer", process=process)
            return made
        taken = self._listeners.get(address)
        if taken is None:
            self.world.at(when, self._refuse, made, "connection refused", process=process)
            return made
        listener, admit = taken
        limit = self.world.at(
            max(when, self.world.now + CONNECT_LIMIT_S), self._refuse, made, "no answer",
            process=process,
        )  # fmt: skip
        self.world.at(when, self._accept, process, listener, address, admit, hello, made, limit,
                      process=listener)  # fmt: skip
        listener.on_death.append(lambda: self._dead(made, process))
        return made

    def _dead(self, made, process):
        if not made.done and process.alive:
            self.world.after(self.delay(), self._refuse, made, "connection reset", process=process)

    def _refuse(self, made, why):
        made.fail(ConnectionLost(why))

    def _accept(self, process, listener, address, admit, hello, made, limit):
        if made.done or not process.alive:
            return
        if self._listeners.get(address, (None,))[0] is not listener:
            when = self.arrival(listener.host, process.host)
            self.world.at(when, self._refuse, made, "connection refused", process=process)
            return
        when = self.arrival(listener.host, process.host)
        try:
            answer, take = admit(hello)
        except SnailError as error:
            refusal = RemoteError(str(error))
            self.world.at(when, self._refused, made, refusal, process=process)
            return
        link = Link(self, hello.channel.name.lower(), process, listener, hello, answer)
        self.links[link] = True
        for end in link.ends:
            end.process.on_death.append(lambda end=end: self._end_died(end))
        link.ends[1].at = when
        take(link.ends[1])
        self.world.at(when, self._connected, made, link, limit, process=process)

    def _refused(self, made, refusal):
        made.fail(refusal)

    def _connected(self, made, link, limit):
        self.world.cancel(limit)
        if made.done:
            link.ends[0].close()
        else:
            made.set(link.ends[0])

    def _end_died(self, end):
        if not end.open:
            return
        if end.process.host in self.silent:
            end.open = False  # its host is gone with it: the peer sees nothing
        else:
            end.close()

    # --- faults -----------------------------------------------------------------------------------

    def cut_until(self, one, other):
        """Time until which two hosts cannot reach each other."""
        return self._cut.get((one, other) if one < other else (other, one), 0.0)

    @property
    def is_cut(self):
        """Whether any two hosts are cut off from each other now."""
        return any(until > self.world.now for until in self._cut.values())

    def cut(self, one, other, until):
        """Cuts two hosts off from each other until a time."""
        key = (one, other) if one < other else (other, one)
        self._cut[key] = max(self._cut.get(key, 0.0), until)

    def links_of(self, process):
        """The connections of a process."""
        return [link for link in self.links if any(end.process is process for end in link.ends)]
