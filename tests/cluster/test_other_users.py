"""A cluster on this machine, its user, and another user of the machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import LIMIT_S, driver_of, environment, members_of, run_snailps

import snailps
from snailps.errors import ClusterError
from snailps.local.cluster import local_cluster
from snailps.node.run_registry import RunRegistry, folders

OTHER = 65534  # has no processes and files here
ANOTHER = """
import encodings.idna, os, sys  # all of it now: the other user may not read the files of Python
import snailps, snailps.local.cluster, snailps.serving.reader
from snailps.cli.masters import trust_of
from snailps.config import parse_addr
from snailps.errors import SnailError
from snailps.transport import messages
from snailps.transport.control import dial, visit
from snailps.transport.handshake import Channel, Role
from snailps.transport.security.trust import OPEN, Trust

master, pid, *shards = sys.argv[1:]
os.environ.pop("XDG_RUNTIME_DIR")
run = sys.stdin.readline().strip()
os.setgroups([])
os.setgid(OTHER)
os.setuid(OTHER)

def told(do):
    try:
        return repr(do())
    except (SnailError, OSError) as error:
        return f"{type(error).__name__}: {error}"

def submit(trust):
    control = visit(parse_addr(master, ""), LIMIT_S, trust)
    return control.call(messages.Submit({"worker_class": "os:Evil"}, [], "", b""), LIMIT_S)

def shard(address, trust):
    return dial(parse_addr(address, ""), Channel.DATA, Role.DRIVER, peer_name="a shard",
                limit_s=LIMIT_S, trust=trust)

guess = Trust(b"0" * 64)
for do in [
    lambda: snailps.connect(master), lambda: snailps.reader(master, "w").pull([7]),
    lambda: submit(OPEN), lambda: submit(guess),
    *(lambda at=at, trust=trust: shard(at, trust) for at in shards for trust in (OPEN, guess)),
]:
    print("refused" if "secret" in (text := told(do)) else text)
for path in [run, f"/proc/{pid}/environ", f"/proc/{pid}/fd/3"]:
    print("unreadable" if "Permission" in (text := told(lambda: open(path).read())) else text)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Two servers of one shard, and a table with a row."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where runs are looked for, too
    monkeypatch.delenv("SNAILPS_SECRET", raising=False)
    with local_cluster(servers=2, workers=0, shard_num=1) as made:
        made.table("w", dim=2).push([7], [[1.0, 2.0]])
        yield made


def run_of(cluster):
    """The cluster's run, and its file."""
    (run,) = [run for run in RunRegistry().running() if run.address == cluster.address]
    return run, folders()[0] / f"{run.number}.json"


def addresses_of_shards(cluster):
    return [shard["address"] for shard in cluster.status()["shards"]]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user: not root")
def test_another_user_of_the_machine_gets_no_rows_and_submits_no_job(cluster):
    _, file = run_of(cluster)
    shards = addresses_of_shards(cluster)
    assert len(shards) == 2
    pid = members_of(cluster)[1].process.pid
    process = subprocess.run(
        [sys.executable, "-c", f"{OTHER = }\n{LIMIT_S = }\n{ANOTHER}",
         cluster.address, str(pid), *shards],
        input=f"{file}\n", env=environment(), capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    lines = process.stdout.splitlines()
    assert lines == ["refused"] * 8 + ["unreadable"] * 3, process.stderr
    assert cluster.table("w", dim=2).pull([7]).tolist() == [[1.0, 2.0]]
    assert cluster.status()["session"]["jobs"] == 0


def snailps_of(*words):
    """Standard output of a command of the same user."""
    env = environment(**{name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR")})
    done = run_snailps(*words, env=env)
    return done.stdout


READS = """
import sys, snailps
with snailps.connect(sys.argv[1], timeout_s=600) as cluster:
    print(cluster.table("w", dim=2).pull([7]).tolist())
with snailps.reader(sys.argv[1], "w") as reader:
    print(reader.pull([7]).tolist())
"""


def test_same_user_finds_the_secret_from_every_command_and_process(cluster):
    run, file = run_of(cluster)
    secret = run.secret
    assert len(secret) == 64
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    at = f"master_addr={cluster.address}"
    assert json.loads(snailps_of("status", "--json"))["phase"] == "idle"
    for words in (
        ["--set", at],
        [cluster.address],
        [cluster.address.replace("127.0.0.1", "localhost")],
    ):
        assert json.loads(snailps_of("status", "--json", *words))["phase"] == "idle"
    assert json.loads(snailps_of("jobs", "--json"))["phase"] == "idle"
    servers = [node["id"] for node in cluster.status()["nodes"] if node["role"] == "server"]
    assert f"server {servers[-1]} at " in snailps_of("doctor", "--set", at, "--wait", "0")
    env = environment(**{name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR")})
    done = subprocess.run(
        [sys.executable, "-c", READS, cluster.address],
        env=env, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["[[1.0, 2.0]]"] * 2, done.stderr
    shown = [
        Path(f"/proc/{child.process.pid}/{name}").read_bytes()
        for child in members_of(cluster)
        for name in ("cmdline", "environ")
    ]
    assert shown
    assert "has left" in snailps_of("cluster", "drain", str(servers[0]))
    assert secret.encode() not in b"".join(shown)


def test_cluster_whose_run_cannot_be_registered_still_has_its_secret(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/nowhere")
    monkeypatch.setenv("TMPDIR", "/proc/nowhere")
    with local_cluster() as cluster:
        assert driver_of(cluster).trust.secret == cluster._launcher.secret
        assert cluster.table("w").pull([7]).tolist() == [[0.0]]
        with pytest.raises(ClusterError, match="asks for a secret"):
            snailps.connect(cluster.address)


def test_cluster_with_a_secret_of_the_user_registers_none(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("correct-horse-battery-staple")
    (tmp_path / "secret").chmod(0o600)
    with local_cluster(secret_file=tmp_path / "secret") as cluster:
        run, file = run_of(cluster)
        assert (run.secret, run.secured) == ("", True)
        assert "correct-horse" not in file.read_text()
        with snailps.connect(cluster.address, secret_file=str(tmp_path / "secret")) as joined:
            assert joined.status()["phase"] == "idle"
