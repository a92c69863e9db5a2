"""The settings of the three roles and of a job.

    ClusterSettings <- ListenerSettings <- MasterSettings, ServerSettings      read by each process
                    <- WorkerSettings
    CheckpointSettings <- JobSettings <- a model's        read by the master, sent to the workers

Declarations and the checks of values against each other; no files, no sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from snailps.config.addresses import (
    check_advertised_addr,
    check_class_path,
    check_listen_addr,
    check_port_range,
    check_reachable_addr,
)
from snailps.config.consistency import steps_of
from snailps.config.fields import Alias, Settings, setting
from snailps.config.legacy import adagrad_to_optimizer
from snailps.dataclass import dataclass
from snailps.errors import ConfigError

_SHARDS_AUTO_MAX = 8
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class ClusterSettings(Settings):
    """Settings of every process of a cluster."""

    master_addr: str = setting(
        "127.0.0.1:16831",
        help="Address of the master: `host:port` or `[ipv6]:port`, host names allowed.",
        when="As soon as the cluster has more than one machine.",
        unit="host:port",
        check=check_reachable_addr,
    )
    init_timeout: float = setting(
        60.0,
        help="How long a node tries to reach the master and then waits for the start.",
        when="Machines start at very different times.",
        unit="s",
        low=0.1,
        high=_DAY_S,
    )
    request_timeout: float = setting(
        60.0,
        help="Limit of one pull, push or control request, retries included.",
        when=(
            "The network is slow enough that a large pull takes longer. Keep it well above "
            "`heartbeat_timeout`: a lost server is replaced only after that."
        ),
        unit="s",
        low=0.1,
        high=_DAY_S,
    )
    heartbeat_interval: float = setting(
        1.0,
        help="Time between two heartbeats, in both directions.",
        when="Longer with hundreds of nodes: the master handles the heartbeats of all.",
        unit="s",
        low=0.01,
        high=3600,
    )
    heartbeat_timeout: float = setting(
        10.0,
        help="Silence after which a node counts as lost.",
        when="Longer if machines stall (swapping, suspended), shorter to detect a loss sooner.",
        unit="s",
        low=0.05,
        high=_DAY_S,
    )
    on_node_loss: Literal["stop", "recover"] = setting(
        "recover",
        help=(
            "What happens when a process is lost. `recover`: a lost worker's blocks go to the "
            "others, standbys replace a lost server's shards (`replication`), and all wait for a "
            "lost master to be restarted. `stop`: the job ends at once, with the reason."
        ),
        when="`stop` if a run that lost a process is useless. Set at the master.",
    )
    secret_file: str = setting(
        "",
        help=(
            "File with the secret that all processes of a cluster share, readable by its owner "
            "and at most its group; the variable `SNAILPS_SECRET` may hold it instead. Empty: the "
            "one that snailps makes for processes that it starts on one machine; those that you "
            "start yourself have none, and listen only where other machines cannot reach them "
            "(docs/security.md)."
        ),
        when="As soon as the cluster has more than one machine.",
        unit="path",
    )
    tls: str = setting(
        "",
        help=(
            "Folder with `ca.pem`, `node.pem` and `node.key`, as `snailps tls init` makes it: all "
            "connections are encrypted, and both sides show a certificate of that CA. Empty: none."
        ),
        when="Others can read or change the network's traffic. Needs more CPU.",
        unit="path",
    )
    insecure: bool = setting(
        False,
        help="Listen for other machines without a secret or TLS: every connection is accepted.",
        when="Only in a network that no other machine reaches.",
    )
    accept_source: bool = setting(
        False,
        help=(
            "Execute the source of a class that a session's driver sends, from a notebook or a "
            "script. Set at the master and at all workers. The processes of `snailps.cluster` "
            "take it from the process that started them, and from no other."
        ),
        when="All who know the cluster's secret may run code of their own on its hosts.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        help="Lowest level of log lines that are written.",
        when="`debug` to follow every frame, `warning` for quiet runs.",
    )
    metrics_addr: str = setting(
        "",
        help=(
            "Address at which this process serves its metrics to Prometheus, at `/metrics` "
            "(docs/metrics.md): `127.0.0.1:0` takes any free port, which the status shows; all "
            "that reach the address may read them. Empty: no metrics."
        ),
        when="Prometheus or a like program watches the cluster.",
        unit="host:port",
        check=check_listen_addr,
    )
    log_format: Literal["text", "json"] = setting(
        "text",
        help=(
            "Lines on standard error: text for people, or one JSON object a line (time, level, "
            "process, host, pid, message, and what else a line tells)."
        ),
        when="`json` where a program collects the logs (docs/operations.md).",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        if self.heartbeat_timeout < 2 * self.heartbeat_interval:
            raise ConfigError(
                f"{where('heartbeat_timeout')}: heartbeat_timeout: expected at least twice "
                f"heartbeat_interval ({self.heartbeat_interval} s, from "
                f"{where('heartbeat_interval')}); got {self.heartbeat_timeout} s, so that one "
                f"late heartbeat would count as a loss"
            )


@dataclass(frozen=True, slots=True)
class ListenerSettings(ClusterSettings):
    """Where a process listens: the master and the servers; a worker does not."""

    listen_addr: str = setting(
        "",
        help=(
            "Address this process listens on. Empty: the interface that routes to the master, "
            "any free port; for the master itself, `master_addr`. Without a port: any free one."
        ),
        when="The machine has several networks, or the master listens on all of them (`0.0.0.0`).",
        unit="host:port",
        check=check_listen_addr,
    )
    advertise_addr: str = setting(
        "",
        help=(
            "Address that others are told to connect to. Empty: the one listened on. "
            "Without a port: the port listened on."
        ),
        when="The process sits behind NAT or in a container with mapped ports.",
        unit="host:port",
        check=check_advertised_addr,
    )
    port_range: str = setting(
        "",
        help="Ports to choose from where `listen_addr` names none, as `low-high`. Empty: any.",
        when="A firewall lets only certain ports through.",
        unit="ports",
        check=check_port_range,
    )


@dataclass(frozen=True, slots=True)
class MasterSettings(ListenerSettings):
    """Settings of the master alone; a job's settings are in `JobSettings`."""

    expected_node_num: int = setting(
        2,
        help="Number of servers and workers together; the job starts when all have joined.",
        when="Always: it is the size of the cluster, the master not counted.",
        unit="nodes",
        low=1,
        high=65_535,
    )
    modules: tuple[str, ...] = setting(
        (),
        help=(
            "Modules whose access methods tables of drivers may name (docs/access_methods.md): "
            "servers import them. `*`: any, as in clusters that a process starts for itself. "
            "Tables of a job need no entry: its class declares them."
        ),
        when="Drivers of a session declare tables with access methods of your own.",
    )
    expected_servers: int = setting(
        0,
        help="How many of these nodes must be servers. 0: at least one, any split; in a session "
        "all may be servers, in a job one must be a worker.",
        when="To detect a wrong number of servers at the start.",
        unit="nodes",
        low=0,
        high=65_535,
    )
    report: bool = setting(
        True,
        help=(
            "Write `OUTPUT.report.html` beside the result: curves, cluster, faults, settings and "
            "versions in one file."
        ),
        when="Nothing but the result is wanted beside it.",
    )
    master_time_out: float = setting(
        60.0,
        help=(
            "How long the master waits for all nodes, or later for another worker when the last "
            "one is gone, before it names the missing nodes and gives up; and how long nodes wait "
            "for a lost master that keeps a journal."
        ),
        when="Machines start at very different times; best equal to `init_timeout`.",
        unit="s",
        low=0.1,
        high=_DAY_S,
    )
    replication: Literal["sync", "async", "none"] = setting(
        "sync",
        help=(
            "Whether each shard has a standby on another server, which takes over if the primary "
            "is lost. `sync`: a push is acknowledged once both have it. `async`: at once, except "
            "for clocks; pushes that the standby lacks are lost with the primary. `none`, and "
            "always with one server: a lost server ends the job. Doubles the memory "
            "(docs/operations.md)."
        ),
        when="`none` if memory is short and checkpoints are enough.",
    )
    frag_num: int = setting(
        1024,
        help="Number of fragments the keys are divided into; fixed for the life of a model.",
        when="A cluster with more than about 200 shards, to spread them evenly.",
        unit="fragments",
        low=1,
        high=65_536,
    )
    journal_dir: str = setting(
        "",
        help=(
            "Folder for the master's journal, from which a restarted master continues, also that "
            "of a session; written with `on_node_loss: recover`. Empty: `OUTPUT.journal`, or none "
            "without an output."
        ),
        when="The disk of the output is slow, or another machine is to take over.",
        unit="path",
    )
    json_log: str = setting(
        "",
        help=(
            "File that gets a JSON record of the run's figures at intervals; those that it does "
            "not take in time are left out, and counted. Empty: none."
        ),
        when="Runs are plotted or watched by another program.",
        unit="path",
    )
    json_log_interval: float = setting(
        5.0,
        help="Time between two records of `json_log`.",
        when="Very short or very long runs.",
        unit="s",
        low=0.1,
        high=_DAY_S,
    )
    tensorboard: str = setting(
        "",
        help=(
            "Folder that gets the run for TensorBoard: curves, histograms of the rows' norms, the "
            "vectors at the end. Needs `pip install snailps[tensorboard]` at the master. Empty: "
            "none."
        ),
        when="Runs are compared there.",
        unit="path",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        ClusterSettings.validate(self, where)
        if self.expected_servers > self.expected_node_num:
            raise ConfigError(
                f"{where('expected_servers')}: expected_servers: expected at most "
                f"expected_node_num ({self.expected_node_num}, from "
                f"{where('expected_node_num')}), which counts servers and workers; got "
                f"{self.expected_servers}"
            )


@dataclass(frozen=True, slots=True)
class ServerSettings(ListenerSettings):
    """Settings of a server alone."""

    shard_num: int = setting(
        0,
        help=(
            f"Number of shard threads. 0: one per core, at most {_SHARDS_AUTO_MAX}; "
            f"more than the machine's cores are capped, with a notice."
        ),
        when="Workers share the machine, or the network needs more streams.",
        unit="threads",
        low=0,
        high=4096,
    )


@dataclass(frozen=True, slots=True)
class WorkerSettings(ClusterSettings):
    """Settings of a worker alone."""

    threads: int = setting(
        0,
        help="Number of threads that train. 0: one per core that the process may use.",
        when="Several processes share the machine.",
        unit="threads",
        low=0,
        high=1024,
        aliases=["async_channel_thread_num"],
    )


@dataclass(frozen=True, slots=True)
class CheckpointSettings(Settings):
    """Settings of checkpoints: of a job, and of the tables of a session."""

    checkpoint_dir: str = setting(
        "",
        help=(
            "Folder for checkpoints, on a disk that the master and all servers share. Empty: "
            "`OUTPUT.checkpoints`, or `checkpoints` without an output."
        ),
        when="The disk of the output is small or slow, or not shared.",
        unit="path",
        aliases=["param_backup_root"],
    )
    checkpoint_interval: float = setting(
        0.0,
        help=(
            "Time between checkpoints of all tables and the job's position; training goes on "
            "meanwhile. The same command continues from the newest checkpoint. A session makes "
            "them while it runs no job, where rows have changed. 0: never."
        ),
        when="Runs of more than minutes: it bounds the work that may be lost.",
        unit="s",
        low=0.0,
    )
    param_backup_period: int = setting(
        0,
        help="Pushes (of 64 KiB or one row) after which a checkpoint is made. 0: never.",
        when="To bound the work that may be lost by pushes instead of time.",
        unit="pushes",
        low=0,
    )
    checkpoints_kept: int = setting(
        2,
        help="How many checkpoints are kept; older ones are removed when a new one is complete.",
        when="More to go back further, one if the disk is small.",
        low=1,
        high=1000,
    )
    fresh: bool = setting(
        False,
        help="Start from the beginning, even if `checkpoint_dir` has a checkpoint of this job.",
        when="To train the same job again from the start: `--fresh` on the command line.",
    )

    @property
    def saves_checkpoints(self) -> bool:
        """Whether the job makes any; with `checkpoint_dir` alone it may continue from one."""
        return bool(self.checkpoint_interval or self.param_backup_period)


@dataclass(frozen=True, slots=True)
class JobSettings(CheckpointSettings):
    """Settings of a job, sent by the master to the workers; models subclass it to add theirs."""

    worker_class: str = setting(
        "",
        help="The model to train, as `package.module:Class`, a subclass of `snailps.Worker`.",
        when="Always in a job's file; `snailps train` fills it in.",
        check=check_class_path,
    )
    input: tuple[str, ...] = setting(
        (),
        help="Files, folders, globs and URLs (`s3://...`) to train on; a relative path starts at "
        "the current folder. `.gz`, `.bz2`, `.xz`, `.zst` and `.lz4` are unpacked.",
        when="Always.",
        unit="paths",
    )
    output: str = setting(
        "",
        help="Prefix of the paths of the result files. Empty: nothing is written.",
        when="Always, unless the result is read from the running cluster.",
        unit="path",
    )
    epochs: int = setting(
        5,
        help="Number of training passes over the whole input.",
        when="Fewer for very large inputs, more for small ones.",
        low=1,
        high=1_000_000,
        aliases=["num_iters"],
    )
    max_steps: int = setting(
        0,
        help=(
            "Training ends after this many steps; a step is one block, trained and pushed "
            "(`blocks` in the figures). 0: no limit. The learning rate reaches its end by then."
        ),
        when="A part of the input is enough, or a trial run.",
        unit="blocks",
        low=0,
    )
    max_seconds: float = setting(
        0.0,
        help=(
            "Training ends after this time, without the survey of the input and the export. "
            "0: no limit. The learning rate reaches its end by then."
        ),
        when="A result is due at a certain time.",
        unit="s",
        low=0.0,
    )
    target_loss: float = setting(
        0.0,
        help=(
            "Training ends when the mean loss of the last 16 blocks is at most this; if an epoch "
            "has fewer blocks, of those so far, from the end of the first epoch on. In rounds: "
            "when the loss of a round is. 0: never. The learning rate does not depend on it."
        ),
        when="The loss that is good enough is known.",
        low=0.0,
    )
    consistency: Literal["async", "ssp", "bsp"] = setting(
        "async",
        help=(
            "How workers synchronise. `async`: workers do not wait. `ssp`: no worker is more than "
            "`staleness` blocks ahead of the slowest. `bsp`: all take the same step; the result "
            "is bit-identical for any number of workers (docs/consistency.md)."
        ),
        when="`bsp` to repeat a run exactly, `ssp` if workers differ much in speed.",
    )
    staleness: int = setting(
        2,
        help="With `ssp`: how many blocks a worker may be ahead of the slowest. 0: in step.",
        when="Larger for less waiting, smaller for fresher parameters.",
        unit="blocks",
        low=0,
        high=1 << 30,
        read_if={"consistency": ("ssp",)},
    )
    micro_batches: int = setting(
        4,
        help=(
            "With `bsp`: blocks whose sum makes one step, each trained by one thread of some "
            "worker. The result depends on it, unlike on the number of workers."
        ),
        when="At least as many as workers; more for larger steps.",
        unit="blocks",
        low=1,
        high=4096,
        read_if={"consistency": ("bsp",)},
    )
    assign: Literal["auto", "shared", "own"] = setting(
        "auto",
        help=(
            "Which worker gets a block. `shared`: the one that had it an epoch before, or the next "
            "that asks. `own`: every n-th block, assigned at the start. `auto`: `own` with `ssp`, "
            "else `shared`."
        ),
        when="To compare `async` and `ssp` on the same share of the data.",
    )
    seed: int = setting(
        1,
        help="Seed of all random numbers: first values of rows, sampling.",
        when="To see how much results vary with it.",
        low=0,
        high=2**32 - 1,
    )
    block_bytes: int = setting(
        0,
        help="Size of a block of input. 0: the program chooses, at least ten blocks per epoch.",
        when="Smaller for fresher parameters, larger for less traffic.",
        unit="bytes",
        low=0,
        high=1 << 30,
    )
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = setting(
        "auto",
        help="Access method of the tables: what a push does to a row. `auto`: the model's choice.",
        when="To compare optimisers, where the model supports the other one.",
        aliases=[Alias("adagrad", adagrad_to_optimizer, "true means `optimizer: adagrad`")],
    )
    wire: Literal["auto", "float32", "float16", "int8"] = setting(
        "auto",
        help="Type of rows on the network; in memory they are float32. `auto`: float16 if the "
        "measured network is slow (with `tls` also on one machine) and where several workers "
        "train word vectors in rotation, or a classifier, or several servers compute a sparse "
        "first layer; else float32.",
        when="float32 for runs that must be bit-identical, and to skip the measurement.",
    )
    scratch_dir: str = setting(
        "",
        help="Folder for copies of input: unpacked, fetched, read from tables. Empty: the system's "
        "folder for temporary files.",
        when="That folder is small or in memory.",
        unit="path",
    )
    scratch_bytes: int = setting(
        0,
        help="Limit of copies of input in that folder. 0: half of the free space.",
        when="Other programs need the space.",
        unit="bytes",
        low=0,
    )
    overwrite: bool = setting(
        False,
        help="Replace result files that exist. Without it a job whose files exist is refused at "
        "its start, unless it goes on from a journal or a checkpoint.",
        when="Runs that are repeated: `--overwrite` on the command line.",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse values of `assign` that do not fit the consistency."""
        if self.assign == steps_of(self).refused_assign:
            raise ConfigError(
                f"{where('assign')}: assign: expected auto with consistency {self.consistency} "
                f"(from {where('consistency')}), which assigns blocks itself; got {self.assign}"
            )


CHECKPOINT_SETTINGS = (
    "checkpoint_dir",
    "checkpoint_interval",
    "param_backup_period",
    "checkpoints_kept",
    "fresh",
    "overwrite",
)
"""Fields of `JobSettings` that do not affect what is trained."""

ROLE_CLASSES: tuple[tuple[str, type[Settings]], ...] = (
    ("Every process", ClusterSettings),
    ("Master and servers", ListenerSettings),
    ("Master", MasterSettings),
    ("Server", ServerSettings),
    ("Worker", WorkerSettings),
    ("Checkpoints of jobs and sessions", CheckpointSettings),
    ("Every job", JobSettings),
)


def effective_shard_num(settings: ServerSettings, cores: int) -> tuple[int, str | None]:
    """Number of shard threads, 1 to `cores`, and a notice if `shard_num` was not followed."""
    if settings.shard_num == 0:
        return max(1, min(cores, _SHARDS_AUTO_MAX)), None
    if settings.shard_num <= cores:
        return settings.shard_num, None
    return cores, (
        f"shard_num: {settings.shard_num} is more than this machine's {cores} core(s), running "
        f"{cores}: a shard is a thread here (SwiftSnails counted locks), and threads beyond the "
        f"cores only slow each other down"
    )
