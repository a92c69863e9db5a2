"""`snailps doctor` finds mistakes that are made on purpose, and says so with their cure.

So do processes whose start-up wait is half over.  Doctors are real processes; the clock of one is
another's, and hosts are network namespaces where this user may make them.
"""

import json
import socket
import sys
import time

import pytest
from cluster_models import COUNTER, write_numbers
from processes import LIMIT_S, SNAILPS, Cluster, Gate, Process, environment, free_port, is_listening
from waiting import until
from with_time import Clock

from snailps.config import MasterSettings, RawConfig, ServerSettings
from snailps.diagnostics.doctor import Doctor

HALF_S = int(LIMIT_S / 2) + 10
"""A bit more than half of the time that processes wait for each other at the start."""
OTHER = """
import sys
from snailps import _version
from snailps.transport import frame
{change}
from snailps.cli.main import main
main()
"""


@pytest.fixture
def conf(tmp_path):
    """Writes a file for all roles; returns its path and the master's address."""

    def write(**settings):
        address = f"127.0.0.1:{free_port()}"
        settings = {"master_addr": address, "expected_node_num": 3, **settings}
        path = tmp_path / "job.conf"
        path.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        return path, settings["master_addr"]

    return write


@pytest.fixture
def doctor(tmp_path):
    """Starts doctors; none is left."""
    started = []

    def start(path, *options, program=SNAILPS, json=True, env=None):
        more = ["--json"] if json else []
        command = [*program, "doctor", "-c", str(path), *more, *options]
        name = f"doctor {len(started)}"
        started.append(Process(name, command, cwd=tmp_path, env=env, copied=True))
        return started[-1]

    yield start
    for process in started:
        process.close()


def told(process, code):
    """What a doctor printed, by check, once it ended with this code."""
    assert process.wait() == code, process.stdout + process.stderr
    return json.loads(process.stdout)


def errors_of(found):
    """Texts and cures of errors by check; each has a cure."""
    errors = {f["check"]: f for f in found["findings"] if f["level"] == "error"}
    assert all(finding["cure"] for finding in errors.values())
    return errors


def wait_for_listener(address):
    """Waits until the first doctor listens in the master's place."""
    host, _, port = address.partition(":")
    until(lambda: is_listening((host, int(port))), f"a listener at {address}")


def altered(change):
    """A program that is snailps, but for this."""
    return [sys.executable, "-c", OTHER.format(change=change)]


def test_doctor_of_a_good_host_finds_no_error(conf, doctor, tmp_path):
    write_numbers(tmp_path / "in.txt", 10)
    settings = {"worker_class": COUNTER, "input": "in.txt", "checkpoint_interval": 5}
    path, _ = conf(**settings, checkpoint_dir=tmp_path / "saved")
    found = told(doctor(path, "--wait", "0.1", "--rows", "1000"), 0)
    assert found["ok"]
    checks = {finding["check"] for finding in found["findings"]}
    assert checks >= {"version", "kernels", "name", "interface", "port", "files", "memory", "disk"}
    assert not list(tmp_path.glob("saved*"))
    lines = doctor(path, "--wait", "0.1", json=False)
    assert lines.wait() == 0
    assert "no errors" in lines.stdout


def test_doctor_names_a_name_that_nobody_knows(conf, doctor, tmp_path):
    path, _ = conf(master_addr="no-such-host.invalid:16831")
    (tmp_path / "names").write_text("- no-such-host.invalid\n")
    named = environment(NAMES=str(tmp_path / "names"))
    program = [sys.executable, "-m", "with_names"]
    errors = errors_of(told(doctor(path, program=program, env=named), 1))
    assert "no-such-host.invalid (master_addr) has no address" in errors["name"]["text"]


def test_doctor_names_who_has_the_masters_port(conf, doctor):
    path, address = conf()
    with socket.create_server(("127.0.0.1", int(address.partition(":")[2]))) as taken:
        taken.settimeout(LIMIT_S)
        process = doctor(path, "--wait", "0.5")
        taken.accept()[0].close()  # another program: it does not speak our protocol
        errors = errors_of(told(process, 1))
    assert "is in use by process" in errors["port"]["text"]
    assert "which is not snailps" in errors["port"]["text"]


