"""A model that rotates, for tests: it counts its checkouts, and checks what it reads."""

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cluster_models import wait_at

from snailps import Block, JobSettings, Rotation, Table, Worker, setting

RING = 3
BLOCK_KEYS = 1000
PART_KEYS = 100


@dataclass(frozen=True, slots=True)
class RotatingSettings(JobSettings):
    """Of the model below."""

    chunks: int = setting(2, help="Chunks of an epoch.", when="In tests.")
    most_parts: int = setting(8, help="Parts of a chunk at most.", when="In tests.")
    gates: str = setting("", help="Folder of named pipes; see processes.Gate.", when="In tests.")
    journal: str = setting("", help="Folder of what each worker held.", when="In tests.")
    durable_every: int = setting(
        0, help="Checkouts between two that are made durable.", when="In tests."
    )
    loses: bool = setting(
        False,
        help="Whether the first who reads chunk 1 finds a block of chunk 0.",
        when="In tests.",
    )
    pace_s: float = setting(0.0, help="Seconds of a checkout.", when="In tests.", low=0)


class Rotating(Worker):
    """Each checkout adds 1 to row ``(chunk * 100 + part) * 100 + output partition`` of "checkouts".

    Blocks are rows of "text": lines of the block, their sum, chunk and block plus one.  The row of
    a partition in "input" counts its checkouts, when they are durable or the partition ends.
    """

    Settings = RotatingSettings

    @classmethod
    def rotation(cls, settings, total_bytes, workers, summary):
        return Rotation(settings.chunks, settings.most_parts)

    def tables(self):
        return [Table("checkouts", 1), Table("text", 4), Table("sums", 2), Table("inputs", 1)]

    def setup(self):
        self._lock = threading.Lock()

    def encode(self, block: Block) -> Mapping[str, float]:
        wait_at(self.settings, f"block-{block.chunk}-{block.chunk_index}")
        numbers = [int(line) for line in block.data.decode().splitlines()]
        row = np.array(
            [[len(numbers), sum(numbers), block.chunk + 1, block.chunk_index + 1]], np.float32
        )
        key = [block.chunk % RING * BLOCK_KEYS + block.chunk_index]
        self.push("text", key, row - self.pull("text", key))
        return {}

    def prepare(self, block: Block):
        wait_at(self.settings, f"partition-{block.chunk}-{block.part}")
        keys = np.arange(block.chunk_blocks) + block.chunk % RING * BLOCK_KEYS
        if self.settings.loses and block.chunk == 1 and block.part == 0:
            self.push("text", keys[1:2], [[1, 1, -1, 0]])  # as of another primary
        rows = self.pull("text", keys)
        while len(lost := np.flatnonzero(rows[:, 2] != block.chunk + 1)) and self.settings.loses:
            for index in lost.tolist():
                block.checkouts.encode_again(index)
            rows = self.pull("text", keys)
        if not (rows[:, 2] == block.chunk + 1).all():
            raise ValueError(f"chunk {block.chunk} finds blocks of chunks {rows[:, 2] - 1}")
        if not (rows[:, 3] == np.arange(block.chunk_blocks) + 1).all():
            raise ValueError(f"chunk {block.chunk} finds blocks {rows[:, 3] - 1}")
        return rows[:, :2].sum(0)

    def train(self, block: Block) -> Mapping[str, float]:
        s = self.settings
        key_of_part = block.chunk * PART_KEYS + block.part
        done = durable = block.had
        with ThreadPoolExecutor(1) as helper:
            ahead = helper.submit(block.checkouts.check_out)
            while (part := ahead.result()) is not None:
                self._note(block, part, "checks_out")
                ahead = helper.submit(block.checkouts.check_out)
                wait_at(s, f"checkout-{block.chunk}-{block.part}-{done}")
                time.sleep(s.pace_s)
                key = (block.chunk * PART_KEYS + block.part) * PART_KEYS + part
                self.push("checkouts", [key], [[1.0]])
                self._note(block, part, "returns")
                done += 1
                due = s.durable_every and done < block.output_parts and done % s.durable_every == 0
                if due:
                    self.push("inputs", [key_of_part], [[done - durable]])
                    durable = done
                figures = {"units": 1, "examples": 1, "loss": 2.0}
                block.checkouts.check_in(part, figures, durable=bool(due))
        lines, total = block.prepared
        self.push("sums", [key_of_part], [[lines, total]])
        self.push("inputs", [key_of_part], [[done - durable]])
        own = done - block.had
        return {"units": own, "examples": own, "loss": 2.0 * own}

    def _note(self, block, part, what):
        if self.settings.journal:
            line = f"{time.monotonic()} {what} {block.chunk} {block.part} {part} {block.parts}\n"
            with self._lock, open(Path(self.settings.journal) / f"{os.getpid()}", "a") as file:
                file.write(line)
