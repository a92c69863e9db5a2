"""The ten tasks of docs/python.md: the lines run, and the table counts them rightly."""

import io
import re
from contextlib import closing

import numpy as np
import pytest
from processes import LIMIT_S, PACKAGE, SUPPORT, Cluster

import snailps

PAGE = (PACKAGE / "docs" / "python.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Ten tasks, beside other libraries")[2]


def tasks():
    """The lines of each task."""
    (block,) = re.findall(r"^```python\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    parts = re.split(r"^# (\d+)\. .*\n", block, flags=re.MULTILINE)
    assert not parts[0]
    assert parts[1::2] == [str(number) for number in range(1, 11)]
    return parts[2::2]


def test_table_counts_the_lines_of_each_task():
    rows = re.findall(r"^\| (\d+)\. [^|]* \| (\d+) \|", SECTION, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 11))
    assert [int(lines) for _, lines in rows] == [len(task.splitlines()) for task in tasks()]


def test_every_library_has_an_answer_to_each_task():
    rows = [row.split("|")[1:-1] for row in SECTION.splitlines() if re.match(r"\| \d+\. ", row)]
    assert {len(row) for row in rows} == {6}
    assert all(re.match(r" (\d|no\b|a command|some)", cell) for row in rows for cell in row[1:])


@pytest.fixture
def names(tmp_path):
    """What the page says the tasks are given."""
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    rng = np.random.default_rng(1)
    words = ["ship", "ships", "boat", "crosses", "the", "sea", "lake", "river"]
    dense = (rng.random((500, 10)) < 0.4).astype(np.float32)
    visitor, article = rng.integers(20, size=2000), rng.integers(20, size=2000)
    return {
        "snailps": snailps,
        "sentences": [rng.choice(words, 8).tolist() for _ in range(500)],
        "more": [["raft", "crosses", "the", "sea"]] * 20,
        "texts": ["the sea is calm", "the lake is calm"] * 50,
        "labels": ["salt water", "fresh"] * 50,
        "X": sparse.csr_matrix(dense),
        "y": dense[:, 0] > 0,
        "visits": arrow.table(
            {
                "visitor": [f"v{number}" for number in visitor],
                "article": [f"a{number}" for number in article],
                "clicked": ((visitor + article) % 2).astype(np.int8),
            }
        ),
    }


def test_lines_of_the_page_run(tmp_path, names, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{PACKAGE}:{SUPPORT}")
    secret = tmp_path / "secret"
    secret.write_text("correct-horse-battery-staple")
    secret.chmod(0o600)
    *here, elsewhere = tasks()
    with snailps.cluster(threads=1, log=io.StringIO()):
        for lines in here:
            exec(lines, names)
    with Cluster(tmp_path, {"secret_file": secret}, copied=False) as nodes:
        master = nodes.master(options=["--session"])
        nodes.nodes()
        names.update(address=nodes.address, secret=str(secret))

        def connected():
            options = {"secret_file": str(secret), "timeout_s": LIMIT_S}
            return closing(snailps.connect(nodes.address, **options))

        with connected():  # the page's own line waits 10 s for a cluster to be complete
            pass
        exec(elsewhere, names)
        with connected() as session:
            session.shut_down()
        assert master.wait() == 0, master.stderr
    assert names["vectors"].words[-1] == "raft"
    assert "sky" in names["classifier"].classes_
    assert names["linear"].score(names["X"], names["y"]) > 0.9
    assert names["machine"].n_features_in_ == 2
    assert "ship" in names["model"].wv
    assert "'epoch': 5" in capsys.readouterr().out  # of task 7
