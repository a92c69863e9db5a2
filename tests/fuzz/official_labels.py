"""Labels of any bytes: ours beside those of the official fastText package, on the same models.

    seed -> words of odd bytes -> lines with labels -> the package trains, cuts down, answers
                               -> texts             -> every door of ours answers -> differences

PYTHONPATH=tests python -m fuzz.official_labels [--seconds S] [--seed N] [--python WITH_FASTTEXT]

The package runs in a process of its own, of this Python or another one (fasttext 0.9.3 needs NumPy
below 2).  Its models are trained with ten threads and tens of columns: else it leaves some
numbers as they are found in memory.  Left alone of what differs: it reports p + 0.00001, reads the
logistic function of `ova` and `ns` from a table, drops labels of `hs` below 0.00001; and sums of
millions of features, which both round.
"""

import argparse
import json
import logging
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLANKS = [b" ", b" ", b" ", b"  ", b"\t", b"\v", b"\f", b"\r", b"\0", b" \0 "]
SPACES = ["\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\u200b", "\ufeff"]
ODD = [
    b"</s>", b"<s>", b"</s>x", b"<", b">", b"__label__", b"__label__l1", b"__label__none",
    b"__labelx", b"\xff", b"\x80\x80", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f", b"\xf5\x80",
    *(one.encode() for one in SPACES),
]  # fmt: skip
LETTERS = [*"abcdefghij", "é", "ß", "日", "\u0301", "🙂", "\u00a0"]
LOSSES = ("softmax", "ova", "ns", "hs")
CUTS = (
    None, {"qnorm": False}, {"qnorm": True}, {"cutoff": 350, "qnorm": True, "retrain": True},
    {"cutoff": 300, "qnorm": False, "dsub": 3},
)  # fmt: skip
LONG_BYTES = 10_000_000
MODELS_AT_ONCE = 6


