"""bench/hosts.py: shares of a core, figures of runs, large texts, losses of held-out text."""

import importlib
import json
import re
import socket
import subprocess
import sys
import time
from itertools import chain, pairwise, repeat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from processes import LIMIT_S, PACKAGE

BENCH = PACKAGE / "bench"
V1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
OTHER = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of bench/."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


@pytest.fixture
def cgroups(bench):
    return bench("cgroups")


@pytest.fixture
def figures(bench):
    return bench("host_figures")


# --- shares of a core ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "period_ms", "expected"),
    [
        (0.22, 100, (22_000, 100_000)),
        (2, 100, (200_000, 100_000)),
        (0.22, 10, (2_200, 10_000)),
        (0.05, 10, (1_000, 20_000)),  # a longer period: the kernel takes no less than 1 ms
        (4, 0.1, (4_000, 1_000)),
    ],
)
def test_quota_is_a_share_of_a_period_that_the_kernel_takes(cgroups, cores, period_ms, expected):
    assert cgroups.quota(cores, period_ms) == expected


@pytest.mark.parametrize(("cores", "period_ms"), [(0, 100), (-1, 100), (1, 0), (0.0005, 100)])
def test_quota_refuses_what_the_kernel_would(cgroups, cores, period_ms):
    with pytest.raises(ValueError):
        cgroups.quota(cores, period_ms)


def test_hierarchy_of_version_1_has_files_of_version_1(cgroups):
    found = cgroups.hierarchy(OTHER + V2 + V1, lambda root: "memory pids")
    assert found == cgroups.Hierarchy(1, Path("/sys/fs/cgroup/cpu"))
    files = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "22000"}
    assert found.files(0.22, 100) == files


def test_hierarchy_of_version_2_has_one_file(cgroups):
    found = cgroups.hierarchy(OTHER + V2, lambda root: "cpuset cpu io")
    assert found.version == 2
    assert found.files(0.5, 100) == {"cpu.max": "50000 100000"}


@pytest.mark.parametrize("mounts", ["", OTHER, OTHER + V2])
def test_hierarchy_without_the_controller_says_what_there_is(cgroups, mounts):
    with pytest.raises(cgroups.NoQuota, match=r"no cgroups with the controller cpu: .*--core 0"):
        cgroups.hierarchy(mounts, lambda root: "memory")


def test_groups_of_version_2_hand_the_controller_down(cgroups, tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "hierarchy", lambda *_: cgroups.Hierarchy(2, tmp_path))
    monkeypatch.setattr(cgroups, "REMOVE_S", 0)  # a folder with files in it cannot be removed
    with cgroups.Groups(50) as groups:
        groups.add("host1", 0.22)
        groups.add("master", cgroups.UNLIMITED)
        (top,) = tmp_path.glob(f"{cgroups.PREFIX}*")
        for folder in (tmp_path, top):
            assert (folder / "cgroup.subtree_control").read_text() == "+cpu"
        assert (top / "host1" / "cpu.max").read_text() == "11000 50000"
        assert list((top / "master").iterdir()) == []
        (top / "host1" / "cpu.stat").write_text("usage_usec 7\nnr_periods 3\nnr_throttled 1\n")
        assert groups.stat("host1")["nr_throttled"] == 1
    assert not (top / "master").exists()


def test_orphans_are_groups_of_benches_that_have_ended(cgroups):
    names = ["snailps-hosts-7", "snailps-hosts-8", "snailps-hosts-", "user.slice", "docker"]
    assert list(cgroups.orphans(names, lambda pid: pid == 8)) == ["snailps-hosts-7"]


# --- counters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("loopback", (False, None)), ("none", (True, None)), ("100mbit", (True, 100.0)),
     ("1gbit", (True, 1000.0)), ("500kbit", (True, 0.5)), ("2.5gbit", (True, 2500.0))],
)  # fmt: skip
def test_link_of_text(figures, text, expected):
    assert figures.link_of(text) == expected


@pytest.mark.parametrize("text", ["", "100", "mbit", "0mbit", "-1gbit", "fast", "nanmbit"])
def test_link_refuses_what_is_no_rate(figures, text):
    with pytest.raises(ValueError):
        figures.link_of(text)


