"""What a newcomer does wrong, and what the command says: each message is kept in mistakes/.

    MISTAKES=write pytest tests/cluster/test_newcomers.py   writes them anew, to be read and judged

A message says what happened, where, and what to do next; it has no traceback and quotes no data.
Paths and numbers differ from run to run and are replaced.
"""

import io
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from cluster_models import COUNTER, write_numbers
from processes import LIMIT_S, SNAILPS, Gate, Process, environment, run_snailps

from snailps.cli import main as cli
from snailps.vectors.saving import write_npz

KEPT = Path(__file__).parent / "mistakes"
WRITES = os.environ.get("MISTAKES") == "write"
TRAIN = "train fasttext --output out"
SECRET_WORDS = ("sealion", "Traceback", 'File "')
"""What no message may have: a word of the data, and what a traceback begins with."""


@pytest.fixture
def folder(tmp_path):
    """The files that mistakes are made with."""
    line = "sealion walrus otter seal heron gull tern\n"
    (tmp_path / "corpus.txt").write_text(line * 60)
    (tmp_path / "tiny.txt").write_text("sealion\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text("\n \n\n")
    (tmp_path / "noise.txt").write_bytes(np.random.default_rng(1).bytes(4096))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(60))
    (tmp_path / "packed.txt").write_bytes(b"\x1f\x8b\x08" + bytes(60))
    (tmp_path / "bad.svm").write_text("1 3:1 4:1\n0 2:1\n" * 40 + "1 3:x\n")
    (tmp_path / "done.vec").write_text("old\n")
    (tmp_path / "done.bin").write_text("old\n")
    (tmp_path / "no_job.conf").write_text("dim: 8\n")
    (tmp_path / "wrong.conf").write_text("dim 8\n")
    words = [b"otter", b"heron", b"seal"]
    write_npz(tmp_path / "words.npz", words, [np.eye(3, 4, dtype=np.float32)], 4)
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "old.checkpoints" / "checkpoint-000001").mkdir(parents=True)
    return tmp_path


MISTAKES = {
    "no command": ("trian", 2),
    "no model": ("train fastext --input corpus.txt", 2),
    "no option": (f"{TRAIN} --input corpus.txt --epoch 3", 2),
    "no output": ("train fasttext --input corpus.txt", 2),
    "no setting": (f"{TRAIN} --input corpus.txt --set epoch=3", 2),
    "setting without value": (f"{TRAIN} --input corpus.txt --set epochs", 2),
    "no number": (f"{TRAIN} --input corpus.txt --dim ten", 2),
    "number out of range": (f"{TRAIN} --input corpus.txt --dim 0", 2),
    "zero workers": (f"{TRAIN} --input corpus.txt --workers 0", 2),
    "text as triples": ("train kge --output out --input corpus.txt", 2),
    "blank input": (f"{TRAIN} --input blank.txt --min-count 1", 2),
    "wrong path": (f"{TRAIN} --input nowhere.txt", 2),
    "empty input": (f"{TRAIN} --input empty.txt", 2),
    "binary input": (f"{TRAIN} --input noise.txt", 2),
    "image as input": (f"{TRAIN} --input picture.png", 2),
    "compressed input": (f"{TRAIN} --input packed.txt", 2),
    "model as input": (f"{TRAIN} --input words.npz", 2),
    "tiny input": (f"{TRAIN} --input tiny.txt", 2),
    "bad line": ("train logistic --input bad.svm --output out", 2),
    "text without labels": ("train classifier --input corpus.txt --output out", 2),
    "output exists": ("train fasttext --input corpus.txt --output done", 2),
    "output in a file": ("train fasttext --input corpus.txt --output tiny.txt/out", 2),
    "output is a folder": ("train fasttext --input corpus.txt --output a_folder/", 2),
    "output nowhere": (f"{TRAIN} --input corpus.txt --json-log no/folder/log", 2),
    "no settings file": ("local -c nowhere.conf", 2),
    "settings without a job": ("local -c no_job.conf", 2),
    "folder as settings": ("local -c a_folder", 2),
    "text as settings": ("local -c corpus.txt", 2),
    "image as settings": ("local -c picture.png", 2),
    "setting without colon": ("local -c wrong.conf", 2),
    "text as model": ("nn corpus.txt otter", 2),
    "settings as model": ("nn no_job.conf otter", 2),
    "image as model": ("nn picture.png otter", 2),
    "folder as model": ("nn a_folder otter", 2),
    "checkpoints as model": ("nn old.checkpoints otter", 2),
    "missing model": ("nn words otter", 2),
    "word vectors as classifier": ("test words.npz corpus.txt", 2),
    "word vectors for predictions": ("predict words.npz corpus.txt", 2),
    "unknown word": ("similarity words.npz otter herons", 2),
    "word left out": ("similarity words.npz otter", 2),
    "image as pairs": ("eval words.npz --similarity picture.png", 2),
    "text as pairs": ("eval words.npz --similarity corpus.txt", 2),
    "file as checkpoints": ("checkpoint list words.npz", 2),
    "worker without master": ("worker --set master_addr=127.0.0.1:1 --set init_timeout=0.2", 1),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_explained(folder, monkeypatch, capsys, name):
    words, code = MISTAKES[name]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["snailps", *words.split()])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert told.out == ""
    check(name, f"snailps {words}", ended.value.code, told.err, folder)
    assert ended.value.code == code


