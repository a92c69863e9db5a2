"""A filter of texts from nothing: python quality_filter.py FOLDER trains it and uses it.

    docstrings and code of Python's library -> two folders -> a classifier
    pages of both in Parquet -> snailps.filter -> those that are prose, and a report

All texts are on every machine that has Python.  Of your own, put good ones into one folder and bad
ones into another, a text a line.
"""

import ast
import random
import sys
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import snailps


def texts_of_library(most=400):
    """Docstrings, and the code of functions, of the standard library's files."""
    prose, code = [], []
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py")) + sorted(library.glob("[a-z]*/*.py"))
    for path in files[:most]:
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                continue
            if text := ast.get_docstring(node):
                prose.append(text)
                del node.body[0]
            if isinstance(node, ast.FunctionDef) and node.body:
                code.append(ast.unparse(node.body))
    return [
        sorted({" ".join(text.split()) for text in texts if len(text) > 200})
        for texts in (prose, code)
    ]


def main(folder: Path) -> None:
    prose, code = texts_of_library()
    drawn = random.Random(1)
    drawn.shuffle(prose)
    drawn.shuffle(code)
    half = len(prose) // 2, len(code) // 2
    # A folder a label.
    for name, texts in (("good", prose[: half[0]]), ("bad", code[: half[1]])):
        (folder / "train" / name).mkdir(parents=True, exist_ok=True)
        content = "\n".join(texts) + "\n"
        (folder / "train" / name / "texts.txt").write_text(content, encoding="utf-8")
    texts, labels = [], []
    for path in sorted((folder / "train").glob("*/*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        texts += lines
        labels += [path.parent.name] * len(lines)
    model = snailps.TextClassifier(
        dim=16, word_ngrams=2, bucket=100_000, epochs="auto", verbose=False
    )
    model.fit(texts, labels).save(folder / "quality.bin")

    # A crawl: pages of both kinds, with columns of their own.
    pages = [(text, "prose") for text in prose[half[0] :]]
    pages += [(text, "code") for text in code[half[1] :]]
    drawn.shuffle(pages)
    (folder / "crawl").mkdir(exist_ok=True)
    for number in range(4):
        some = pages[number::4]
        table = pa.table({"text": [text for text, _ in some], "kind": [kind for _, kind in some]})
        pq.write_table(table, folder / "crawl" / f"{number}.parquet")

    done = snailps.filter(
        folder / "crawl", column="text", models={"hq": folder / "quality.bin"},
        keep='hq["__label__good"] >= .5', add=['good=hq["__label__good"]'],
        output=folder / "kept", overwrite=True,
    )  # fmt: skip
    kept = pq.read_table(folder / "kept")
    right = sum(kind == "prose" for kind in kept["kind"].to_pylist())
    print(f"kept {done['kept']:,} of {done['rows']:,} texts, {right:,} of them prose")
    print(f"open {folder / 'kept' / '_report.html'} in a browser")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("in which folder? python quality_filter.py FOLDER")
    main(Path(sys.argv[1]))