def test_numbers_of_hosts_are_sorted_and_at_least_one(figures):
    assert figures.numbers_of("8,1,2,2") == [1, 2, 8]
    for text in ("0,1", "", "1,x"):
        with pytest.raises(ValueError):
            figures.numbers_of(text)


def test_processor_time_of_a_process_whose_name_has_brackets(bench):
    hosts = bench("hosts")
    ticks = hosts.TICKS_PER_S
    stat = f"12 (a ) b (c) S 1 1 1 0 -1 0 9 9 9 9 {3 * ticks} {ticks} 7 7 20 0 4 0"
    assert hosts.cpu_seconds(stat) == 4.0


def test_busy_time_of_a_machine_has_no_idle_and_no_stolen_time(bench):
    hosts = bench("hosts")
    ticks = hosts.TICKS_PER_S
    counts = [ticks * n for n in (1, 2, 4, 800, 900, 8, 16, 700, 1, 1)]
    stat = f"cpu  {' '.join(map(str, counts))}\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
    assert hosts.machine_seconds(stat) == (31.0, 24.0)


def test_sent_bytes_of_a_device(bench):
    text = (
        "Inter-|   Receive\n face |bytes packets\n"
        "    lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n"
        "  eth0:1234 5 0 0 0 0 0 0 5678 9 0 0 0 0 0 0\n"
    )
    sent = bench("netns").sent_bytes
    assert (sent(text, "eth0"), sent(text, "lo"), sent(text, "eth1")) == (5678, 10, 0)


def test_samples_are_joined_by_straight_lines(figures):
    samples = figures.Samples()
    assert samples.at("a", 1.0) == 0.0
    for now, value in ((1.0, 10.0), (2.0, 20.0), (4.0, 60.0)):
        samples.add(now, {"a": value})
    assert [samples.at("a", t) for t in (0.0, 1.5, 3.0, 9.0)] == [10.0, 15.0, 40.0, 60.0]
    assert samples.spent("a", 1.5, 3.0) == 25.0
    assert samples.has("a")
    assert not samples.has("b")
    assert samples.spent("b", 1.5, 3.0) == 0.0


# --- figures of runs ------------------------------------------------------------------------------


def sampled(figures):
    samples = figures.Samples()
    for now, share in ((100.0, 0.0), (110.0, 1.0)):
        samples.add(
            now,
            {"master": 1 + share, "server": 2 * share, "worker": 6 * share, "wire": 5e6 * share,
             "machine": 50 + 12 * share, "interrupts": share, "periods": 200 * share,
             "throttled": 150 * share},
        )  # fmt: skip
    return samples


def test_figures_of_a_run_are_those_of_its_training(figures):
    told = {"words": 1000, "words_per_s": 200.0, "train_s": 5.0, "bytes_per_word": 8.0,
            "train_loss": 2.5, "test": {"auc": 0.9, "of": "file", "exact": True}}  # fmt: skip
    run = figures.figures_of(told, sampled(figures), 102.0, cores=1.0)
    assert run["units_per_s"] == 200
    assert run["bytes_per_unit"] == 8
    assert run["wire_bytes_per_unit"] == pytest.approx(2500)
    assert run["lo_bytes_per_unit"] is None
    cpu = {"all": 4500, "master": 500, "server": 1000, "worker": 3000, "interrupts": 500}
    assert run["cpu_us_per_unit"] == pytest.approx(cpu)
    assert run["quota_used"] == pytest.approx(4 / 5)
    assert run["throttled"] == pytest.approx(0.75)
    assert run["others_cores"] == pytest.approx(0.3)
    assert run["test"] == {"auc": 0.9}
    free = figures.figures_of(told, sampled(figures), 102.0, cores=0)
    assert free["quota_used"] is None


@pytest.mark.parametrize("told", [{"words": 0, "train_s": 1.0}, {"words": 5, "train_s": 0.0}])
def test_figures_of_no_training_are_refused(figures, told):
    with pytest.raises(ValueError, match="nothing was trained"):
        figures.figures_of({**told, "words_per_s": None}, sampled(figures), 0, cores=1)


