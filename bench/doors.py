#!/usr/bin/env python3
"""Cost of a secret and of TLS: word vectors trained with neither, with each, interleaved.

    corpus -> snailps local (A B C, C B A, ...) -> words/s of each -> a table, ratios

A figure is raw words of the corpus x epochs / seconds of training, by the master's clock; medians.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("plain", "secret", "tls")
TARGETS = {"secret": 0.98, "tls": 0.7}
RUN_S = 600.0


def snailps(*words: object, **variables: str) -> str:
    """Standard output of a command that succeeds."""
    found = {key: value for key, value in os.environ.items() if not key.startswith("SNAILPS_")}
    done = subprocess.run(
        [sys.executable, "-m", "snailps", *map(str, words)],
        env={**found, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE, text=True, timeout=RUN_S, check=True,
    )  # fmt: skip
    return done.stdout


def speed(way: str, folder: Path, args: argparse.Namespace) -> float:
    """Words a second of one training."""
    sets = [
        f"input={folder / 'corpus.txt'}", "output=", f"epochs={args.epochs}", "on_node_loss=stop",
        f"threads={args.threads}",
    ]  # fmt: skip
    if way == "secret":
        sets.append(f"secret_file={folder / 'secret'}")
    if way == "tls":
        sets.append(f"tls={folder / 'certificates' / 'cluster'}")
    words: list[object] = ["local", "-c", ROOT / "config" / "fasttext.conf", "--json"]
    words += ["--servers", args.servers, "--workers", args.workers]
    for pair in sets:
        words += ["--set", pair]
    figures = json.loads(snailps(*words).splitlines()[-1])
    return float(figures["words_per_s"])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", required=True, type=Path, help="a text file, .gz or plain")
    add("--megabytes", type=int, default=12, help="of it")
    add("--epochs", type=int, default=1)
    add("--servers", type=int, default=1)
    add("--workers", type=int, default=2)
    add("--threads", type=int, default=1, help="of one worker")
    add("--runs", type=int, default=3)
    add("--ways", default=",".join(WAYS), help="of them; plain is always there")
    add("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args()
    asked = args.ways.split(",")
    if unknown := [way for way in asked if way not in WAYS]:
        parser.error(f"unknown way {unknown[0]!r}; known: {', '.join(WAYS)}")
    ways = [way for way in WAYS if way == "plain" or way in asked]
    found: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opened = gzip.open if args.corpus.suffix == ".gz" else open
        with opened(args.corpus, "rb") as file:
            text = file.read(args.megabytes << 20)
        (folder / "corpus.txt").write_bytes(text[: text.rfind(b" ")])
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_bytes(os.urandom(32).hex().encode())
        snailps("tls", "init", folder / "certificates")
        for turn in range(args.runs):
            for way in ways if turn % 2 == 0 else ways[::-1]:
                found[way].append(speed(way, folder, args))
                print(f"bench: {way}: {found[way][-1]:,.0f} words/s", file=sys.stderr, flush=True)
    medians = {way: statistics.median(speeds) for way, speeds in found.items()}
    if args.json:
        print(json.dumps(medians))
        return
    print("| | words/s | of plain | target |\n|---|---|---|---|")
    for way, median in medians.items():
        target = f">= {TARGETS[way]}" if way in TARGETS else ""
        print(f"| {way} | {median:,.0f} | {median / medians['plain']:.3f} | {target} |")


if __name__ == "__main__":
    main()
