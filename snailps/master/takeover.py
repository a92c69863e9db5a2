"""Decides, before anything is begun, whether this master takes over an unended run.

    settings -> journal_path -> Journal.take, read -> unended -> Recovered -> MasterCore
    Recovered, checkpoints, files -> check_results -> ConfigError: a result would be replaced

    no facts, or --fresh                      a new run
    the run has ended                         a new run
    it had a route, and no server answers     a new run, from a checkpoint if there is one
    another version's or another job's run    a new run before the route, else ConfigError
    else                                      taken over

Must not know what a fact means, beyond these few kinds: the part of the core that noted a fact
replays it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from snailps.api.tables import Table
from snailps.api.worker import Worker
from snailps.config import (
    JobSettings,
    MasterSettings,
)
from snailps.config.fields import settings_of
from snailps.config.output import absolute, refuse_existing, refuse_folders, refuse_sources
from snailps.errors import ConfigError
from snailps.master.checkpoint_files import newest_of
from snailps.master.effects import Fact
from snailps.master.job.record import MAY_DIFFER
from snailps.master.job.recovery import Recovered
from snailps.master.job.session import Record
from snailps.master.journal import Journal
from snailps.master.life import Life
from snailps.store.route import Route
from snailps.transport.sockets import is_there

log = logging.getLogger(__name__)

FORMAT = 4
"""Version of the facts in a journal and of their meaning; another one is refused, never guessed."""


def journal_path(settings: MasterSettings, record: Record) -> Path | None:
    """Folder of a job's journal; None where it keeps none."""
    return journal_at(settings, record.output)


def journal_at(settings: MasterSettings, output: str) -> Path | None:
    """Folder of the journal of a job with this output: `journal_dir`, else beside the output."""
    path = settings.journal_dir or (f"{output}.journal" if output else "")
    return absolute(path) if path else None


def first_fact(cluster_id: int, record: Record, frag_num: int, begun: float) -> Fact:
    """The first fact of a run that began at `begun`, seconds since 1970: what identifies it."""
    about = {
        "cluster_id": cluster_id,
        "at": begun,
        "format": FORMAT,
        "job": _identity(record, frag_num),
    }
    return Fact("cluster", about)


def unended(journal: Journal, record: Record, frag_num: int, life: Life) -> Recovered | None:
    """Lock a journal, and read the run that is to be taken over; None: a new run begins. SnailError
    if the journal is in use, damaged, or of another job or version that still runs."""
    exists = journal.take()
    if exists and record.settings.fresh:
        log.warning("%s: begun anew with --fresh: the previous run is given up", journal.path)
    facts = [] if record.settings.fresh else journal.read()
    if not facts:
        return None
    kinds = {fact.kind for fact in facts}
    if "stopped" in kinds and "exported" not in kinds:
        return None  # it failed, or was interrupted, and its members have ended
    # A run whose result is written is taken over even without servers: its members are to hear
    # that it is over.
    routes = [fact.data["route"] for fact in facts if fact.kind == "route"]
    if routes and "exported" not in kinds:
        places = [(shard.host, shard.port) for shard in Route.from_dict(routes[-1]).shards]
        if not any(is_there(place) for place in places):
            folder = record.settings.checkpoint_dir
            goes_on = f"this one begins at the newest checkpoint in {folder}, if there is one"
            log.warning(
                "%s: no process of the previous run is left, nor its rows in memory: %s",
                journal.path,
                goes_on if folder else "this one begins anew, as checkpoint_dir is not set",
            )
            return None
    written = facts[0].data.get("format", 1)
    if written != FORMAT and not routes:
        return None  # it had not even formed its cluster
    if written != FORMAT:
        raise ConfigError(
            f"{journal.path} was written by another version of snailps (format {written}, this one "
            f"has {FORMAT}), and its run has not ended. Start the master of that version, or begin "
            "anew with --fresh"
        )
    noted, present = facts[0].data["job"], _identity(record, frag_num)
    differ = [
        f"{name} is {present.get(name)} here and {noted.get(name)} there"
        for name in sorted({*present, *noted})
        if noted.get(name) != present.get(name)
    ]
    if differ and not routes:
        return None  # it had not formed its cluster: nothing of it is worth keeping
    if differ:
        raise ConfigError(
            f"{journal.path} is the journal of another job, which has not ended: "
            f"{'; '.join(differ[:3])}. Start it with the settings there, or begin anew with --fresh"
        )
    tables = {fact.data["number"]: fact.data for fact in facts if fact.kind == "table"}
    dropped = {number for fact in facts if fact.kind == "drop" for number in fact.data["numbers"]}
    record.check_methods(
        [
            Table.from_dict(table["table"])
            for number, table in tables.items()
            # a job that does not go on may have had classes that this master does not admit
            if number not in dropped and (life.job_goes_on or not table["of_job"])
        ],
        str(journal.path),
    )
    base, arrays = journal.check(facts)
    log.warning("taking over a run that has not ended: %s", journal.path)
    return Recovered(facts, str(journal.path), base, arrays)


def check_results(cls: type[Worker], settings: JobSettings, *, takes_over: bool) -> None:
    """Refuse a job that would replace the files of another run, before anything is done: training
    for hours and failing at the export would be worse. A run that resumes, from a journal or a
    checkpoint, replaces its own files. ConfigError names the file and the ways out."""
    if not settings.output:
        return
    files = cls.result_files(settings)
    refuse_folders(files)
    refuse_sources(files, named_sources(settings))
    if not takes_over and not settings.overwrite and newest_of(settings) is None:
        refuse_existing(files)


def named_sources(settings: JobSettings) -> list[str]:
    """The paths that a job's settings name to be read; patterns and folders as they are.

    A training may replace the model that it continues from.
    """
    declared = settings_of(type(settings)).values()
    names = [s.name for s in declared if s.unit in ("path", "paths")]
    values = [getattr(settings, name) for name in names if name not in ("output", "continue_from")]
    return [path for value in values for path in ([value] if isinstance(value, str) else value)]


def _identity(record: Record, frag_num: int) -> dict[str, str]:
    return {"frag_num": str(frag_num), **record.identity(MAY_DIFFER)}