def test_host_that_joins_is_judged_from_half_a_minute_on(figures):
    progress = figures.Samples()
    for now in range(0, 100, 2):  # 10 a second, 12 from 50 s on
        progress.add(float(now), {"units": 10.0 * now + 2.0 * max(0, now - 50)})
    found = figures.joined_of(progress, 40.0, 0.0)
    rates = {"before_join_per_s": 10.0, "after_join_per_s": 12.0, "join_speed_up": 1.2}
    assert found == pytest.approx(rates)
    # The training ended too soon for an answer, or before anything joined.
    assert figures.joined_of(progress, 60.0, 0.0) == {}
    assert figures.joined_of(progress, None, 0.0) == {}


def test_shares_of_hosts_are_numbers_above_0(figures):
    assert figures.shares_of("0.22,0.22,0.11") == [0.22, 0.22, 0.11]
    assert figures.shares_of("") == []
    for text in ("0.2,0", "-1", "nan", "a"):
        with pytest.raises(ValueError):
            figures.shares_of(text)


def test_relay_carries_each_frame_late_and_in_order():
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    (one, near), (far, other) = pairs
    words = [sys.executable, str(BENCH / "relay.py"), str(near.fileno()), str(far.fileno()), "50"]
    child = subprocess.Popen(words, pass_fds=(near.fileno(), far.fileno()))
    try:
        near.close()
        far.close()
        begin = time.monotonic()
        for text in (b"1", b"2", b"3"):
            one.sendall(text)
        other.settimeout(LIMIT_S)
        assert [other.recv(10) for _ in range(3)] == [b"1", b"2", b"3"]
        assert time.monotonic() - begin >= 0.05
        one.settimeout(LIMIT_S)
        other.sendall(b"back")
        assert one.recv(10) == b"back"
    finally:
        child.terminate()
        child.wait(LIMIT_S)
        one.close()
        other.close()


def run_of(hosts, seed, rate, cpu, loss=2.0, **more):
    return {"hosts": hosts, "seed": seed, "unit": "words", "units_per_s": rate,
            "cpu_us_per_unit": {"all": cpu, "master": 0.1, "server": 0.2, "worker": 0.3},
            "train_loss": loss, "bytes_per_unit": 10.0, **more}  # fmt: skip


def test_medians_and_speed_up_against_one_host(figures):
    runs = [run_of(4, s, rate, 2.0, test={"auc": auc})
            for s, rate, auc in ((1, 300.0, 0.7), (2, 380.0, 0.9), (3, 900.0, 0.8))]  # fmt: skip
    four = figures.summarise(4, runs)
    one = figures.summarise(1, [run_of(1, 1, 100.0, 1.0)])
    found = figures.compare([four, one])
    assert [s["hosts"] for s in found] == [1, 4]
    assert [s["runs"] for s in found] == [1, 3]
    assert [s["speed_up"] for s in found] == [1.0, 3.8]
    assert [s["cpu_ratio"] for s in found] == [1.0, 2.0]
    assert found[1]["test"] == {"auc": 0.8}
    assert found[1]["units_per_s_runs"] == [300, 380, 900]
    rows = figures.table(found).splitlines()
    assert rows[0].count("|") == rows[1].count("|") == rows[3].count("|")
    assert rows[3].startswith("| 4 | - | 380 | 3.80 | - | 10 | - | 2.00 | 2.00 | - |")


def test_hosts_are_compared_with_clusters_of_one_host_that_trained_at_once(figures):
    runs = [run_of(4, 1, 300.0, 2.0, beside_units_per_s=80.0, beside_cpu_us=1.6)]
    (found,) = figures.compare([figures.summarise(4, runs)])
    assert (found["speed_up_beside"], found["cpu_ratio_beside"]) == (3.75, 1.25)
    assert "| 4 | - | 300 | - | 3.75 | 10 | - | 2.00 | - | 1.25 |" in figures.table([found])


def test_without_one_host_there_is_no_speed_up(figures):
    found = figures.compare([figures.summarise(2, [run_of(2, 1, 100.0, 1.0)])])
    assert "speed_up" not in found[0]
    assert "| 2 | - | 100 | - |" in figures.table(found)


