"""Turns `.conf` files, environment and `--set` into typed, frozen settings objects.

    file.conf ──files──> Entry ┐
    SNAILPS_KEY ──────── Entry ├─> RawConfig ──build(cls)──> ServerSettings, a job's settings, ...
    --set key=value ──── Entry ┘        settings <──to_mapping / from_mapping──> dict of strings

Owns the syntax, the precedence (default < file < environment < ``--set``), type, range and unit of
each setting of a role or a job, and the messages about wrong ones.  Must not know sockets, tables
or roles; models declare their settings by subclassing `JobSettings`.
"""

from snailps.config.addresses import format_addr, parse_addr, parse_port_range
from snailps.config.fields import Alias, Setting, Settings, setting, settings_of
from snailps.config.files import Assignment
from snailps.config.raw import Document, RawConfig, to_mapping
from snailps.config.settings import (
    CHECKPOINT_SETTINGS,
    ROLE_CLASSES,
    CheckpointSettings,
    ClusterSettings,
    JobSettings,
    ListenerSettings,
    MasterSettings,
    ServerSettings,
    WorkerSettings,
    effective_shard_num,
)

__all__ = [
    "CHECKPOINT_SETTINGS",
    "ROLE_CLASSES",
    "Alias",
    "Assignment",
    "CheckpointSettings",
    "ClusterSettings",
    "Document",
    "JobSettings",
    "ListenerSettings",
    "MasterSettings",
    "RawConfig",
    "ServerSettings",
    "Setting",
    "Settings",
    "WorkerSettings",
    "effective_shard_num",
    "format_addr",
    "parse_addr",
    "parse_port_range",
    "setting",
    "settings_of",
    "to_mapping",
]