def test_doctor_finds_too_little_memory_for_the_rows(conf, doctor, tmp_path):
    write_numbers(tmp_path / "in.txt", 10)
    path, _ = conf(worker_class=COUNTER, input="in.txt")
    errors = errors_of(told(doctor(path, "--wait", "0.1", "--rows", str(10**12)), 1))
    assert "1,000,000,000,000 rows on 1 servers need" in errors["memory"]["text"]


def test_doctor_finds_an_input_that_the_master_lacks_and_a_setting_misspelt(conf, doctor):
    path, _ = conf(worker_class=COUNTER, input="nowhere/in.txt")
    errors = errors_of(told(doctor(path, "--wait", "0.1"), 1))
    assert "nowhere/in.txt" in errors["input"]["text"]
    path, _ = conf(heartbeat_timeuot=3)
    process = doctor(path)
    assert process.wait() == 2
    assert "heartbeat_timeout" in process.stderr


def test_doctors_of_two_hosts_find_and_measure_each_other(conf, doctor):
    path, _ = conf()
    first = doctor(path, "--hosts", "2", "--wait", str(LIMIT_S))
    second = doctor(path, "--hosts", "2", "--wait", str(LIMIT_S))
    a, b = told(first, 0), told(second, 0)
    masters, other = (a, b) if a["others"] else (b, a)
    assert len(masters["others"]) == 1
    (way,) = other["ways"]
    assert way["rtt_s"] > 0
    assert min(way["up_bytes_per_s"], way["down_bytes_per_s"]) > 0
    assert abs(way["skew_s"]) < 1
    back = [f for f in other["findings"] if f["check"] == "reach back"]
    assert [f["level"] for f in back] == ["ok"]


def test_doctor_finds_a_clock_that_is_wrong(conf, doctor):
    path, address = conf()
    host = doctor(path, "--hosts", "2", "--wait", str(LIMIT_S))
    raw = RawConfig.from_mapping({"master_addr": address}, "the test")
    wait_for_listener(address)
    found = Doctor(
        raw.build(MasterSettings), raw.build(ServerSettings), wait_s=LIMIT_S, hosts=2,
        clock=lambda: time.time() - 3600,
    ).run()  # fmt: skip
    assert not found.ok
    (clock,) = [f for f in found.findings if f.check == "clock"]
    assert clock.level == "error"
    assert "s behind the master's host" in clock.text
    assert abs(found.ways[0].skew_s - 3600) < 60
    assert not told(host, 1)["ok"]  # it was told so


@pytest.mark.long(but=["frame.VERSION = 9"])
@pytest.mark.parametrize("change", ["_version.__version__ = '9.9'", "frame.VERSION = 9"])
def test_doctor_finds_another_version(conf, doctor, change):
    path, address = conf()
    host = doctor(path, "--hosts", "2", "--wait", str(LIMIT_S))
    wait_for_listener(address)
    other = doctor(path, "--hosts", "2", "--wait", str(LIMIT_S), program=altered(change))
    errors = errors_of(told(other, 1))
    (error,) = errors.values()
    assert "9" in error["text"]
    assert "same version" in error["cure"]
    host.close()


def test_doctor_finds_another_secret(conf, doctor, tmp_path):
    path, address = conf()
    for name in ("ours", "theirs"):
        (tmp_path / name).write_text(f"the secret of {name}, long enough")
        (tmp_path / name).chmod(0o600)
    hosts = "--hosts", "2", "--wait", str(LIMIT_S)
    host = doctor(path, *hosts, "--set", "secret_file=ours")
    wait_for_listener(address)
    other = doctor(path, *hosts, "--set", "secret_file=theirs")
    errors = errors_of(told(other, 1))
    assert "secret" in errors["handshake"]["text"]
    host.close()


def test_doctor_beside_a_running_master_looks_at_the_ways_and_disturbs_nobody(tmp_path, doctor):
    write_numbers(tmp_path / "in.txt", 1000)
    job = {
        "worker_class": COUNTER, "input": "in.txt", "output": "out", "epochs": 1,
        "gates": str(tmp_path / "gates"),
    }  # fmt: skip
    gate = Gate(tmp_path / "gates", 2)
    with Cluster(tmp_path, job=job) as cluster:
        cluster.master()
        (server,), _ = cluster.nodes()
        gate.meet()
        name = cluster.name_of(server)
        path = tmp_path / "worker.conf"
        found = told(doctor(path, "--set", f"master_addr={cluster.address}"), 0)
        gate.open()
        assert cluster.codes() == [0] * 3
    reached = [f["text"] for f in found["findings"] if f["check"].startswith("reach")]
    assert any("the master at" in text for text in reached)
    assert any(f"{name} at" in text for text in reached)
    (way,) = found["ways"]
    assert way["up_bytes_per_s"] == 0  # nothing is taken from the job


