"""A process with one shard, for tests that kill it: JSON orders in, JSON answers out.

python shard_process.py standby|primary      ->      {"port": 1234}
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from blocking_shard import BlockingShard
from shards import ADD, FRAG_NUM, JOB, LIMIT_S, ZEROS

from snailps.abi import loops
from snailps.transport.control import dial
from snailps.transport.handshake import NONCE_BYTES, Channel, Hello, Role, ServerSession


def say(**words):
    with contextlib.suppress(BrokenPipeError):  # one write: two threads speak
        os.write(1, (json.dumps(words) + "\n").encode())


def main(role):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def session():
        return ServerSession(Hello(Channel.DATA, Role.SERVER, os.urandom(NONCE_BYTES), job=JOB))

    shard = BlockingShard(
        listener, session, loops.row_ops(), loops.wire_ops(), FRAG_NUM, 30.0, "shard",
        standby=role == "standby",
    )  # fmt: skip
    shard.start()
    shard.take_route(1, range(FRAG_NUM))
    shard.add_table(1, 4, ADD, ZEROS, 0.1, 5, (0.0,))
    say(port=port)
    for line in sys.stdin:
        order = json.loads(line)
        if "back_up" in order:
            sock = dial(
                ("127.0.0.1", order["back_up"]), Channel.DATA, Role.SERVER,
                peer_name="standby", limit_s=LIMIT_S, job=JOB,
            )  # fmt: skip
            shard.back_up(
                sock.detach(),
                sync=order.get("sync", True),
                report=lambda state, why: say(told=state, why=why),
            )
        elif "table" in order:
            shard.add_table(*order["table"])
        elif "alone" in order:
            shard.unback()
        elif "promote" in order:
            shard.promote(order["promote"])
        elif "faults" in order:
            shard.test_faults(*order["faults"])
        elif "stats" in order:
            say(stats=shard.stats()["replica"])
        if "stats" not in order:
            say(done=next(iter(order)))
    shard.stop()


class ShardProcess:
    """Controls such a process."""

    def __init__(self, role):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), role],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )  # fmt: skip
        self.port, self.told = self.hear()["port"], []

    def hear(self):
        """The next answer, or None once it has died."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def order(self, **order):
        """Gives an order; False if the process died of it."""
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        while (answer := self.hear()) is not None:
            if "told" in answer:
                self.told.append(answer["told"])
            else:
                return answer
        return False

    def until(self, state):
        """Waits for this news of its standby; False if the process died."""
        while state not in self.told:
            answer = self.hear()
            if answer is None:
                return False
            self.told.append(answer["told"])
        self.told.remove(state)
        return True

    def end(self):
        self.process.kill()
        self.process.wait(LIMIT_S)
        self.process.stdin.close()
        self.process.stdout.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
