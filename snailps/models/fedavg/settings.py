"""Settings of federated averaging, and the files that complete them.

    folder -> vocab.txt, test.txt, cfg.json -> words, test windows, settings

Declarations, checks of values against each other, and readers of these three files; no tables.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.config import JobSettings, setting, settings_of
from snailps.data._text import Lexicon
from snailps.data.windows import letters_only
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, DataError

VOCAB, TEST, CFG = "vocab.txt", "test.txt", "cfg.json"
STAGES = ("tokenizer", "filter", "batcher")
CFG_KEYS: dict[str, type] = {"data_name": str, "bpe": int, "bs": int, "target": float}
DIM_MAX = 496
"""A panel of output weights is a row of a table: 128 words x (dim + 1) values, at most 65,535."""


@dataclass(frozen=True, slots=True)
class FedAvgSettings(JobSettings):
    """Settings of federated averaging; short names are those of cfg.json."""

    data_dir: str = setting(
        "",
        help="Folder of the data, on every machine. It has `vocab.txt`, `test.txt` and optionally "
        "`cfg.json`; `snailps fedavg prepare` makes it.",
        when="Always.",
        unit="path",
    )
    data_name: str = setting(
        "data",
        help="Name of the data, for messages and plots.",
        when="Several data sets are compared.",
    )
    learners: int = setting(
        0,
        help="Learners in each worker, one thread each. 0: equal to `threads`.",
        when="To simulate more clients than cores.",
        low=0,
        high=4096,
    )
    pipelines: int = setting(
        1,
        help="Input pipelines in each worker. Learner i uses pipeline i modulo this number; each "
        "pipeline of each worker reads a part of its own of the input. 0: one for each learner.",
        when="Each client should have its own data.",
        low=0,
        high=4096,
    )
    own_input: bool = setting(
        False,
        help="Whether each worker has data of its own at the path `input`, on its machine, and "
        "reads all of them. `false`: all have the same data, and each reads its part.",
        when="Data must not leave their machines.",
    )
    bpe: int = setting(
        16,
        help="Batches of a learner in a round. Rounds end with an average of all learners.",
        when="Fewer for less data, more for less traffic.",
        unit="batches",
        low=1,
        high=1 << 20,
    )
    bs: int = setting(
        64,
        help="Windows in a batch.",
        when="Larger batches take less time a window, but more windows to converge.",
        unit="windows",
        low=1,
        high=1 << 16,
    )
    rounds: int = setting(
        1000,
        help="Maximum number of rounds.",
        when="Always, with or without a `target`.",
        low=1,
        high=1 << 30,
    )
    target: float = setting(
        0.0,
        help="Loss on the test windows at which training ends. 0: all rounds are trained.",
        when="You know which loss is good enough.",
        low=0.0,
    )
    dim: int = setting(
        32,
        help="Length of a word's vector. Multiples of 16 are fastest.",
        when="Longer for much text.",
        low=1,
        high=DIM_MAX,
    )
    window: int = setting(
        5,
        help="Words in a window. An odd number: the middle word is predicted from the others.",
        when="As long as the lines of `test.txt`.",
        unit="words",
        low=3,
        high=255,
    )
    lr: float = setting(
        0.05,
        help="Adam's step size at each learner.",
        when="Larger with more learners.",
        low=1e-8,
        high=10.0,
    )
    beta1: float = setting(
        0.9, help="Adam's decay of the mean gradient.", when="Rarely.", low=0.0, high=0.99999
    )
    beta2: float = setting(
        0.999, help="Adam's decay of the mean square.", when="Rarely.", low=0.0, high=0.999999
    )
    eps: float = setting(
        1e-8,
        help="Adam's epsilon, added to the root in the denominator.",
        when="Rarely.",
        low=1e-12,
        high=1.0,
    )
    shuffle: int = setting(
        65_536,
        help="Windows that a pipeline shuffles at a time, before it cuts batches. 0: no shuffling.",
        when="Always as many as memory allows: neighbouring windows are nearly alike.",
        unit="windows",
        low=0,
        high=1 << 26,
    )
    stages: tuple[str, ...] = setting(
        STAGES,
        help="Stages of a pipeline, in order: `tokenizer`, `filter`, `batcher`, and your own as "
        "`package.module:name` (docs/fedavg.md).",
        when="The text needs another step.",
        unit="names",
    )
    fraction: float = setting(
        1.0,
        help="Share of the workers that take part in a round, drawn for each round.",
        when="There are many clients, and a few are enough for a round.",
        low=1e-6,
        high=1.0,
    )
    deadline: float = setting(
        0.0,
        help="Time after which a round ends without unfinished workers. 0: no deadline.",
        when="A slow client must not delay all others.",
        unit="s",
        low=0.0,
    )

    def validate(self, where: Callable[[str], str]) -> None:
        JobSettings.validate(self, where)
        if self.window % 2 == 0:
            raise ConfigError(
                f"{where('window')}: expected an odd number, so that one word is the "
                f"middle; got {self.window}"
            )
        if self.learners and self.pipelines > self.learners:
            raise ConfigError(
                f"{where('pipelines')}: expected at most learners ({self.learners}, "
                f"from {where('learners')}), each pipeline needs one; got {self.pipelines}"
            )
        if "batcher" not in self.stages[-1:]:
            raise ConfigError(
                f"{where('stages')}: expected the last one to be 'batcher', got "
                f"{', '.join(self.stages) or 'none'}"
            )
        for name in self.stages:
            if name not in STAGES and ":" not in name:
                raise ConfigError(
                    f"{where('stages')}: expected {', '.join(STAGES)} or "
                    f"package.module:name, got {name!r}"
                )
        standard = [name for name in self.stages if name in STAGES]
        can_number = "filter" in standard or len(self.stages) > len(
            standard
        )  # a stage of the user's may
        if standard != [name for name in STAGES if name in standard] or not can_number:
            raise ConfigError(
                f"{where('stages')}: expected {', '.join(STAGES)} in this order, each once, with "
                f"stages of your own between them; got {', '.join(self.stages)}"
            )
        if self.target and self.target_loss and self.target != self.target_loss:
            raise ConfigError(
                f"{where('target')}: {self.target} is not target_loss "
                f"({self.target_loss}, from {where('target_loss')}): leave one of them out"
            )


def adopt(settings: FedAvgSettings, explicit: Callable[[str], str | None]) -> FedAvgSettings:
    """The settings, completed from cfg.json; settings of the user have precedence."""
    path, known = Path(settings.data_dir) / CFG, settings_of(type(settings))
    changed = {
        key: known[key].parse(known[key].format(value), str(path))
        for key, value in read_cfg(path).items()
        if explicit(key) is None
    }
    settings = dataclasses.replace(settings, **changed)
    if settings.target and not settings.target_loss:
        settings = dataclasses.replace(settings, target_loss=settings.target)
    return settings


def read_cfg(path: Path) -> dict[str, Any]:
    """The values of a cfg.json: any of data_name, bpe, bs and target; empty without the file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(found, dict) or not set(found) <= set(CFG_KEYS):
        raise ConfigError(
            f"{path}: expected an object with any of {', '.join(CFG_KEYS)}, got {found!r:.200}"
        )
    check_cfg(found, path)
    return found


