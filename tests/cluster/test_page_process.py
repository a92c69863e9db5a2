"""`--ui` and `snailps ui` as processes: who can read the page of a real run, and when it ends."""

import http.client
import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cluster_models import gated_job
from processes import LIMIT_S, SNAILPS, Cluster, Gate, Process, environment, run_snailps
from waiting import until

from snailps.cli.tls import init
from snailps.local.fork import PROGRAM

SECRET = "0123456789abcdef"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Runs of this test only."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "runtime"))


@pytest.fixture
def job(tmp_path):
    """Ten blocks that count 1,000 lines; a worker stands at the third."""
    return gated_job(tmp_path)


@pytest.fixture
def gate(tmp_path, job):
    return Gate(tmp_path / "gates", 2)


def read(url, path, token=""):
    """Status code and text of a file of the page; 0: nothing that speaks HTTP listens there."""
    base, _, _ = url.partition("?")
    request = urllib.request.Request(f"{base}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        try:
            answer = urllib.request.urlopen(request, timeout=LIMIT_S)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""


def roles_of(url, token=""):
    """Roles of the processes that the page shows."""

    def status():  # none before the page's process has asked the master
        code, text = read(url, "api/run", token)
        assert code == 200, text
        return json.loads(text)["status"]

    nodes = until(status, "a status on the page")["nodes"]
    return sorted(row[nodes["columns"].index("role")] for row in nodes["rows"])


def is_gone(url, token):
    """Whether none shows this run; another program may have its port by now, and say anything."""
    code, text = read(url, "api/run", token)
    return code != 200 or '"nodes"' not in text


def token_of(url):
    return re.fullmatch(r"http://\S+:\d+/\?token=([\w-]{32})", url)[1]


def test_page_of_local_is_there_with_the_run_and_gone_behind_it(tmp_path, job, gate):
    (tmp_path / "job.conf").write_text("".join(f"{k}: {v}\n" for k, v in job.items()))
    with Process("local", [*SNAILPS, "local", "-c", "job.conf", "--ui"], cwd=tmp_path) as run:
        url = run.wait_line("live page: http://127").rpartition(" ")[2]
        token = token_of(url)  # this machine has other users
        gate.meet()
        assert read(url, "api/run")[0] == 401
        assert roles_of(url, token) == ["server", "worker"]
        gate.open()
        assert run.wait() == 0, run.stderr
        assert is_gone(url, token)


def test_page_of_a_master_with_tls_and_a_secret_asks_for_a_token(tmp_path, job, gate):
    (certificates,) = init(tmp_path / "certs", ["a"])
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    common = {"tls": certificates, "secret_file": tmp_path / "secret"}
    with Cluster(tmp_path, common, job=job) as cluster:
        master = cluster.master(options=("--json", "--ui"))
        url = master.wait_line("live page: http").rpartition(" ")[2]
        cluster.nodes()
        gate.meet()
        token = token_of(url)
        for path in ("", "api/run", "page.js"):
            code, text = read(url, path)
            assert code == 401, path
            assert SECRET not in text
            assert token not in text
        assert read(url, "api/run", token[:-1])[0] == 401
        assert roles_of(url, token) == ["server", "worker"]
        gate.open()
        assert cluster.codes() == [0] * 3
        assert token not in json.dumps(json.loads(master.stdout))
    assert is_gone(url, token)


def test_page_for_other_machines_has_a_token_drawn_and_never_none(tmp_path, job, gate):
    with Cluster(tmp_path, job=job) as cluster:
        cluster.master()
        cluster.nodes()
        gate.meet()
        # Where a test can wait for it, on standard error.
        ui = ["bash", "-c", 'exec "$@" 1>&2', "bash", *SNAILPS, "ui", "--listen", "0.0.0.0:0"]
        page = Process("ui", ui, cwd=tmp_path, env=environment())
        try:
            url = page.wait_line("^http://")
            here = f"http://127.0.0.1:{re.search(r':([0-9]+)/', url)[1]}/"
            assert read(here, "api/run")[0] == 401
            assert roles_of(here, token_of(url)) == ["server", "worker"]
        finally:
            page.send(signal.SIGINT)
            assert page.wait() == 0
            page.close()
        gate.open()
        assert cluster.codes() == [0] * 3


def test_page_with_a_token_that_can_be_guessed_is_refused(tmp_path):
    page = run_snailps("ui", "--listen", "0.0.0.0:0", "--token", 1, code=2, cwd=tmp_path)
    assert "the page's token has 1 characters: expected 16 or more" in page.stderr


def test_token_of_the_page_is_in_no_list_of_processes(tmp_path):
    """Of the command line, of a file, of the environment."""
    token, file = "a-token-of-the-test-1", tmp_path / "token"
    file.write_text(f"{token}\n")
    for words, env in (
        (["--token", token], {}),
        ([f"--token={token}"], {}),
        (["--token-file", str(file)], {}),
        ([], {"SNAILPS_UI_TOKEN": token}),
    ):
        ui = ["bash", "-c", 'exec "$@" 1>&2', "bash", *SNAILPS, "ui", "--listen", "127.0.0.1:0"]
        page = Process("ui", [*ui, *words], cwd=tmp_path, env=environment(**env))
        try:
            url = page.wait_line("^http://")
            assert url.endswith(f"?token={token}")
            assert token.encode() not in Path(f"/proc/{page.pid}/cmdline").read_bytes()
        finally:
            page.send(signal.SIGINT)
            assert page.wait() == 0
            page.close()


def test_processes_of_ours_take_no_module_of_the_current_folder(tmp_path):
    """`-m` has Python search it first: a data set's typer.py would run."""
    for name in ("runpy", "typer", "rich", "lz4", "uuid", "snailps"):
        (tmp_path / f"{name}.py").write_text("import os\nos.write(2, b'EVIL')\nos._exit(9)\n")
    done = subprocess.run(
        [*PROGRAM, "jobs"], cwd=tmp_path, env=environment(), capture_output=True, timeout=LIMIT_S
    )
    assert (done.returncode, b"EVIL" in done.stderr) == (0, False), done.stderr
    package = Path(PROGRAM[1]).parent
    named = [
        path for path in package.rglob("*.py")
        if re.search(r"""["']-m["'],\s*["']snailps""", path.read_text(encoding="utf-8"))
    ]  # fmt: skip
    assert not named
