"""The control server of a master, stepped by a thread of the test."""

import queue
import threading
import time

from waiting import LIMIT_S, until

from snailps.transport import messages
from snailps.transport.control import ControlServer, listen
from snailps.transport.handshake import Role
from snailps.transport.security.trust import Trust


class Master:
    """A ControlServer stepped by a thread of its own; `do` runs a function in that thread."""

    def __init__(self, secret=b"", clock=time.monotonic, listener=None):
        self.listener = listener or listen("127.0.0.1", 0)
        self.address = self.listener.getsockname()[:2]
        self.heard, self.lost, self.pulses = queue.Queue(), queue.Queue(), queue.Queue()
        self.answer = lambda peer, message, reply: reply and reply(messages.Ok())
        self.errors = []
        self._todo = queue.Queue()
        self._stop = threading.Event()
        self.server = ControlServer(
            self.listener,
            role=Role.MASTER,
            trust=Trust(secret),
            job=7,
            on_message=self._on_message,
            on_lost=lambda peer, why: self.lost.put((peer, why)),
            on_pulse=lambda hello, sock: self.pulses.put((hello, sock)),
            clock=clock,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_message(self, peer, message, reply):
        self.heard.put((peer, message))
        self.answer(peer, message, reply)

    def _run(self):
        try:
            while not self._stop.is_set():
                self.server.step(0.01)
                while not self._todo.empty():
                    function, result = self._todo.get()
                    result.put(function())
        except BaseException as error:
            self.errors.append(error)

    def do(self, function):
        result = queue.Queue()
        self._todo.put((function, result))
        until(lambda: not result.empty(), "an answer of the server's thread", over=self._why_over)
        return result.get()

    def until(self, condition):
        """Waits until `condition()` holds in the server's thread."""
        until(lambda: self.do(condition), "the condition", over=self._why_over)

    def _why_over(self):
        return f"the server's thread has ended: {self.errors}" if self.errors else ""

    def peer_of(self, client):
        """The server's side of its only client."""
        client.call(messages.Drain(1), LIMIT_S)
        (peer,) = self.do(lambda: list(self.server.peers))
        return peer

    def ask(self, peer, *calls):
        """Calls a peer; the queue of its answers."""
        answers = queue.Queue()
        for message in calls:
            self.do(lambda message=message: self.server.call(peer, message, answers.put))
        return answers

    def close(self):
        self._stop.set()
        self._thread.join(LIMIT_S)
        self.server.close()
        while not self.pulses.empty():
            self.pulses.get()[1].close()
        assert not self.errors, self.errors
