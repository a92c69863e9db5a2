"""Lists of the best items of all users, beside implicit's `recommend`: seconds, memory, answers.

    a model (.npz of mf) -> rows, known items -> snailps | implicit, interleaved -> compared

Four cases: *model* has the rows of the model; *large*, 100,000 users and 50,000 items whose rows
lie between two of the model's, with a tenth of noise; *equal*, the model's items, all made equally
long, so that no item can be ruled out by its length; *only*, lists of a tenth of the model's items.
Both systems get float32 rows and a CSR matrix of the items that are left out, in a fresh process;
seconds are of all threads from arrays to arrays, the least of the rounds (A B B A).  implicit's
BLAS has one thread, as it asks for; with more it takes twice the time.

Answers are equal if the scores are, bit for bit: where two items have the same score, implicit
gives either.  `unequal` counts lists with another score (the last bits of a sum in another order
differ), `apart` is the largest difference, `ties` counts lists with other items of equal score.

    python bench/recommend.py out/model.npz --peer-python peers-venv/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers.usage import cpu_s, peak_mb

from snailps.models.embeddings import ranking

PEER = Path(__file__).parent / "peers" / "recommend_implicit.py"
CASES = ("model", "large", "equal", "only")
USERS, ITEMS = 100_000, 50_000
Rows = dict[str, np.ndarray]


def rows_of(model: Path, case: str) -> Rows:
    """Rows of users and items, and the items that each user leaves out, of a case."""
    with np.load(model) as saved:
        rows = {"users": saved["users.rows"], "items": saved["items.rows"]}
        rows |= {"ptr": saved["known.ptr"].astype(np.int64), "known": saved["known.items"]}
    rng = np.random.default_rng(1)
    if case == "large":
        rows = {
            "users": between(rows["users"], USERS, rng),
            "items": between(rows["items"], ITEMS, rng),
        }
        counts = rng.integers(5, 60, USERS)
        numbers = (rng.random(counts.sum()) ** 2 * ITEMS).astype(np.int32)
        users = np.repeat(np.arange(USERS, dtype=np.int32), counts)
        left_out = ranking.LeftOut.of(users, numbers, USERS)
        rows |= {"ptr": left_out.ptr, "known": left_out.numbers}
    if case == "equal":
        lengths = np.linalg.norm(rows["items"], axis=1, keepdims=True)
        rows["items"] = rows["items"] / np.maximum(lengths, 1e-9)
    return rows | {"only": np.sort(rng.permutation(len(rows["items"]))).astype(np.int32)}


def between(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Rows between two random ones each, with noise."""
    first, second = rng.integers(0, len(rows), (2, count))
    share = rng.random((count, 1)).astype(np.float32)
    noise = rng.normal(0, 0.1 * rows.std(), (count, rows.shape[1]))
    return (share * rows[first] + (1 - share) * rows[second] + noise).astype(np.float32)


def ours(o: argparse.Namespace) -> None:
    """What a child process does: FOLDER/rows.npz -> FOLDER/snailps.npz, seconds."""
    folder = Path(o.model)
    with np.load(folder / "rows.npz") as saved:
        rows = {name: saved[name] for name in saved}
    only = np.sort(rows["only"][: o.items]) if o.items else None
    spent, begun = cpu_s(), time.monotonic()
    items = rows["items"] if only is None else rows["items"][only]
    candidates = ranking.Candidates(items, only)
    left_out = ranking.LeftOut(rows["ptr"], rows["known"])
    parts = list(ranking.best_lists(rows["users"], candidates, o.top, left_out, o.threads))
    numbers, scores = (np.concatenate([part[at] for part in parts]) for at in (1, 2))
    seconds = {"cpu_s": cpu_s() - spent, "wall_s": time.monotonic() - begun}
    peak = peak_mb()
    np.savez(folder / "snailps.npz", numbers=numbers, scores=scores)
    print(json.dumps({**seconds, "peak_mb": peak}))


def run(
    system: str, folder: Path, o: argparse.Namespace, threads: int, items: int
) -> dict[str, Any]:
    words = [str(folder), "--top", str(o.top), "--threads", str(threads), "--items", str(items)]
    program = (
        [sys.executable, __file__, "--child"] if system == "snailps" else [o.peer_python, str(PEER)]
    )
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([*program, *words], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{system} failed:\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def compared(folder: Path) -> dict[str, Any]:
    """How the answers of both differ."""
    with np.load(folder / "snailps.npz") as mine, np.load(folder / "implicit.npz") as other:
        gaps = np.abs(mine["scores"] - other["scores"])
        ties = (mine["numbers"] != other["numbers"]) & (gaps == 0)
        return {"unequal": int((gaps > 0).any(1).sum()), "apart": float(gaps.max()),
                "ties": int(ties.any(1).sum())}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="an .npz of snailps train mf, loss als")
    parser.add_argument("--peer-python", default="", help="Python with implicit; empty: none")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of A B B A")
    parser.add_argument("--threads", type=int, default=0, help="default: 1, then 2")
    parser.add_argument("--items", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.child:
        return ours(o)
    systems = ["snailps", "implicit"] if o.peer_python else ["snailps"]
    for case in o.cases.split(","):
        rows = rows_of(Path(o.model), case)
        few = len(rows["items"]) // 10 if case == "only" else 0
        print(f"{case}: {len(rows['users']):,} users, {few or len(rows['items']):,} items, "
              f"{rows['users'].shape[1]} factors, top {o.top}")  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            np.savez(Path(name) / "rows.npz", **rows)
            del rows
            for threads in [o.threads] if o.threads else [1, 2]:
                runs: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
                for _ in range(o.rounds):
                    for system in [*systems, *systems[::-1]]:
                        runs[system].append(run(system, Path(name), o, threads, few))
                for system, lines in runs.items():
                    least = {key: round(min(line[key] for line in lines), 3) for key in lines[0]}
                    print(f"  {system}, {threads} threads: {json.dumps(least)}", flush=True)
            if len(systems) > 1:
                print(f"  {json.dumps(compared(Path(name)))}", flush=True)
    return None


if __name__ == "__main__":
    main()