# --- waits that last ----------------------------------------------------------------------------


def test_node_that_waits_for_the_master_says_why_when_half_is_over(tmp_path):
    clock = Clock(tmp_path)
    with Cluster(tmp_path, program=clock.program) as cluster:
        cluster.port = free_port()
        with socket.create_server(("127.0.0.1", cluster.port)) as listener:
            server = cluster.start("server")
            listener.accept()[0].close()  # it waits for the master
        clock.advance(HALF_S)
        server.wait_line(f"half of {LIMIT_S:.0f} s is over, still waiting for the master")
        server.wait_line(r"reach: the master: 127.0.0.1 answers, but no process listens at port")
        clock.advance(HALF_S)
        assert server.wait() == 1


@pytest.mark.long
def test_master_that_waits_for_nodes_says_why_when_half_is_over(tmp_path):
    write_numbers(tmp_path / "in.txt", 10)
    job = {"worker_class": COUNTER, "input": "in.txt", "output": "out"}
    clock = Clock(tmp_path)
    with Cluster(tmp_path, job=job, program=clock.program) as cluster:
        master = cluster.master()
        master.wait_line(r"waiting for .* s left")
        clock.advance(HALF_S)
        master.wait_line(f"half of {LIMIT_S:.0f} s is over, still waiting for nodes")
        master.wait_line(r"the master listens on 127.0.0.1: no other host can reach that")
        clock.advance(HALF_S)
        assert master.wait() == 1


# --- hosts --------------------------------------------------------------------------------------


def in_pair(netns, tmp_path, port, *, closed_there=0, closed_back=0):
    """Doctors of the master's host and of another one, where a firewall drops what it answers."""
    path = tmp_path / "job.conf"
    path.write_text(
        f"master_addr: 10.0.0.2:{port}\nport_range: {port + 1}-{port + 1}\ninsecure: true\n"
        "shard_num: 1\n"
    )
    with netns.linked() as link:
        for side, closed in ((link.far, closed_there), (link.near, closed_back)):
            if closed:
                rule = ("ipproto", "tcp", "sport", str(closed), "blackhole")
                with link.inside(side):
                    netns.run_tool("ip", "rule", "add", *rule)
        wait = "6" if closed_there else str(LIMIT_S)
        command = [*SNAILPS, "doctor", "-c", str(path), "--json", "--hosts", "2", "--wait", wait]
        with link.inside(link.far):
            master = Process("master's", command, cwd=tmp_path)
        with link.inside(link.near):
            other = Process("other", command, cwd=tmp_path)
        try:
            if closed_there:
                return told(other, 1), None
            code = 1 if closed_back else 0
            return told(other, code), told(master, code)
        finally:
            master.close()
            other.close()


@pytest.mark.long
def test_doctors_on_two_hosts_name_interface_and_ways(netns, tmp_path):
    other, master = in_pair(netns, tmp_path, 17000)
    (interface,) = [f for f in other["findings"] if f["check"] == "interface"]
    assert "10.0.0.1 (near), because packets to the master at 10.0.0.2:17000" in interface["text"]
    assert master["others"]
    assert other["ways"][0]["up_bytes_per_s"] > 0


@pytest.mark.long
def test_doctor_behind_a_firewall_that_drops_names_the_masters_port(netns, tmp_path):
    other, _ = in_pair(netns, tmp_path, 17000, closed_there=17000)
    errors = errors_of(other)
    assert "10.0.0.2:17000 does not answer at all" in errors["reach"]["text"]
    assert "TCP port 17000" in errors["reach"]["cure"]


@pytest.mark.long
def test_doctor_finds_that_its_own_ports_are_closed(netns, tmp_path):
    other, master = in_pair(netns, tmp_path, 17000, closed_back=17001)
    errors = errors_of(other)
    assert "10.0.0.1:17001 does not answer at all" in errors["reach back"]["text"]
    assert not master["ok"]