def test_other_work_on_the_machine_is_a_warning(figures):
    quiet = {"others_cores": 0.05, "unseen_s": 0.4}
    assert figures.disturbed([quiet, {}]) == figures.disturbed([]) == ""
    assert "used 0.70 cores; these" in figures.disturbed([quiet, {**quiet, "others_cores": 0.7}])
    assert "stopped for 42 s" in figures.disturbed([{**quiet, "unseen_s": 42.0}, quiet])


def test_longest_gap_between_samples_is_one_of_the_training(figures):
    samples = figures.Samples()
    for now in (1.0, 5.0, 5.5, 7.0, 7.5, 20.0):
        samples.add(now, {})
    assert samples.gap(5.2, 7.4) == 1.5
    assert samples.gap(4.0, 7.0) == 4.0
    assert samples.gap(30.0, 40.0) == 0.0


def test_figures_that_are_unknown_in_one_run_are_medians_of_the_others(figures):
    runs = [{"a": 1.0, "b": None}, {"a": None, "b": None}, {"a": 4.0, "c": "text"}]
    assert figures.medians(runs) == {"a": 2.5}


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "what is trained? --model NAME or --conf FILE"),
        (["--model", "linear"], "--input FILE is missing"),
        (["--model", "fm", "--input", "no-such"], "no such file: no-such"),
        (["--model", "fm", "--input", "README.md", "--hosts", "0"], "1 or more"),
        (["--model", "fm", "--input", "README.md", "--link", "fast"], "a link is loopback, none"),
        (["--model", "fm", "--input", "README.md", "--core", "1e-9"], "at least 0.001 of a core"),
        (["--model", "fm", "--input", "README.md", "--set", "lr"], "expected KEY=VALUE"),
    ],
)
def test_wrong_arguments_end_with_one_sentence(words, expected):
    done = subprocess.run(
        [sys.executable, "bench/hosts.py", *words], cwd=PACKAGE, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_are_kept_and_left_out_when_resumed(bench, tmp_path):
    hosts = bench("hosts")
    words = ["--model", "word2vec", "--input", str(BENCH / "README.md"), "--hosts", "1"]
    args = hosts.arguments([*words, "--out", str(tmp_path / "runs.json"), "--resume"])
    assert hosts.stored(args) == []
    hosts.write(args, [run_of(1, 1, 100.0, 1.0)])
    assert json.loads((tmp_path / "runs.json").read_text())["about"]["core"] == 0.22
    assert hosts.stored(args) == [run_of(1, 1, 100.0, 1.0)]
    args.resume = False
    assert hosts.stored(args) == []


def test_settings_of_a_cluster_end_with_those_of_the_command_line(bench, tmp_path):
    hosts, netns = bench("hosts"), bench("netns")
    words = ["--model", "word2vec", "--input", str(BENCH / "README.md"), "--epochs", "2"]
    args = hosts.arguments([*words, "--set", "wire=float32", "--set", "threads=2"])
    network = netns.Alone([netns.Side("lo", f"127.0.0.{i}", netns.HERE) for i in (1, 2, 3)])
    made = hosts.Hosts(args, 2, network, None, tmp_path, 99)
    settings = hosts.settings_of(args, made, tmp_path / "out", 7)
    known = {"master_addr": "127.0.0.1:99", "expected_node_num": 4, "expected_servers": 2,
             "maxn": 0, "seed": 7, "threads": "2", "wire": "float32", "output": "",
             "epochs": 2}  # fmt: skip
    assert {name: settings[name] for name in known} == known


@pytest.mark.parametrize(("then", "kills"), [("training", 1), ("exporting", 0)])
def test_worker_is_killed_only_if_the_training_goes_on(bench, tmp_path, monkeypatch, then, kills):
    hosts, netns = bench("hosts"), bench("netns")
    words = ["--model", "word2vec", "--input", str(BENCH / "README.md"), "--kill-every", "20"]
    network = netns.Alone([netns.Side("lo", f"127.0.0.{i}", netns.HERE) for i in (1, 2)])
    made = hosts.Hosts(hosts.arguments(words), 1, network, None, tmp_path, 99)
    looks, killed = iter([0.0, 1.0, 21.0, 21.5]), []
    phases = chain(["training"], repeat(then))
    master = SimpleNamespace(has_ended=lambda: made.looked == 21.5)
    made.processes = [master]
    made.args.kill_every = 20.0

    def sample(phase):
        made.looked = next(looks)
        return made.looked

    (tmp_path / "figures").write_text("{}")
    monkeypatch.setattr(hosts, "SAMPLE_S", 0.0)
    for name, done in (
        ("_sample", sample), ("_ask", lambda: next(phases)), ("_check", lambda: None),
        ("_finish", lambda: None), ("_kill_one", lambda: killed.append(made.looked)),
    ):  # fmt: skip
        monkeypatch.setattr(made, name, done)
    assert made.run(1e9) == {}
    assert killed == [21.0] * kills


# --- texts ----------------------------------------------------------------------------------------


def test_large_text_has_its_corpus_so_many_times_and_invented_words(tmp_path):
    corpus, out, held = (tmp_path / name for name in ("corpus", "out", "held"))
    known = re.findall("[a-z]+", (BENCH / "README.md").read_text().lower())
    corpus.write_text(" ".join(known))
    command = [sys.executable, str(BENCH / "invent.py"), "--corpus", str(corpus), "--words", "50"]
    size = 2 * 1.3 * corpus.stat().st_size / 1e6
    command += ["--megabytes", str(size), "--out", str(out), "--held-out", str(held)]
    subprocess.run([*command, "--held-share", "0.1"], check=True, timeout=300)
    words, kept = out.read_text().split(), len(known) - len(known) // 10
    distinct = set(known)
    mine = [word for word in words if word in distinct]
    assert mine == 2 * known[:kept]
    assert len(set(words) - distinct) == 50
    assert len(words) - len(mine) == pytest.approx(0.22 * len(mine), rel=0.1)
    assert held.read_text().split() == known[kept:]


class Model:
    """What heldout.py reads of a .bin."""

    def __init__(self, words, counts, dim=4, maxn=0):
        self.words, self.counts = words, np.array(counts, np.int64)
        self.header = type("Header", (), {"sample": 0, "minn": 2, "maxn": maxn, "bucket": 5})
        rng = np.random.default_rng(3)
        rows = len(words) + (5 if maxn else 0)
        self.input = rng.standard_normal((rows, dim)).astype(np.float32)
        self.output = rng.standard_normal((len(words), dim)).astype(np.float32)


def test_held_out_loss_is_that_of_its_formula(bench, tmp_path, monkeypatch):
    heldout = bench("heldout")
    model = Model([b"a", b"b"], [1, 1])
    model.output[1] = model.output[0]  # whichever word is drawn as noise, it has one vector
    monkeypatch.setattr(heldout, "read_bin", lambda path: model)
    text = tmp_path / "text"
    text.write_text("a unknown b\n")
    scores = model.input.astype(np.float64) @ model.output[0]
    expected = np.mean(np.log1p(np.exp(-scores)) + 5 * np.log1p(np.exp(scores)))
    assert heldout.held_out_loss(Path("m.bin"), text) == pytest.approx(expected, rel=1e-6)
    text.write_text("a\nb\n")  # lines do not see each other
    with pytest.raises(ValueError, match="no two known words"):
        heldout.held_out_loss(Path("m.bin"), text)


def test_pairs_of_held_out_text_lie_within_each_words_reach(bench):
    heldout = bench("heldout")
    line = np.arange(2000)
    centres, contexts = heldout.neighbours([line, line[:1]], 5, np.random.default_rng(1))
    distance = np.abs(centres - contexts)
    assert distance.min() == 1
    assert distance.max() == 5
    # A reach of r, each as likely, has r words on either side.
    assert len(centres) == pytest.approx(2 * 3 * len(line), rel=0.05)
    assert np.bincount(distance)[1:] / len(line) / 2 == pytest.approx(
        [1, 0.8, 0.6, 0.4, 0.2], abs=0.05
    )


def test_vectors_of_words_with_subwords_are_means_of_their_rows(bench):
    heldout = bench("heldout")
    from snailps.data._subwords import subwords_csr

    model = Model([b"one", b"two", b"three"], [3, 2, 1], maxn=3)
    ptr, rows = subwords_csr(model.words, 2, 3, 5)
    whole = np.array([model.input[rows[a:b]].mean(0) for a, b in pairwise(ptr)])
    some = np.array([2, 0, 2])
    assert np.allclose(heldout.vectors(model, some), whole[some], atol=1e-6)


def test_clusters_beside_each_other_are_measured_once(bench, tmp_path, monkeypatch):
    """For other links, replications and seeds they are the same; for another text they are not."""
    hosts = bench("hosts")
    started = []

    class Cluster:
        returncode = 0

        def __init__(self, command, **_):
            started.append(command)

        def communicate(self, timeout):
            figures = {"units_per_s": 10.0 * len(started), "cpu_us_per_unit": {"all": 2.0}}
            return json.dumps(figures) + "\n", ""

        def poll(self):
            return 0

    monkeypatch.setattr(hosts.subprocess, "Popen", Cluster)

    def beside(train_s, *more, text="README.md"):
        words = ["--model", "word2vec", "--input", str(BENCH / text), "--out"]
        args = hosts.arguments([*words, str(tmp_path / "runs.json"), *more])
        return hosts.beside(args, 2, train_s)

    first = beside(100.0, "--seed", "3")
    assert first == {"beside_units_per_s": 20.0, "beside_cpu_us": 2.0}
    assert [command[-1] for command in started] == ["3", "4"]
    assert all("max_seconds=100" in command for command in started)
    assert beside(5.0, "--link", "100mbit", "--replication", "sync") == first
    assert len(started) == 2
    beside(5.0, text="hosts.py")
    assert len(started) == 4
    assert "max_seconds=30" in started[-1]  # not shorter


# --- what the processor time is spent on --------------------------------------------------------

SCRIPT = """\
check-out_0 12/15 3.5:
\tffff1 _copy_to_iter ([kernel.kallsyms])
\tffff2 tcp_recvmsg_locked+0x2f ([kernel.kallsyms])

python 12/12 4.5:
\t7f01 snail_train_bundles (/src/snailps/_kernels_avx2.cpython-311.so)

python 12/12 4.75:
\t7f02 mapiter_get (/numpy/_multiarray_umath.so)

shard-0 13/14 5.5:
\t7f03 __pyx_f_7snailps_5store_6tables__change_rows (/src/snailps/store/tables.cpython-311.so)

python 11/11 5.0:
\t7f04 _PyEval_EvalFrameDefault (/lib/libpython3.11.so.1.0)

python 12/12 9.0:
\t7f05 clear_page_erms ([kernel.kallsyms])
\t7f06 asm_exc_page_fault ([kernel.kallsyms])
\t7f07 __memmove_avx_unaligned_erms (/lib/libc.so.6)

stranger 99/99 5.0:
\t7f08 snail_train_bundles (/src/snailps/_kernels_avx2.cpython-311.so)
"""


def test_samples_are_counted_by_activity_and_add_up_to_what_hosts_had(bench):
    accounting = bench("accounting")
    samples = list(accounting.read(SCRIPT.splitlines()))
    assert [(s.pid, s.thread, s.time) for s in samples[:2]] == [
        (12, "check-out_0", 3.5),
        (12, "python", 4.5),
    ]
    assert samples[0].frames == (
        "_copy_to_iter@[kernel.kallsyms]",
        "tcp_recvmsg_locked@[kernel.kallsyms]",
    )
    roles = {11: "master", 12: "worker", 13: "server"}
    found = accounting.accounts_of(samples, roles, 3.0, 6.0, used=5.0, quota_used=0.8)
    expected = {"receiving": 1, "training": 1, "merging rows": 1, "applying": 1, "master": 1}
    assert {name: found[name] for name in accounting.ACTIVITIES if found[name]} == expected
    # Hosts spent 4 of a share of 5; the sample at 9.0 is after the training.
    assert found[accounting.WAITING] == pytest.approx(1.0)
    assert found[accounting.ENDS] == pytest.approx(1.0)
    table = accounting.accounts_table([{"hosts": 2, "accounts": found}])
    assert "| sum | 6.000 |" in table
    assert "| start and end | 1.000 |" in table


def test_pages_that_are_touched_first_are_an_activity_of_their_own(bench):
    accounting = bench("accounting")
    (sample,) = (s for s in accounting.read(SCRIPT.splitlines()) if s.time == 9.0)
    assert accounting.activity_of("worker", sample) == "memory pages"