def check(name, command, code, told, folder):
    """Compares what was told with what is kept, and looks for what no message may have."""
    for word in SECRET_WORDS:
        assert word not in told, told
    lines = [plain(line, folder) for line in told.splitlines()]
    text = "\n".join([f"$ {command}", *dict.fromkeys(filter(None, lines)), f"exit code {code}"])
    file = KEPT / f"{name.replace(' ', '_')}.txt"
    if WRITES:
        KEPT.mkdir(exist_ok=True)
        file.write_text(f"{text}\n")
    assert file.read_text() == f"{text}\n"


def plain(line, folder):
    """A line without what differs from run to run; empty if it is not of the command itself."""
    if not line.startswith("snailps"):  # the display, and other processes' logs
        return ""
    line = line.replace(str(folder.resolve()), "FOLDER").replace(str(folder), "FOLDER")
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DATE", line)
    return re.sub(r"\d[\d,.]*\d|\d", "N", line)


def test_port_in_use_is_explained(folder):
    write_numbers(folder / "in.txt", 100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        job = [f"worker_class={COUNTER}", "input=in.txt", f"master_addr={place}"]
        words = [part for pair in job for part in ("--set", pair)]
        run = run_snailps("master", *words, code=1, cwd=folder)
    check("port in use", "snailps master --set master_addr=N", 1, run.stderr, folder)


IGNORED = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize(
    ("number", "times"),
    [
        pytest.param(signal.SIGINT, 1, id="once"),
        pytest.param(signal.SIGINT, 2, id="twice"),
        pytest.param(
            signal.SIGHUP, 1, id="closed terminal",
            marks=pytest.mark.skipif(IGNORED, reason="under nohup"),
        ),
    ],
)  # fmt: skip
def test_interrupt_says_what_was_saved(folder, number, times):
    write_numbers(folder / "in.txt", 1000)
    (folder / "job.conf").write_text(
        f"worker_class: {COUNTER}\ninput: in.txt\noutput: out\nepochs: 1\ngates: gates\n"
    )
    gate = Gate(folder / "gates", 2)
    with Process("snailps", [*SNAILPS, "local", "-c", "job.conf"], cwd=folder) as run:
        gate.meet()
        run.send(number)
        run.wait_line("interrupted: finishing")
        if times == 1:
            gate.open()
        else:
            run.send(number)
        assert run.wait() == 130, run.stderr
        if times == 2:
            gate.open()
    assert (folder / "out.npz").exists() == (times == 1)
    assert ("the model so far is" if times == 1 else "nothing was") + " saved" in run.stderr
    assert not any(word in run.stderr for word in SECRET_WORDS)
    assert not run.errors
    assert run.stdout == ""


def test_closed_pipe_ends_silently(folder):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*SNAILPS, "nn", "words.npz", "otter"], cwd=folder, env=environment(), stdout=write,
        stderr=subprocess.PIPE, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 1


def limit_files():
    """A file grows to 100 kB, as on a disk that is almost full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_output_that_does_not_fit_is_explained_and_leaves_nothing(folder):
    words = f"{TRAIN} --input corpus.txt --dim 50 --bucket 2000 --epochs 1 --formats bin"
    done = run_snailps(*words.split(), cwd=folder, code=1, preexec_fn=limit_files)
    check("full disk", f"snailps {words}", done.returncode, done.stderr, folder)
    assert not list(folder.glob("*out.bin*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is taken by setpriv, as root only")
def test_folder_without_permission_is_explained():
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing")
    with tempfile.TemporaryDirectory(prefix="snailps-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "corpus.txt").write_text("otter heron seal\n" * 60)
        (folder / "closed").mkdir(mode=0o755)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        words = "train fasttext --input corpus.txt --output closed/out"
        done = subprocess.run(
            [*nobody, *SNAILPS, *words.split()], cwd=folder, env=environment(HOME="/nonexistent"),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        if "Permission denied" in done.stderr and "closed" not in done.stderr:
            pytest.skip("another user may not read this program")
        check("no permission", f"snailps {words}", done.returncode, done.stderr, folder)
        assert done.returncode == 2
