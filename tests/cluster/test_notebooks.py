"""The notebooks of examples/ and the ten lines run as written, and find what they say.

Each runs cell by cell in a new Python, in an empty folder, as notebooks do: a class of a cell has
the cell's file name and lines, and no name of a test is known there.  In the place of the library's
prose, which every Python has another of, they read sentences that are the same in all.
"""

import os
import re
import sys

import pytest
from processes import PACKAGE, Process, environment

FOLDER = PACKAGE / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.py"))

KERNEL = """
import linecache
import re
import sys

import texts
from snailps.data import stdlib_prose

stdlib_prose.write_prose = texts.write_prose
text = open(sys.argv[1], encoding="utf-8").read()
cells = re.split(r"^# %%.*\\n", text, flags=re.MULTILINE)
assert not cells[0].strip(), "code before the first cell"
for number, cell in enumerate(cells[1:], 1):
    name = f"<cell {number}>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    exec(compile(cell, name, "exec"), globals())
"""


def output_of(notebook, folder):
    """What a notebook prints; it leaves no files behind."""
    kernel = folder / "kernel.py"
    kernel.write_text(KERNEL)
    command = [sys.executable, str(kernel), str(FOLDER / f"{notebook}.py")]
    with Process(notebook, command, cwd=folder, env=environment(TMPDIR=str(folder))) as process:
        assert process.wait(300) == 0, process.stderr
    left = {path.name for path in folder.glob("snailps-*")} - {f"snailps-{os.getuid()}"}
    assert not left, left  # the one that is named is the package's own scratch folder
    return process.stdout


def numbers(pattern, said):
    """The numbers of a line of the output."""
    found = re.search(pattern, said)
    assert found, said
    return [float(number) for number in found.groups()]


def test_every_notebook_is_run_here_and_named_in_the_readme():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"\((\w+)\.py\)", readme))) == NOTEBOOKS
    assert {f"test_{name}" for name in NOTEBOOKS} <= globals().keys()


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_cells_alternate_with_text_and_need_no_installation(notebook):
    text = (FOLDER / f"{notebook}.py").read_text(encoding="utf-8")
    assert text.startswith("# %% [markdown]\n# # ")
    for marker in re.findall(r"^# %%.*$", text, re.MULTILINE):
        assert marker in ("# %%", "# %% [markdown]")
    assert not re.search(r"^[%!]", text, re.MULTILINE)  # nothing that only a notebook knows


def test_vectors_from_a_dataframe(tmp_path):
    pytest.importorskip("pandas", reason="pandas is not installed")
    said = output_of("vectors_from_a_dataframe", tmp_path)
    assert re.search(r"^string in the text: True near: .*(strings|substring)", said, re.MULTILINE)
    assert "unpicklably in the text: False near: " in said
    assert said.count("\nfound: ") == 3
    assert "\nTrue True\nVectors(" in said
    assert re.search(r"^\[.*'snail'.*\]$", said, re.MULTILINE)


def test_classifier_in_a_pipeline(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    said = output_of("classifier_in_a_pipeline", tmp_path)
    (crossed,) = numbers(r"accuracy in cross-validation: ([\d.]+)", said)
    (unseen,) = numbers(r"accuracy on unseen sentences: ([\d.]+)", said)
    assert min(crossed, unseen) > 0.5  # by chance .25, as a rule .8
    assert re.search(r"^best: \{'classify__word_ngrams': [12]\}, 0\.\d\d$", said, re.MULTILINE)
    assert "the event loop runs callbacks of a future -> asyncio " in said
    assert "a header of the message has an address -> email " in said


def test_clicks_from_parquet(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    said = output_of("clicks_from_parquet", tmp_path)
    assert said.startswith("('visitor:categorical', 'article:categorical', 'clicked:label')\n")
    (linear,) = numbers(r"\nLogisticRegression: accuracy ([\d.]+)", said)
    (ours,) = numbers(r"\nFMClassifier: accuracy ([\d.]+)", said)
    assert ours > linear + 0.1
    assert re.search(r"^\[\[0\.\d+ 0\.\d+\]\n", said, re.MULTILINE)  # the first of three pairs


def test_your_own_model(tmp_path):
    said = output_of("your_own_model", tmp_path)
    losses = re.search(r"loss of the epochs: ([\d. ]+)\n", said)[1].split()
    assert len(losses) == 10
    assert float(losses[-1]) < float(losses[0]) / 3
    ours, constant = numbers(r"error ([\d.]+), of a constant ([\d.]+)", said)
    assert ours < constant / 3


def test_a_cluster_by_connect(tmp_path):
    said = output_of("a_cluster_by_connect", tmp_path)
    assert said.startswith("idle <snailps cluster at 127.0.0.1:")
    assert "\nVectors(7 words, dim 16)\n" in said
    assert "\n[[1.0, 2.0], [0.0, 0.0]]\n" in said
    assert "\nrefused: " in said
    assert "\ntrained again: True\n" in said
    assert "\nended with [0, " in said


def test_ten_lines_find_neighbours(tmp_path):
    script = PACKAGE / "examples" / "ten_lines.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) == 10
    lines = [f"the {size} {kind} sleeps in the {kind} house" for size in ("big", "small")
             for kind in ("cat", "cats", "dog", "dogs")]  # fmt: skip
    (tmp_path / "text.txt").write_text("\n".join(lines * 200) + "\n")
    command = [sys.executable, str(script), "text.txt", "cat"]
    with Process("ten lines", command, cwd=tmp_path, env=environment()) as process:
        assert process.wait() == 0, process.stderr
        found = [line.split() for line in process.stdout.splitlines()]
    assert "cats" in [word for word, _ in found]
    assert all(-1 <= float(score) <= 1.001 for _, score in found)
