"""fastText's commands beside ours, on the same models: what each prints must say the same.

    python bench/fasttext_commands.py --program fastText/fasttext

The program is C++: compile it from fastText's sources (``make`` there).  It trains a classifier and
word vectors on a small text, then each command of docs/fasttext.md is run by both.  Numbers are
compared to the program's five or six digits, texts exactly.  Exits with 1 if anything differs.
Speed is measured in bench/predict.py and bench/words.py.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SNAILPS = Path(sys.executable).with_name("snailps")
ADDED = 2e-5
"""fastText adds 0.00001 to probabilities."""
Rows = list[list[str]]


def write_text(path: Path, lines: int, seed: int) -> None:
    """Lines of a label or two, and words that hint at the first."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines):
            label = rng.randrange(4)
            words = [f"wort{rng.randrange(label * 20, label * 20 + 30)}" for _ in range(8)]
            also = ["__label__x"] if rng.random() < 0.2 else []
            file.write(" ".join([f"__label__{label}", *also, *words, "größe"]) + "\n")


def output(words: list[object], stdin: str = "") -> Rows:
    """What a command prints, as words of lines."""
    command = [str(word) for word in words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return [line.split() for line in done.stdout.splitlines()]


def of_prompts(rows: Rows) -> Rows:
    """Cosines of fastText's nn and analogies: words of equal cosines may change places."""
    lines = (re.sub(r"Query (word|triplet \(A - B \+ C\))\? ?", "", " ".join(row)) for row in rows)
    return [line.split()[-1:] for line in lines if line and not line.startswith("Loading")]


def differs(theirs: Rows, ours: Rows) -> str:
    """The first difference; empty: none."""
    if len(theirs) != len(ours):
        return f"{len(theirs)} lines there, {len(ours)} here"
    for number, (row, our_row) in enumerate(zip(theirs, ours, strict=True), 1):
        if len(row) != len(our_row):
            return f"line {number}: {row[:6]} there, {our_row[:6]} here"
        for a, b in zip(row, our_row, strict=True):
            try:
                same = abs(float(a) - float(b)) <= ADDED + 6e-4 * abs(float(b))
            except ValueError:
                same = a == b
            if not same:
                return f"line {number}: {a} there, {b} here"
    return ""


def compared(program: str, folder: Path) -> dict[str, str]:
    """Command -> the first difference."""
    text, test = folder / "text", folder / "test"
    write_text(text, 800, 1)
    write_text(test, 100, 2)
    common = ["-input", text, "-dim", 8, "-thread", 1, "-bucket", 500, "-minn", 2, "-maxn", 3]
    output([program, "supervised", *common, "-output", folder / "sup", "-lr", 0.2])
    apart = ["-minCount", 1, "-epoch", 20, "-ws", 2]  # neighbours of different cosines
    output([program, "skipgram", *common, "-output", folder / "sg", *apart])
    sup, sg = folder / "sup.bin", folder / "sg.bin"

    def micro(rows: Rows) -> Rows:
        """fastText's N, P@1, R@1 from the first row of `snailps test`."""
        _, lines, _, precision, recall, _ = rows[0]
        return [["N", lines], ["P@2", f"{float(precision):.3g}"], ["R@2", f"{float(recall):.3g}"]]

    def by_label(rows: Rows) -> Rows:
        return sorted([row[0], row[3], row[4], row[5]] for row in rows[2:])

    def official_by_label(rows: Rows) -> Rows:
        scores = [[row[9], row[5], row[8], row[2]] for row in rows if "F1-Score" in row]
        return sorted([cell.replace("--------", "-") for cell in row] for row in scores)

    def same(rows: Rows) -> Rows:
        return rows

    def without_size(rows: Rows) -> Rows:
        return rows[1:]

    def without_names(rows: Rows) -> Rows:
        return [row[1:] for row in rows]

    def cosines(rows: Rows) -> Rows:
        return [row[-1:] for row in rows]

    def short_names(rows: Rows) -> Rows:
        short = {"supervised": "sup", "skipgram": "sg", "ova": "one-vs-all"}
        return [[name, short.get(value, value)] for name, value in rows]

    labels = ["-k", 2, "--threshold", 0.1]
    runs: dict[
        str, tuple[list[object], list[object], str, Callable[[Rows], Rows], Callable[[Rows], Rows]]
    ]
    runs = {
        "test": (["test", sup, test, 2], ["test", sup, test, "-k", 2], "", same, micro),
        "test-label": (
            ["test-label", sup, test], ["test", sup, test], "", official_by_label, by_label,
        ),
        "predict": (
            ["predict", sup, test, 2, 0.1], ["predict", sup, "--input", test, *labels], "", same,
            lambda rows: [row[::2] for row in rows],
        ),
        "predict-prob": (
            ["predict-prob", sup, test, 2, 0.1], ["predict", sup, "--input", test, *labels], "",
            same, same,
        ),
        "print-word-vectors": (
            ["print-word-vectors", sg], ["vector", sg], "wort1\ngröße\nnie\n", same, same,
        ),
        "print-sentence-vectors": (
            ["print-sentence-vectors", sup], ["vector", sup, "--sentences"],
            "wort1 größe\nnie\n", same, same,
        ),
        "nn": (["nn", sg, 3], ["nn", sg, "-k", 3], "wort1\nnie\n", of_prompts, cosines),
        "analogies": (
            ["analogies", sg, 3], ["analogy", sg, "-k", 3], "wort1 wort2 wort3\n",
            of_prompts, cosines,
        ),
        "dump args": (["dump", sg, "args"], ["dump", sg, "args"], "", same, short_names),
        "dump dict": (["dump", sup, "dict"], ["dump", sup, "dict"], "", without_size, same),
        "dump input": (
            ["dump", sup, "input"], ["dump", sup, "input"], "", without_size, without_names,
        ),
        "dump output": (
            ["dump", sup, "output"], ["dump", sup, "output"], "", without_size, without_names,
        ),
    }  # fmt: skip
    differences = {}
    for name, (theirs, ours, stdin, as_ours, as_theirs) in runs.items():
        if name == "analogies":  # the program asks for ever: it is ended with its first answers
            command = [program, *map(str, theirs)]
            pipe = subprocess.PIPE
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as asked:
                assert asked.stdin
                assert asked.stdout
                asked.stdin.write(stdin)
                asked.stdin.flush()
                lines = [asked.stdout.readline() for _ in range(4)]
                asked.kill()
            expected = [line.split() for line in lines]
        else:
            expected = output([program, *theirs], stdin)
        differences[name] = differs(as_ours(expected), as_theirs(output([SNAILPS, *ours], stdin)))
    # The program adds n-grams' rows to memory that was never set: the word's own row is compared.
    row = output([program, "print-ngrams", sg, "wort1"])
    names = [row[0] for row in output([SNAILPS, "vector", sg, "wort1", "--ngrams"])]
    differences["print-ngrams (names)"] = differs([[line[0]] for line in row], [[n] for n in names])
    return differences


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--program", required=True, help="fastText's compiled program")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as folder:
        differences = compared(chosen.program, Path(folder))
    for name, difference in differences.items():
        print(f"{name}\t{difference or 'same'}")
    sys.exit(any(differences.values()))


if __name__ == "__main__":
    main()