def check_cfg(cfg: Mapping[str, Any], path: Path) -> None:
    """Refuse values of a cfg.json of the wrong kind."""
    for key, value in cfg.items():
        wanted = CFG_KEYS[key]
        fits = isinstance(value, wanted) or (wanted is float and isinstance(value, int))
        if not fits or isinstance(value, bool) or (wanted is not str and not 0 < value < 1e9):
            kind = "a whole number" if wanted is int else "a number"
            raise ConfigError(
                f"{path}: {key}: expected "
                f"{'a text' if wanted is str else f'{kind} above 0, below 1e9'}, got {value!r}"
            )


def refuse_data_files(paths: Iterable[str], folder: Path, how: str) -> None:
    """Refuse a text of which a file of `data_dir` is a part, by its path."""
    of_folder = {str((folder / name).absolute()) for name in (VOCAB, TEST, CFG)}
    for path in paths:
        if path in of_folder:
            raise DataError(
                f"{path} is no text: `snailps fedavg prepare` makes it. Name the files of the "
                f"text, or {how}"
            )


def read_vocab(folder: str) -> list[bytes]:
    """The words of vocab.txt, in the order of their numbers."""
    path = Path(folder) / VOCAB
    words = _read(path).split()
    if not words:
        raise DataError(f"{path}: expected words, got none")
    if len(set(words)) < len(words):
        seen: set[bytes] = set()
        twice = next(word for word in words if word in seen or seen.add(word))  # type: ignore[func-returns-value]
        raise DataError(f"{path}: {twice.decode(errors='replace')!r} occurs twice; remove one")
    for word in words:
        if letters_only(word) != word or b" " in word:
            raise DataError(
                f"{path}: {word.decode(errors='replace')!r}: expected lower-case ASCII letters "
                "only, as the tokenizer makes words"
            )
    return words


def read_test(folder: str, words: list[bytes], window: int) -> NDArray[np.int32]:
    """The windows of test.txt as word numbers, int32 (lines, window)."""
    path = Path(folder) / TEST
    lines = _read(path).splitlines()
    rows = [line.split() for line in lines if line.strip()]
    if not rows:
        raise DataError(f"{path}: expected windows of {window} words, one a line; got none")
    for number, row in enumerate(rows, 1):
        if len(row) != window:
            raise DataError(
                f"{path}: window {number}: expected {window} words (the setting `window`), got "
                f"{len(row)}"
            )
    flat = [word for row in rows for word in row]
    ids = Lexicon(words).indices(flat)
    unknown = np.flatnonzero(ids < 0)
    if len(unknown):
        word = flat[int(unknown[0])].decode(errors="replace")
        raise DataError(f"{path}: {word!r} is not in {VOCAB}, which must have all test words")
    return np.ascontiguousarray(ids.astype(np.int32).reshape(-1, window))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}. `snailps fedavg prepare TEXT --into FOLDER` "
            "makes it, and `data_dir` names that folder"
        ) from None
