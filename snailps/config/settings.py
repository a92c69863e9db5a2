"""Owns the declarations of the settings of the three roles and of a job.

    ClusterSettings <- ListenerSettings <- MasterSettings, ServerSettings      read by each process
                    <- WorkerSettings
    CheckpointSettings <- JobSettings <- a model's        read by the master, sent to the workers

Each declaration has its help text (docs/settings.md and ``--help``), its range, and the check
against other settings.  Must not know files, precedence (`raw.py`) or sockets.
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
        help="Address of the master. `host:port` or `[ipv6]:port`; the host may be a name.",
        when="As soon as the cluster has more than one machine.",
        unit="host:port",
        check=check_reachable_addr,
    )
    init_timeout: float = setting(
        60.0,
        help=(
            "Limit for joining: a node tries to reach the master, then waits for the start, for "
            "at most this time each."
        ),
        when="Machines start at very different times.",
        unit="s",
        low=0.1,
        high=_DAY_S,
    )
    request_timeout: float = setting(
        60.0,
        help="Limit for one pull, push or control request, retries included.",
        when=(
            "A large pull takes longer on your network. Keep it well above `heartbeat_timeout`, "
            "because a lost server is replaced only after that."
        ),
        unit="s",
        low=0.1,
        high=_DAY_S,
    )
    heartbeat_interval: float = setting(
        1.0,
        help="Time between two heartbeats, in both directions.",
        when="Longer with hundreds of nodes, because the master handles all heartbeats.",
        unit="s",
        low=0.01,
        high=3600,
    )
    heartbeat_timeout: float = setting(
        10.0,
        help="Time without a heartbeat after which a node counts as lost.",
        when="Longer if machines stall (swapping, suspended), shorter to detect a loss sooner.",
        unit="s",
        low=0.05,
        high=_DAY_S,
    )
    on_node_loss: Literal["stop", "recover"] = setting(
        "recover",
        help=(
            "What to do when a process is lost. `recover`: other workers train a lost worker's "
            "blocks, standbys replace a lost server's shards (`replication`), and all nodes wait "
            "for a lost master to be restarted. `stop`: the job ends at once and reports why. Read "
            "by the master."
        ),
        when="`stop` if a run that lost a process is of no use to you.",
    )
    secret_file: str = setting(
        "",
        help=(
            "File with the secret that all processes of a cluster share. At most its owner and "
            "group may read it; the variable `SNAILPS_SECRET` may hold the secret instead. Empty: "
            "processes that snailps starts on one machine share a secret of their own; processes "
            "that you start have none, and listen only where other machines cannot reach them "
            "(docs/security.md)."
        ),
        when="As soon as the cluster has more than one machine.",
        unit="path",
    )
    tls: str = setting(
        "",
        help=(
            "Folder with certificates: encrypt all connections. It holds `ca.pem`, `node.pem` and "
            "`node.key`, as `snailps tls init` makes them; both sides of a connection must present "
            "a certificate that this CA has signed. Empty: no encryption."
        ),
        when="Others can read or change the network's traffic. Costs CPU time.",
        unit="path",
    )
    insecure: bool = setting(
        False,
        help="Accept connections from other machines without a secret or TLS.",
        when="Only in a network that no untrusted machine can reach.",
    )
    accept_source: bool = setting(
        False,
        help=(
            "Execute source code that a driver sends: the class of a model that is defined in a "
            "notebook or a script. Set it at the master and at all workers. The processes of "
            "`snailps.cluster` accept source only from the process that started them."
        ),
        when="Everyone who knows the cluster's secret may run code on its hosts.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        help="Lowest level of the log lines that are written.",
        when="`debug` to follow every frame, `warning` for quiet runs.",
    )
    metrics_addr: str = setting(
        "",
        help=(
            "Address at which this process serves metrics for Prometheus, under `/metrics` "
            "(docs/metrics.md). `127.0.0.1:0` takes any free port; `snailps status` shows which. "
            "Everyone who can connect to the address can read the metrics. Empty: no metrics."
        ),
        when="Prometheus or a similar program monitors the cluster.",
        unit="host:port",
        check=check_listen_addr,
    )
    log_format: Literal["text", "json"] = setting(
        "text",
        help=(
            "Format of the log on standard error. `text`, or `json`: one object per line with "
            "time, level, process, host, pid, message and the fields of that record."
        ),
        when="`json` if a program collects the logs (docs/operations.md).",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        if self.heartbeat_timeout < 2 * self.heartbeat_interval:
            raise ConfigError(
                f"{where('heartbeat_timeout')}: expected at least twice "
                f"heartbeat_interval ({self.heartbeat_interval} s, from "
                f"{where('heartbeat_interval')}); got {self.heartbeat_timeout} s, with which a "
                f"single late heartbeat would count as a loss"
            )


@dataclass(frozen=True, slots=True)
class ListenerSettings(ClusterSettings):
    """Settings of the processes that listen, the master and the servers; a worker does not."""

    listen_addr: str = setting(
        "",
        help=(
            "Address that this process listens on. Without a port: any free port. Empty: the "
            "interface that routes to the master, and any free port; for the master itself "
            "`master_addr`."
        ),
        when="The machine has several networks, or the master listens on all of them (`0.0.0.0`).",
        unit="host:port",
        check=check_listen_addr,
    )
    advertise_addr: str = setting(
        "",
        help=(
            "Address at which other processes connect to this one. Empty: the address that it "
            "listens on. Without a port: the port that it listens on."
        ),
        when="The process sits behind NAT or in a container with mapped ports.",
        unit="host:port",
        check=check_advertised_addr,
    )
    port_range: str = setting(
        "",
        help="Ports to choose from, `low-high`, if `listen_addr` has no port. Empty: any port.",
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
        when="Always: it is the size of the cluster without the master.",
        unit="nodes",
        low=1,
        high=65_535,
    )
    modules: tuple[str, ...] = setting(
        (),
        help=(
            "Modules that servers may import because a driver's table names an access method in "
            "them (docs/access_methods.md). `*`: any module, the value in clusters that a process "
            "starts for itself. Tables of a job need no entry, because its class declares them."
        ),
        when="Drivers of a session declare tables with access methods that you have written.",
    )
    expected_servers: int = setting(
        0,
        help="Number of servers among `expected_node_num`. 0: any number from one on; a job needs "
        "at least one worker, too, a session does not.",
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
        when="`false` if only the result files are wanted.",
    )
    master_time_out: float = setting(
        60.0,
        help=(
            "Limit for waiting: of the master for all nodes at the start, and later for another "
            "worker when the last one is lost; then it names the missing nodes and ends the job. "
            "Also of the nodes for a lost master that keeps a journal, and of the master for room "
            "on a full disk, where the model is to be written."
        ),
        when="Machines start at very different times; best equal to `init_timeout`.",
        unit="s",
        low=0.1,
        high=_DAY_S,
    )
    replication: Literal["sync", "async", "none"] = setting(
        "sync",
        help=(
            "Keep a standby of each shard on another server. It takes over if the primary is lost, "
            "and doubles the memory (docs/operations.md). `sync`: a push is acknowledged when both "
            "have it. `async`: it is acknowledged at once, except for clocks; pushes that the "
            "standby lacks are lost with the primary. `none`, and always with a single server: the "
            "loss of a server ends the job."
        ),
        when="`none` if memory is short and checkpoints are enough.",
    )
    frag_num: int = setting(
        1024,
        help="Number of fragments of the key space; fixed for the life of a model.",
        when="More for a cluster with more than about 200 shards, to spread keys evenly.",
        unit="fragments",
        low=1,
        high=65_536,
    )
    journal_dir: str = setting(
        "",
        help=(
            "Folder for the master's journal. A restarted master continues from it, in a session "
            "too; it is written with `on_node_loss: recover`. Empty: `OUTPUT.journal`, or no "
            "journal if there is no output."
        ),
        when="The disk of the output is slow, or another machine is to take over.",
        unit="path",
    )
    json_log: str = setting(
        "",
        help=(
            "File to append a JSON record of the run's figures to at intervals. A record is "
            "dropped, and counted, if the disk is too slow for it. Empty: no file."
        ),
        when="Another program plots or monitors the runs.",
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
            "Folder for TensorBoard: curves, histograms of the rows' norms, and the vectors at the "
            "end. The master needs `pip install snailps[tensorboard]`. Empty: nothing is written."
        ),
        when="You compare runs in TensorBoard.",
        unit="path",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        ClusterSettings.validate(self, where)
        if self.expected_servers > self.expected_node_num:
            raise ConfigError(
                f"{where('expected_servers')}: expected at most "
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
            f"Number of shard threads. 0: one per core, at most {_SHARDS_AUTO_MAX}. "
            f"More than the machine has cores are reduced to that, with a notice."
        ),
        when="Workers share the machine, or the network needs more connections.",
        unit="threads",
        low=0,
        high=4096,
    )


@dataclass(frozen=True, slots=True)
class WorkerSettings(ClusterSettings):
    """Settings of a worker alone."""

    threads: int = setting(
        0,
        help="Number of training threads. 0: one per core that the process may use.",
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
            "Folder for checkpoints. The master and all servers must share it. Empty: "
            "`OUTPUT.checkpoints`, or `checkpoints` if there is no output."
        ),
        when="The disk of the output is small or slow, or not shared.",
        unit="path",
        aliases=["param_backup_root"],
    )
    checkpoint_interval: float = setting(
        0.0,
        help=(
            "Time between checkpoints. A checkpoint has all tables and the position of the job; "
            "training continues while it is written, and the same command continues from the "
            "newest one. Between jobs a session writes one only if rows have changed. 0: no "
            "checkpoints."
        ),
        when="Runs of more than some minutes: at most this much work is lost.",
        unit="s",
        low=0.0,
    )
    param_backup_period: int = setting(
        0,
        help="Number of pushes between checkpoints (a push: 64 KiB, or one row). 0: never.",
        when="To bound the work that may be lost by pushes instead of time.",
        unit="pushes",
        low=0,
    )
    checkpoints_kept: int = setting(
        2,
        help="Number of checkpoints to keep. Older ones are removed when a new one is complete.",
        when="More to be able to go back further, 1 if the disk is small.",
        low=1,
        high=1000,
    )
    fresh: bool = setting(
        False,
        help="Start from the beginning, even if `checkpoint_dir` has a checkpoint of this job.",
        when="To train the same job again from its start: `--fresh` on the command line.",
    )

    @property
    def saves_checkpoints(self) -> bool:
        """Whether the job writes checkpoints; with `checkpoint_dir` alone it can only continue."""
        return bool(self.checkpoint_interval or self.param_backup_period)


@dataclass(frozen=True, slots=True)
class JobSettings(CheckpointSettings):
    """Settings of a job, sent by the master to the workers; models subclass it to add theirs."""

    worker_class: str = setting(
        "",
        help="The model to train: a subclass of `snailps.Worker`, as `package.module:Class`.",
        when="Always in a job's file; `snailps train` fills it in.",
        check=check_class_path,
    )
    input: tuple[str, ...] = setting(
        (),
        help="Input files, folders, globs and URLs. A relative path starts at the current folder; "
        "URLs are `s3://...` and others; `.gz`, `.bz2`, `.xz`, `.zst` and `.lz4` are unpacked.",
        when="Always.",
        unit="paths",
    )
    output: str = setting(
        "",
        help="Prefix of the paths of the result files, or the path of one: `out/m.npz` is `out/m` "
        "for a model that writes a `.npz`. Empty: nothing is written.",
        when="Always, unless you read the result from the running cluster.",
        unit="path",
    )
    epochs: int = setting(
        5,
        help="Number of passes over the input.",
        when="Fewer for very large inputs, more for small ones.",
        low=1,
        high=1_000_000,
        aliases=["num_iters"],
    )
    max_steps: int = setting(
        0,
        help=(
            "End after this many steps. A step is one block, trained and pushed (`blocks` in the "
            "figures). The learning rate reaches its end by then. 0: no limit."
        ),
        when="A part of the input is enough, or for a trial run.",
        unit="blocks",
        low=0,
    )
    max_seconds: float = setting(
        0.0,
        help=(
            "End after this time of training. The survey of the input and the export do not "
            "count. The learning rate reaches its end by then. 0: no limit."
        ),
        when="The result is due at a certain time.",
        unit="s",
        low=0.0,
    )
    target_loss: float = setting(
        0.0,
        help=(
            "End when the mean loss is at most this. It is the mean over the last 16 blocks; if an "
            "epoch has fewer, over all blocks so far, from the end of the first epoch on; in "
            "federated averaging the loss of a round. The learning rate does not depend on it. "
            "0: no limit."
        ),
        when="You know which loss is good enough.",
        low=0.0,
    )
    consistency: Literal["async", "ssp", "bsp"] = setting(
        "async",
        help=(
            "How workers synchronise. `async`: workers do not wait for each other. `ssp`: no "
            "worker is more than `staleness` blocks ahead of the slowest. `bsp`: all workers take "
            "each step together; the result has the same bits with any number of workers "
            "(docs/consistency.md)."
        ),
        when="`bsp` to repeat a run exactly, `ssp` if workers differ much in speed.",
    )
    staleness: int = setting(
        2,
        help="Most blocks that a worker may be ahead of the slowest. 0: in lockstep.",
        when="Larger for less waiting, smaller for fresher parameters.",
        unit="blocks",
        low=0,
        high=1 << 30,
        read_if={"consistency": ("ssp",)},
    )
    micro_batches: int = setting(
        4,
        help=(
            "Number of blocks whose sum makes one step. One thread of a worker trains each of "
            "them. The result depends on this number, but not on the number of workers."
        ),
        when="At least the number of workers; more for larger steps.",
        unit="blocks",
        low=1,
        high=4096,
        read_if={"consistency": ("bsp",)},
    )
    assign: Literal["auto", "shared", "own"] = setting(
        "auto",
        help=(
            "Which worker trains a block. `shared`: the worker that trained it in the last epoch, "
            "or the next one that asks for a block. `own`: of n workers each has every n-th block "
            "from the start. `auto`: `own` with `ssp`, else `shared`."
        ),
        when="To compare `async` and `ssp` on the same share of the data.",
    )
    seed: int = setting(
        1,
        help="Seed of all random numbers: initial rows, sampling.",
        when="To see how much results vary with it.",
        low=0,
        high=2**32 - 1,
    )
    learnt: int = setting(
        0,
        help="Input that the model has learnt, this training's with it. 0: not known.",
        when="Never; it comes from the file that the training continues from.",
        unit="bytes",
        low=0,
        hidden=True,
    )
    block_bytes: int = setting(
        0,
        help="Size of a block of input, a tenth of the input at most (in `async` jobs of several "
        "epochs, a fiftieth of all epochs if that is more). 0: chosen.",
        when="Smaller for fresher parameters, larger for less traffic.",
        unit="bytes",
        low=0,
        high=1 << 30,
    )
    optimizer: Literal["auto", "add", "sgd", "momentum", "adagrad", "adam", "ftrl"] = setting(
        "auto",
        help="Optimizer of the tables. It is the access method by which a push changes a row. "
        "`auto`: the model's choice.",
        when="To compare optimizers that the model supports.",
        aliases=[Alias("adagrad", adagrad_to_optimizer, "true means `optimizer: adagrad`")],
    )
    wire: Literal["auto", "float32", "float16", "int8"] = setting(
        "auto",
        help="Type of rows on the network. In memory they are float32. `auto`: float16 if the "
        "measured network is slow (with `tls` also on one machine), if several workers train word "
        "vectors in rotation or a classifier, or if several servers compute a sparse first layer; "
        "else float32.",
        when="float32 for runs that must be bit-identical, and to skip the measurement.",
    )
    scratch_dir: str = setting(
        "",
        help="Folder for copies of input that is unpacked, downloaded or read from tables. Empty: "
        "the system's folder for temporary files.",
        when="The system's folder is small or in memory.",
        unit="path",
    )
    scratch_bytes: int = setting(
        0,
        help="Limit for the copies in `scratch_dir`. 0: half of the free space.",
        when="Other programs need the space.",
        unit="bytes",
        low=0,
    )
    overwrite: bool = setting(
        False,
        help="Replace result files that exist. Without it a job whose files exist is refused at "
        "its start, unless it continues from a journal or a checkpoint.",
        when="To repeat a run: `--overwrite` on the command line.",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse values of `assign` that do not fit the consistency."""
        if self.assign == steps_of(self).refused_assign:
            raise ConfigError(
                f"{where('assign')}: expected auto with consistency {self.consistency} "
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
    """Return the number of shard threads, 1 to `cores`, and a notice if `shard_num` was reduced."""
    if settings.shard_num == 0:
        return max(1, min(cores, _SHARDS_AUTO_MAX)), None
    if settings.shard_num <= cores:
        return settings.shard_num, None
    return cores, (
        f"shard_num: {settings.shard_num} is more than this machine's {cores} core(s), so {cores} "
        f"are used: a shard is a thread here (SwiftSnails counted locks), and threads beyond the "
        f"cores only slow each other down"
    )