class Model:
    """Settings of one model, a text to train it on, and texts to ask it for; all by the seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, drawn = seed, random.Random(seed)
        self.words = [self._word(drawn) for _ in range(drawn.choice((60, 300)))]
        self.loss = LOSSES[seed % len(LOSSES)]
        has_letters = drawn.random() < 0.5
        self.labels = drawn.choice((1 + (self.loss == "ns"), 2, 7, 40, 300))
        self.settings = {
            "loss": self.loss, "dim": drawn.choice((10, 20, 30)), "wordNgrams": 1 + seed // 4 % 3,
            "minn": drawn.choice((0, 2)) if has_letters else 0, "maxn": 4 if has_letters else 0,
            "bucket": drawn.choice((400, 1013, 20_000)), "lr": drawn.choice((0.01, 0.1, 0.5)),
        }  # fmt: skip
        self.cut = drawn.choice(CUTS)
        if self.cut is not None and self.labels == 300:
            self.cut = {**self.cut, "qout": True}
        self.train, self.file = folder / f"{seed}.train", folder / f"{seed}.bin"
        lines = [self._line(drawn, drawn.randrange(12)) for _ in range(500)]
        if self.labels == 1:
            lines = [line.replace(b"__label__", b"") for line in lines]
        self.train.write_bytes(b"".join(
            b"__label__l%d %s\n" % (number % self.labels, line) for number, line in enumerate(lines)
        ))  # fmt: skip
        self.texts = list(self._texts(drawn))

    def _word(self, drawn: random.Random) -> bytes:
        word = "".join(drawn.choices(LETTERS, k=drawn.randint(1, 9))).encode()
        return word + bytes([drawn.randrange(128, 256)]) if drawn.random() < 0.1 else word

    def _line(self, drawn: random.Random, words: int) -> bytes:
        parts = []
        for _ in range(words):
            kind = drawn.random()
            if kind < 0.75:
                parts.append(drawn.choice(self.words))
            elif kind < 0.85:
                parts.append(self._word(drawn))
            else:
                parts.append(drawn.choice(ODD))
            parts.append(drawn.choice(BLANKS) if drawn.random() < 0.97 else b"")
        return b"".join(parts)

    def _texts(self, drawn: random.Random):
        yield from (b"", b" ", b"\t\v\f\r\0 ", b"\0", b"</s>", b"</s> a", *ODD)
        for _ in range(400):
            yield self._line(drawn, drawn.randrange(25))
        for _ in range(100):
            yield bytes(
                drawn.choices([one for one in range(256) if one != 10], k=drawn.randrange(60))
            )
        yield self._line(drawn, 10).replace(b"</s>", b"") * 500
        yield drawn.choice(self.words) * 20_000
        if drawn.random() < 0.3:
            unit = drawn.choice(
                (self._line(drawn, 9).replace(b"</s>", b"a "), b"\xff", b" ", b"ab\0")
            )
            yield unit * (LONG_BYTES // len(unit or b" ")) if unit else b""
        yield b"a"

    def job(self) -> dict[str, object]:
        texts = self.file.with_suffix(".texts")
        with texts.open("wb") as file:
            for text in self.texts:
                file.write(struct.pack("<q", len(text)) + text)
        return {
            "train": str(self.train), "settings": self.settings, "cut": self.cut,
            "bin": str(self.file), "texts": str(texts), "answers": str(texts) + ".json",
        }  # fmt: skip


# --- in the process of the package ----------------------------------------------------------------


def answer(job: dict[str, object]) -> None:
    """Train, cut down, and write the labels and vector of each text."""
    import fasttext
    import numpy as np
    from fasttext_pybind import Vector

    made = fasttext.train_supervised(
        job["train"], epoch=5, thread=10, verbose=0, minCount=1, **job["settings"]
    )
    if job["cut"] is not None:
        made.quantize(input=job["train"], thread=1, verbose=0, **job["cut"])
    made.save_model(job["bin"])
    made = fasttext.load_model(job["bin"])
    with open(job["texts"], "rb") as file, open(job["answers"], "w", encoding="utf-8") as out:
        while head := file.read(8):
            text = file.read(struct.unpack("<q", head)[0]) + b"\n"
            vector = Vector(made.get_dimension())
            made.f.getSentenceVector(vector, text)
            found = made.f.predict(text, -1, 0.0, "surrogateescape")
            json.dump([[[name, p] for p, name in found], np.array(vector).tolist()], out)
            out.write("\n")


def ask_official(python: str, jobs: list[dict[str, object]]) -> list[str]:
    """What the package answers; what it could not train, as an empty list of lines."""
    done = subprocess.run(
        [python, __file__, "--answer"], input=json.dumps(jobs), text=True, capture_output=True,
        check=False, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the package failed:\n{done.stderr[-2000:]}")
    return done.stdout.split()


# --- here -----------------------------------------------------------------------------------------


def doors(model, texts, folder: Path):
    """The answers of each way to ask for texts, by its name."""
    import numpy as np
    import pyarrow as pa

    from snailps.vectors.label_files import read_texts

    k = len(model.labels)
    yield "list", model.predict_arrays(texts, k, threads=2)
    yield "str", model.predict_arrays([x.decode("utf-8", "surrogateescape") for x in texts], k)
    yield "Arrow", model.predict_arrays(pa.array(texts, pa.binary()), k, threads=2)
    column = pa.chunked_array([texts[:9], texts[9:]], pa.large_binary())
    yield "large Arrow", model.predict_arrays(column, k, threads=1)
    (folder / "lines").write_bytes(b"\n".join(texts))
    pieces = model.best_of(read_texts(str(folder / "lines")), k)
    yield "file", tuple(np.concatenate(one) for one in zip(*pieces, strict=True))
    few = min(k, 8)
    number = {label: at for at, label in enumerate(model.labels)}
    one = np.full((len(texts), few), -1, np.int32), np.full((len(texts), few), np.nan, np.float32)
    for row, text in enumerate(texts):
        for at, (label, p) in enumerate(model.predict(text, few)[0] if text else []):
            one[0][row, at], one[1][row, at] = number[label], p
    yield "one by one", one


def likely(loss: str, p: float, turns: int) -> list[tuple[float, float]]:
    """Probabilities that the package may report for ours, each with what it may differ by."""
    if loss in ("softmax", "hs"):
        return [(p + 1e-5, 2e-5 * turns if loss == "hs" else 1e-5)]
    score = math.log(p / (1 - p)) if 0 < p < 1 else math.copysign(99, p - 0.5)
    if abs(score) > 8.01:
        return [(float(score > 0) + 1e-5, 2e-6)]
    at = math.floor((score + 8) * 32)
    steps = [min(max(x, 0), 512) / 32 - 8 for x in (at - 1, at, at + 1)]
    edges = [0.0, 1.0] if abs(score) > 7.99 else []
    return [(x + 1e-5, 3e-6) for x in ([1 / (1 + math.exp(-step)) for step in steps] + edges)]


def differences(model, case: Model, texts, theirs, folder: Path):
    """Sentences, one a text at most and door, or none."""
    import numpy as np

    ways = dict(doors(model, texts, folder))
    best, chances = ways["list"]
    for name, (other, others) in ways.items():
        wide = other.shape[1] if len(other) == len(best) else 0
        for row in np.flatnonzero((others != chances[:, :wide]).any(axis=1)) if wide else [-1]:
            if wide and np.array_equal(others[row], chances[row, :wide], equal_nan=True):
                continue
            if name != "one by one" or texts[row]:
                yield f"{name}: other answers than of a list for {texts[row][:80]!r}"
                break
        if wide and name != "one by one" and not np.array_equal(other, best):
            yield f"{name}: other labels than of a list"
    for row, ((pairs, vector), text) in enumerate(zip(theirs, texts, strict=True)):
        mine = model.sentence_vector(text)
        rough = 1e-5 + 1e-8 * len(text)
        if not np.allclose(mine, vector, rtol=rough, atol=rough * max(1.0, np.abs(mine).max())):
            yield f"vector of {text[:80]!r}: {mine[:4]} and {vector[:4]}"
            continue
        wanted = dict(map(tuple, pairs))
        ours = {
            model.labels[x].decode("utf-8", "surrogateescape"): float(p)
            for x, p in zip(best[row], chances[row], strict=True) if x >= 0
        }  # fmt: skip
        if case.loss == "hs":
            ours = {name: p for name, p in ours.items() if name in wanted or p > 1e-4}
        if set(ours) != set(wanted):
            yield f"labels of {text[:80]!r}: {len(ours)} and {len(wanted)}"
        elif ours and wanted[next(iter(ours))] < max(wanted.values()) - 100 * rough:
            yield f"best label of {text[:80]!r}: {next(iter(ours))} and {pairs[0][0]}"
        elif len(text) < 100_000:
            for name, p in ours.items():
                near = likely(case.loss, p, 2 + len(ours))
                if not any(abs(wanted[name] - other) <= most for other, most in near):
                    yield f"{name} of {text[:80]!r}: {p} and {wanted[name]}"
                    break


def compare(python: str, seconds: float, seed: int, models: int = 1 << 30, tell=print):
    """Texts compared, and the differences found, until the time is over or the models are."""
    import numpy as np

    from snailps.vectors.label_prediction import LabelModel

    begun, texts, found, first = time.monotonic(), 0, [], seed
    while seed - first < models and time.monotonic() - begun < seconds:
        with tempfile.TemporaryDirectory(prefix="snailps-fuzz-") as name:
            folder = Path(name)
            cases = [Model(seed + n, folder) for n in range(min(MODELS_AT_ONCE, models))]
            jobs = [case.job() for case in cases]
            for case, job, state in zip(cases, jobs, ask_official(python, jobs), strict=True):
                if state != "made":
                    tell(f"seed {case.seed}: the package could not make it: {state}")
                    continue
                with open(job["answers"], encoding="utf-8") as file:
                    theirs = [json.loads(line) for line in file]
                model = LabelModel(case.file)
                if not np.isfinite(model.wv.vectors).all():
                    tell(f"seed {case.seed}: the package made numbers that are none")
                    continue
                for one in differences(model, case, case.texts, theirs, folder):
                    found.append(f"seed {case.seed} {case.settings} {case.cut}: {one}")
                    tell(found[-1])
                texts += len(case.texts)
        seed += MODELS_AT_ONCE
        tell(f"{seed - first} models, {texts:,} texts, {len(found)} differences")
    return texts, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="one that has fasttext")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.getLogger("snailps").setLevel(logging.ERROR)  # of words behind a </s>
    if args.answer:
        for job in json.load(sys.stdin):
            try:
                answer(job)
                print("made", flush=True)
            except RuntimeError as error:
                print(str(error).replace(" ", "_"), flush=True)
        return
    _, found = compare(args.python, args.seconds, args.seed)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
