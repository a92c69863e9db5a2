"""The settings of roles and jobs: addresses, SwiftSnails' names, values that go together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import snailps.models
from snailps.config import (
    ROLE_CLASSES,
    ClusterSettings,
    JobSettings,
    MasterSettings,
    RawConfig,
    ServerSettings,
    WorkerSettings,
    effective_shard_num,
    format_addr,
    parse_addr,
    parse_port_range,
    settings_of,
    to_mapping,
)
from snailps.config.addresses import check_class_path
from snailps.config.legacy import IGNORED
from snailps.config.output import check_output
from snailps.dataclass import replace
from snailps.errors import ConfigError
from snailps.master.checkpoint_files import folder_of

CONFIG = Path(__file__).parents[2] / "config"
CLASSES = [cls for _, cls in ROLE_CLASSES]
MODEL_CLASSES = list(getattr(snailps.models, "SETTINGS", {}).values())
# SwiftSnails' names that its users have to find again.
SWIFTSNAILS = {
    "listen_addr": "tcp://10.0.0.1:5000",
    "master_addr": "tcp://10.0.0.1:16831",
    "expected_node_num": "4",
    "master_time_out": "120",
    "init_timeout": "60",
    "frag_num": "50",
    "shard_num": "300",
    "async_exec_num": "4",
    "async_channel_thread_num": "12",
    "num_iters": "3",
    "param_backup_period": "100",
    "param_backup_root": "./param_back/",
    "adagrad": "1",
    "zlib": "6",
}


def build(cls, *overrides):
    return RawConfig.load(None, environ={}, overrides=overrides).build(cls, also_known=CLASSES)


@pytest.mark.parametrize("cls", CLASSES + MODEL_CLASSES)
def test_defaults_pass_their_own_rules_and_travel_as_text(cls):
    mapping = to_mapping(cls())
    assert list(mapping) == list(settings_of(cls))
    assert RawConfig.from_mapping(mapping, "message").build(cls) == cls()
    assert settings_of(cls) is settings_of(cls)  # a class is read once


@pytest.mark.parametrize(
    ("text", "addr"),
    [
        ("127.0.0.1:16831", ("127.0.0.1", 16831)),
        ("tcp://10.0.0.5:1", ("10.0.0.5", 1)),
        (" TCP://node-1.rack_2.example:65535 ", ("node-1.rack_2.example", 65535)),
        ("[::1]:80", ("::1", 80)),
        ("tcp://[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
        ("tcp://*:80", ("0.0.0.0", 80)),
    ],
)
def test_parse_addr_every_form_gives_host_and_port(text, addr):
    assert parse_addr(text, "here") == addr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the host is missing"),
        (":80", "the host is missing"),
        ("node1", "the port is missing"),
        ("node1:", "the port is missing"),
        ("node1:0", "expected a port from 1 to 65535"),
        ("node1:65536", "'65536' is not a port"),
        ("node1:http", "'http' is not a port"),
        ("node1:-5", "'-5' is not a port"),
        ("300.0.0.1:80", "'300.0.0.1' is not a host"),
        ("no de:80", "'no de' is not a host"),
        ("-x:80", "'-x' is not a host"),
        ("::1:80", "in brackets"),
        ("[::1]80", "brackets enclose"),
        ("[::1:80", "brackets enclose"),
        ("[node1]:80", "'node1' is not an IPv6 address"),
        ("udp://node1:80", "only tcp"),
    ],
)
def test_parse_addr_bad_text_says_why(text, why):
    with pytest.raises(ConfigError) as caught:
        parse_addr(text, "a.conf:7")
    assert str(caught.value).startswith("a.conf:7: expected an address such as 10.0.0.5:16831")
    assert why in str(caught.value)


@given(st.ip_addresses().map(str) | st.just("node1"), st.integers(1, 65535))
def test_parse_addr_undoes_format_addr(host, port):
    assert parse_addr(format_addr(host, port), "here") == (host, port)


def test_addresses_are_normalised_when_built():
    built = build(
        ServerSettings,
        "master_addr=tcp://[::1]:5",
        "listen_addr=tcp://*:6",
        "advertise_addr=node1",
        "port_range= 20000 - 20010 ",
    )
    assert built.master_addr == "[::1]:5"
    assert built.listen_addr == "0.0.0.0:6"
    assert built.advertise_addr == "node1:0"
    assert built.port_range == "20000-20010"
    assert build(ServerSettings, "listen_addr=").listen_addr == ""


@pytest.mark.parametrize("key", ["master_addr", "advertise_addr"])
def test_address_nobody_can_connect_to_is_refused(key):
    with pytest.raises(ConfigError, match=f"^--set {key}: .* to listen on"):
        build(ServerSettings, f"{key}=0.0.0.0:5")


def test_paths_of_home_are_expanded_once_and_of_an_unknown_user_stay(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    job = build(JobSettings, "output=~/out/x", "checkpoint_dir=~nosuch/x", "scratch_dir=")
    assert (job.output, job.checkpoint_dir) == ("/home/me/out/x", "~nosuch/x")
    assert folder_of(replace(job, checkpoint_dir="")) == Path("/home/me/out/x.checkpoints")
    assert job.scratch_dir == ""


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_output_that_is_a_folder_is_refused_with_what_to_write(tmp_path, name):
    wrong = f"{tmp_path}/{name}"
    with pytest.raises(ConfigError, match=f"got a folder; write {tmp_path}/{name}.*model"):
        check_output(wrong)


def test_master_addr_empty_is_refused():
    with pytest.raises(ConfigError, match=r"^--set master_addr: expected an address"):
        build(ServerSettings, "master_addr=")


@pytest.mark.parametrize("text", ["20000", "20010-20000", "0-5", "1-65536", "a-b"])
def test_port_range_bad_text_is_refused(text):
    with pytest.raises(ConfigError, match="port_range: expected a range of ports"):
        build(ServerSettings, f"port_range={text}")
    assert parse_port_range("5-5", "here") == (5, 5)
    assert parse_port_range("", "here") is None


def test_class_path_accepts_module_and_class_only():
    for good in ("", "my_model:Model", "a.b.c:Outer.Inner"):
        assert check_class_path(good, "here") == good
    for bad in ("my_model", "my_model.Model", "a/b.py:Model", "a:b:c", "1a:B"):
        with pytest.raises(ConfigError, match=r"^here: expected package\.module:Class"):
            check_class_path(bad, "here")


def test_swiftsnails_settings_are_all_accepted_and_mean_what_they_meant():
    raw = RawConfig.from_mapping(SWIFTSNAILS, "theirs.conf")
    master = raw.build(MasterSettings, also_known=CLASSES)
    assert (master.listen_addr, master.master_addr) == ("10.0.0.1:5000", "10.0.0.1:16831")
    assert (master.expected_node_num, master.master_time_out) == (4, 120.0)
    assert (master.init_timeout, master.frag_num) == (60.0, 50)
    assert raw.build(ServerSettings, also_known=CLASSES).shard_num == 300
    assert raw.build(WorkerSettings, also_known=CLASSES).threads == 12
    job = raw.build(JobSettings, also_known=CLASSES)
    assert (job.epochs, job.optimizer) == (3, "adagrad")
    assert (job.param_backup_period, job.checkpoint_dir) == (100, "./param_back/")
    told = "\n".join(raw.notices)
    for name in (
        "async_exec_num has no effect",
        "zlib has no effect",
        "called threads",
        "called epochs",
    ):
        assert name in told
    assert "taken as 'optimizer: adagrad'" in told


@pytest.mark.parametrize("name", [
    "async_exec_num", "line_buffer_queue_capacity", "listen_thread_num", "local_train",
    "master_longest_alive_duration", "min_len", "minibatch", "num_sents_to_cache", "pull_period",
    "push_period", "zlib",
])  # fmt: skip
def test_swiftsnails_name_without_effect_is_accepted_with_its_reason(name):
    raw = RawConfig.from_mapping({name: "7"}, "theirs.conf")
    for cls in CLASSES:
        assert raw.build(cls, also_known=CLASSES) == cls()
    assert [note for note in raw.notices if f"{name} has no effect: {IGNORED[name]}" in note]


def test_adagrad_zero_leaves_the_optimizer_as_it_was():
    raw = RawConfig.load(None, environ={}, overrides=["optimizer=sgd", "adagrad=0"])
    assert raw.build(JobSettings).optimizer == "sgd"
    assert raw.explicit("optimizer", JobSettings).value == "sgd"


def test_alias_with_a_wrong_value_names_itself():
    text, name = "adagrad=2", "adagrad"
    with pytest.raises(ConfigError, match=f"^--set {text}: {name}: expected .*; got .*; or write"):
        build(JobSettings, text)


def test_ways_of_dealing_that_do_not_fit_the_consistency_are_refused():
    with pytest.raises(ConfigError, match=r"^--set assign: expected auto .* ssp"):
        build(JobSettings, "consistency=ssp", "assign=shared")
    with pytest.raises(ConfigError, match=r"^--set assign: expected auto .* bsp"):
        build(JobSettings, "consistency=bsp", "assign=own")
    assert build(JobSettings, "assign=own").assign == "own"


def test_heartbeats_that_cannot_work_name_both_origins():
    with pytest.raises(
        ConfigError, match=r"^--set heartbeat_timeout: expected .*default of heartbeat"
    ):
        build(ServerSettings, "heartbeat_timeout=1.5")


def test_more_servers_than_nodes_are_refused():
    with pytest.raises(ConfigError, match=r"expected at most expected_node_num .2, from default"):
        build(MasterSettings, "expected_servers=3")


@pytest.mark.parametrize(
    ("asked", "cores", "shard_num", "notice"),
    [(0, 2, 2, False), (0, 64, 8, False), (2, 2, 2, False), (12, 16, 12, False), (300, 4, 4, True)],
)
def test_effective_shard_num_never_exceeds_the_cores(asked, cores, shard_num, notice):
    chosen, said = effective_shard_num(ServerSettings(shard_num=asked), cores)
    assert chosen == shard_num
    assert (said is not None) is notice
    if said:
        assert "300 is more than this machine's 4 core(s)" in said


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIG.glob("*.conf")))
def test_shipped_file_is_accepted_by_every_role(name):
    raw = RawConfig.load(CONFIG / f"{name}.conf", environ={})
    model = raw.explicit("worker_class")
    names = [key for key, path in snailps.models.CLASSES.items() if model and path == model.value]
    models = [snailps.models.SETTINGS[key] for key in names]
    assert bool(models) == (name not in ("common", "server", "worker"))
    roles = [cls for cls in CLASSES if not (models and cls is JobSettings)]  # theirs are the job's
    for cls in roles + models:  # a loss of one model may be none of another's
        raw.build(cls, also_known=CLASSES + MODEL_CLASSES)
    assert raw.notices == []


def test_shipped_role_files_agree_on_the_master():
    built = {
        cls: RawConfig.load(CONFIG / f"{cls.__name__[:6].lower()}.conf", environ={})
        for cls in (MasterSettings, ServerSettings, WorkerSettings)
    }
    addresses = {raw.explicit("master_addr", cls).value for cls, raw in built.items()}
    assert addresses == {ClusterSettings().master_addr}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("logistic", {"optimizer": "ftrl"}), ("fm", {"optimizer": "adagrad"}), ("classifier", {}),
        ("fasttext", {}), ("word2vec", {"minn": 0, "maxn": 0}),
    ],
)  # fmt: skip
def test_shipped_job_has_the_defaults_of_its_class(name, other):
    raw = RawConfig.load(CONFIG / f"{name}.conf", environ={})
    cls = snailps.models.SETTINGS[name]
    settings = raw.build(cls, also_known=CLASSES + MODEL_CLASSES)
    files = {"worker_class", "input", "test", "output"} & set(settings_of(cls))
    assert settings == cls(**other, **{key: getattr(settings, key) for key in files})
    assert settings.worker_class == snailps.models.CLASSES[name]
