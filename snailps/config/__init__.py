"""Configuration: `.conf` files, environment and `--set` become typed, frozen settings objects.

    file.conf ──files──> Entry ┐
    SNAILPS_KEY ──────── Entry ├─> RawConfig ──build(cls)──> ServerSettings, a job's settings, ...
    --set key=value ──── Entry ┘        settings <──to_mapping / from_mapping──> dict of strings

Owns the syntax, the precedence (default < file < environment < ``--set``), type, range and unit of
each setting of a role or a job, and the messages about wrong ones.  Must not know sockets, tables
or roles; models declare their settings by subclassing `JobSettings`.
"""

from snailps.config.addresses import format_addr as format_addr
from snailps.config.addresses import parse_addr as parse_addr
from snailps.config.addresses import parse_port_range as parse_port_range
from snailps.config.fields import Alias as Alias
from snailps.config.fields import Setting as Setting
from snailps.config.fields import Settings as Settings
from snailps.config.fields import setting as setting
from snailps.config.fields import settings_of as settings_of
from snailps.config.files import Entry as Entry
from snailps.config.files import read_conf as read_conf
from snailps.config.raw import OTHER_ENVIRONMENT as OTHER_ENVIRONMENT
from snailps.config.raw import Document as Document
from snailps.config.raw import RawConfig as RawConfig
from snailps.config.raw import to_mapping as to_mapping
from snailps.config.settings import CHECKPOINT_SETTINGS as CHECKPOINT_SETTINGS
from snailps.config.settings import ROLE_CLASSES as ROLE_CLASSES
from snailps.config.settings import ClusterSettings as ClusterSettings
from snailps.config.settings import JobSettings as JobSettings
from snailps.config.settings import ListenerSettings as ListenerSettings
from snailps.config.settings import MasterSettings as MasterSettings
from snailps.config.settings import ServerSettings as ServerSettings
from snailps.config.settings import WorkerSettings as WorkerSettings
from snailps.config.settings import effective_shard_num as effective_shard_num
from snailps.config.settings_page import describe as describe
