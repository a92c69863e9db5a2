"""vectors.label_prediction: one classifier in many processes, forked or not."""

import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest
from waiting import LIMIT_S

from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_prediction import LabelModel

ROWS = 200_000
DIM = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A classifier of 51 MB, whose labels follow from one word."""
    found = tmp_path_factory.mktemp("labels") / "m.bin"
    rng = np.random.default_rng(1)
    words = [b"</s>", *(b"w%d" % number for number in range(999))]
    rows = rng.normal(size=(ROWS + len(words), DIM)).astype(np.float32)
    header = BinHeader(
        dim=DIM, bucket=ROWS, word_ngrams=2, model="supervised", loss="softmax", min_count=1
    )
    labels = [b"__label__%d" % number for number in range(5)]
    write_bin(
        found, header, words, [1] * len(words), [rows],
        [rng.normal(size=(5, DIM)).astype(np.float32)], labels, [1] * 5,
    )  # fmt: skip
    return found


def texts(number):
    rng = np.random.default_rng(2)
    return [" ".join(f"w{word}" for word in line) for line in rng.integers(0, 999, (number, 40))]


def test_forked_processes_answer_as_their_parent_did_in_threads(path):
    model, lines = LabelModel(path), texts(5000)
    wanted, _ = model.predict_arrays(lines, threads=2)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for best, _ in pool.map(model.predict_arrays, [lines, lines]):
            np.testing.assert_array_equal(best, wanted)


def test_pickled_model_is_its_file_opened_again(path, monkeypatch, tmp_path):
    monkeypatch.chdir(path.parent)
    model = LabelModel(path.name)
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(pickle.dumps(model))
    assert again.predict("w1 w2") == model.predict("w1 w2")


FORKS = """
import os, select, sys, threading
import numpy as np
from snailps.errors import DataError
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.texts import pieces_of
way, path, limit_s = sys.argv[1:]
model = LabelModel(path)
rng = np.random.default_rng(2)
lines = [" ".join(f"w{word}" for word in line) for line in rng.integers(0, 999, (5000, 40))]
wanted, _ = model.predict_arrays(lines, threads=1)
reading, over, forks = model.best_of(pieces_of(lines), 1, 2), threading.Event(), 1

def ask():
    while not over.is_set():
        LabelModel(path).predict(lines[:400], threads=2)

if way == "half read":
    parts = [next(reading)]
else:
    parts, forks = [], 8
    threading.Thread(target=ask).start()
for number in range(forks):
    child = os.fork()
    if not child:
        assert (model.predict_arrays(lines, threads=2)[0] == wanted).all()
        assert len(model.predict(lines[:400], threads=2)) == 400
        if way == "half read":
            try:
                next(reading)
                raise SystemExit("read on in a process without its threads")
            except DataError as error:
                assert "begin a new one" in str(error)
        sys.exit(7)
    ends = select.select([os.pidfd_open(child)], [], [], float(limit_s))[0]
    if not ends:
        os.kill(child, 9)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code if ends else "hangs", flush=True)
    if not ends:
        break
over.set()
assert (np.concatenate([best for best, _ in [*parts, *reading]]) == wanted).all()
"""


@pytest.mark.parametrize("way", ["half read", "in a thread"])
def test_fork_amid_predictions_leaves_a_child_that_predicts_and_ends(path, way):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, way, str(path), str(LIMIT_S)], capture_output=True,
        text=True, stdin=subprocess.DEVNULL, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["7"] * (1 if way == "half read" else 8), done.stderr
    assert done.returncode == 0, done.stderr


MEMORY = """
import sys
import numpy as np
from snailps.vectors.label_prediction import LabelModel

def pss():
    print(sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup")
              if line.startswith("Pss:")), flush=True)
    sys.stdin.readline()

rng = np.random.default_rng(2)
pss()
pss()
model = LabelModel(sys.argv[1])
for _ in range(10):
    lines = [" ".join(f"w{word}" for word in line) for line in rng.integers(0, 999, (1500, 40))]
    model.predict_arrays(lines, threads=1)
del lines
pss()
pss()
"""


def memory_of(path, count):
    """Growth of the proportional set sizes, in KB, of processes that use a model at once."""
    command = [sys.executable, "-c", MEMORY, str(path)]
    asking = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **asking) for _ in range(count)]
    try:
        found = []
        for _ in range(4):  # each twice: the second time all are so far
            found.append([int(process.stdout.readline()) for process in processes])
            for process in processes:
                process.stdin.write("\n")
                process.stdin.flush()
        return sum(found[3]) - sum(found[1])
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_processes_that_use_one_model_have_its_rows_together(path):
    one = memory_of(path, 1)
    assert one > 0.8 * (ROWS * DIM * 4 >> 10)
    # What is each process's own is the same of a model of 250 MB: less than a tenth there.
    assert memory_of(path, 4) - one < 0.1 * 250_000
