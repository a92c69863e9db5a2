"""Merges the entries of all sources by precedence, and builds settings objects from them.

    default < file < environment SNAILPS_KEY < --set key=value
    RawConfig.load -> RawConfig -> build(cls, also_known) -> an object of cls, or one ConfigError
    a launcher's RawConfig, secret -> Document.dump -> bytes -> Document.load in each child

A process builds only its own classes; it accepts the keys of `also_known`, which may be in the
same file, without validating their values.  Must not know roles or models by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from snailps.config.fields import Alias, Setting, Settings, format_value, settings_of
from snailps.config.files import Assignment, read_conf
from snailps.config.legacy import IGNORED
from snailps.config.quoting import unquote
from snailps.dataclass import asdict, dataclass, field, replace
from snailps.errors import ConfigError, near_name

S = TypeVar("S", bound=Settings)

JOB = "worker_class"
"""A file with this setting is the master's, even if other processes read it too."""
ENVIRONMENT_PREFIX = "SNAILPS_"
_ENVIRONMENT = "environment"
# SNAILPS_ variables that are not settings, and their purpose.
OTHER_ENVIRONMENT = {
    "SNAILPS_DATA": "folder with the data sets that some tests and benchmarks use",
    "SNAILPS_KERNELS": "build of the numeric kernels to use instead of the best one, "
    "without products of bfloat16",
    "SNAILPS_HOSTS": "inventory of the scripts in tools/ (docs/deploy.md)",
    "SNAILPS_RSH": "remote shell of these scripts, instead of ssh",
    "SNAILPS_DIR": "folder of these scripts on each host",
    "SNAILPS_WHEELS": "folder with the wheels that these scripts send",
    "SNAILPS_IMAGE": "name of an image, in files of compose or a CI of your own",
    "SNAILPS_UI_TOKEN": "token that readers of the page need, instead of a random one",
    "SNAILPS_SECRET": "the secret that all processes of a cluster share, instead of `secret_file`",
}


_SERVICE_LINK = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*"
    r"|(\w+_)?PORT=[a-z]+://.*|NAME=/[^/]+/[^/]+",
)
"""Variables, without their prefix, that Kubernetes and Docker set for a service called snailps.

Kubernetes sets them in every pod of the namespace that starts later, unless the pod has
`enableServiceLinks: false`.
"""


class _KeyMeaning(NamedTuple):
    """What a key means: a setting, and the alias if the key is one."""

    setting: Setting
    alias: Alias | None


class RawConfig:
    """Assignments in order of precedence, as text: of one setting the last one wins.

    `notices` are messages for the user (aliases used, settings without effect), each once; the
    owner of the object prints them.  Entries never change: each method returns a new object.
    """

    __slots__ = ("entries", "notices")

    def __init__(self, entries: Iterable[Assignment] = ()) -> None:
        self.entries = tuple(entries)
        self.notices: list[str] = []

    @classmethod
    def load(
        cls,
        path: str | Path | None,
        *,
        environ: Mapping[str, str],
        overrides: Sequence[str] = (),
    ) -> RawConfig:
        """Merge a `.conf` file, ``SNAILPS_`` variables and the ``key=value`` texts of ``--set``."""
        entries = [] if path is None else read_conf(path)
        entries += _from_environment(environ)
        entries += [_from_override(text) for text in overrides]
        return cls(entries)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], origin: str) -> RawConfig:
        """Make entries from a dict of texts (the result of `to_mapping`) or of plain values.

        ``{key}`` in `origin` becomes the key, after ``--`` with dashes: ``"--{key}"`` is an option.
        """
        return cls(
            Assignment(
                key,
                value if isinstance(value, str) else format_value(value),
                origin.replace("--{key}", f"--{key.replace('_', '-')}").replace("{key}", key),
            )
            for key, value in values.items()
        )

    def over_shared(self, values: Mapping[str, str], origin: str) -> RawConfig:
        """Return a new object in which `values` win over files and environment, but not options."""
        sources = [entry for entry in self.entries if entry.source]
        options = [entry for entry in self.entries if not entry.source]
        return RawConfig([*sources, *RawConfig.from_mapping(values, origin).entries, *options])

    def merged(self, other: RawConfig) -> RawConfig:
        """Return a new object in which the entries of `other` win."""
        both = RawConfig(self.entries + other.entries)
        both.notices = [*self.notices, *(n for n in other.notices if n not in self.notices)]
        return both

    def explicit(self, key: str, cls: type[Settings] | None = None) -> Assignment | None:
        """Return the winning assignment of `key`, unquoted; None if it is not assigned.

        With `cls`, aliases of its setting count too, converted.
        """
        winner = self._winner(key, cls)
        if winner is None:
            return None
        try:
            return replace(winner, value=unquote(winner.value))
        except ValueError:  # a wrong quote is reported by `build`
            return winner

    def overruled(
        self, entry: Assignment, causes: Iterable[str], cls: type[Settings] | None = None
    ) -> bool:
        """Whether `entry` is a line of a file, and option or environment set one of the `causes`.

        Then the file was right for itself, and the entry without effect is no mistake in it.
        """
        winners = (self._winner(key, cls) for key in causes)
        over = ("", _ENVIRONMENT)
        return entry.source not in over and any(w is not None and w.source in over for w in winners)

    def build(self, cls: type[S], *, also_known: Iterable[type[Settings]] = ()) -> S:
        """Build and validate an object of `cls` from defaults and entries.

        Keys of the `also_known` classes are accepted without a look at their values; the classes
        are imported only until every key is found.  `ConfigError` for the first unknown key (with
        the nearest name), the first refused value, or a contradiction between settings.
        """
        mine = _names_of([cls])
        known, rest = dict(mine), iter(also_known)
        winners: dict[str, Assignment] = {}
        called: dict[str, str] = {}  # setting -> the name that it was assigned under
        for entry in self.entries:
            if entry.key not in known and _is_service_link(entry):
                continue
            while entry.key not in known and (other := next(rest, None)) is not None:
                known = _names_of([other]) | known
            if entry.key not in known:
                if entry.key not in IGNORED:
                    raise _unknown(entry, known)
                self._note(f"{entry.origin}: {entry.key} has no effect: {IGNORED[entry.key]}")
            elif entry.key in mine:
                self._take(entry, mine[entry.key], winners, called)
        values: dict[str, Any] = {}
        places: dict[str, str] = {}
        for name, setting in settings_of(cls).items():
            if name in winners:
                entry = winners[name]
                values[name] = setting.parse(entry.value, entry.origin)
                places[name] = setting.place(entry.origin)
        settings = cls(**values)
        settings.validate(lambda name: places.get(name, f"default of {name}"))
        return settings

    def contradictions(self, settings: Settings, completed: Collection[str] = ()) -> list[str]:
        """List the entries that differ from `settings`, a sentence each.

        A worker gets its settings from the master, so a different value in a file of its own is a
        mistake, unless the master has `completed` that setting.
        """
        sentences = []
        for name, setting in settings_of(type(settings)).items():
            entry = self._winner(name, type(settings))
            if entry is None or name in completed:
                continue
            local = setting.parse(entry.value, entry.origin)
            remote = getattr(settings, name)
            is_open = setting.auto and local == setting.automatic  # whatever the master decided
            if local != remote and not is_open:
                sentences.append(
                    f"{setting.place(entry.origin)} is {setting.format(local)!r} here, but "
                    f"{setting.format(remote)!r} in the job"
                )
        return sentences

    def unread(self, reader: str, own: Iterable[type[Settings]]) -> list[tuple[bool, str]]:
        """List (matters, sentence) for each source that has settings of none of the `own` classes.

        It does not matter in the environment, nor in a file that other processes read, too (it is
        imported, or names the job): these have the settings of all roles on purpose.
        """
        mine = _names_of(own)
        shared = {entry.source for entry in self.entries if entry.shared or entry.key == JOB}
        unread: dict[tuple[bool, str], list[str]] = {}
        for entry in self.entries:
            if entry.key not in mine and entry.key not in IGNORED:
                matters = not entry.source or entry.source not in shared
                keys = unread.setdefault((matters, entry.source or entry.origin), [])
                keys += [entry.key] if entry.key not in keys else []
        return [
            (matters, f"{source}: not read by {reader}: {', '.join(keys)}")
            for (matters, source), keys in unread.items()
        ]

    def foreign(self, own: Iterable[type[Settings]]) -> Assignment | None:
        """Find the first entry for a setting of none of these classes; None if there is none.

        Skips the environment and imported files, which other jobs read, too.
        """
        mine = _names_of(own)
        others = (e for e in self.entries if e.key not in mine and e.key not in IGNORED)
        return next((entry for entry in others if not entry.shared), None)

    def __repr__(self) -> str:
        return f"RawConfig({len(self.entries)} entries)"

    def _winner(self, key: str, cls: type[Settings] | None) -> Assignment | None:
        """Find the last entry for `key`, under its own name or an alias that `cls` gives it."""
        names = _names_of([cls]) if cls else {}
        winner, called = None, key
        for entry in self.entries:
            if entry.key == key:
                winner, called = entry, key
            elif (name := names.get(entry.key)) and name.setting.name == key:
                converted = _converted(entry, name)
                # `adagrad: 0` takes back an earlier `adagrad: 1`, but not `optimizer: sgd`.
                if converted is not None or called == entry.key:
                    winner, called = converted, entry.key
        return winner

    def _take(
        self,
        entry: Assignment,
        name: _KeyMeaning,
        winners: dict[str, Assignment],
        called: dict[str, str],
    ) -> None:
        """Let `entry` win over earlier ones, with a notice if it came under an alias."""
        target, converted = name.setting.name, _converted(entry, name)
        if converted is not None:
            winners[target], called[target] = converted, entry.key
        elif called.get(target) == entry.key:  # takes back an earlier value under the same alias
            winners.pop(target, None)
        if name.alias is not None:
            taken = f"taken as '{target}: {converted.value}'" if converted else "left as it is"
            remark = f" ({name.alias.note.replace('`', '')})" if name.alias.note else ""
            self._note(f"{entry.origin}: {entry.key} is called {target} here; {taken}{remark}")

    def _note(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)


@dataclass(frozen=True, slots=True)
class Document:
    """Settings and secret that a launcher passes to each process of its cluster, through a pipe."""

    raw: RawConfig
    secret: bytes = field(repr=False)

    def dump(self, own: Mapping[str, str]) -> bytes:
        """Write the document of one process, in which its `own` settings win."""
        raw = self.raw.merged(RawConfig.from_mapping(own, "--set {key}"))
        content = {"settings": [asdict(e) for e in raw.entries], "secret": self.secret.decode()}
        return json.dumps(content).encode()

    @classmethod
    def load(cls, data: bytes) -> Document:
        """Read what `dump` wrote; `ValueError` if it is incomplete."""
        content = json.loads(data)
        entries = (Assignment(**fields) for fields in content["settings"])
        return cls(RawConfig(entries), content["secret"].encode())


def to_mapping(settings: Settings) -> dict[str, str]:
    """Write all settings of an object as text, defaults included, for messages and files.

    ``RawConfig.from_mapping(to_mapping(s), origin=...).build(type(s)) == s``, exactly.
    """
    return {
        name: setting.format(getattr(settings, name))
        for name, setting in settings_of(type(settings)).items()
    }


_names: WeakKeyDictionary[type, tuple[dict[str, _KeyMeaning], dict[str, _KeyMeaning]]] = (
    WeakKeyDictionary()
)


def _names_of(classes: Iterable[type[Settings]]) -> dict[str, _KeyMeaning]:
    """Map each key that the classes accept; a setting's name wins over another one's alias."""
    aliases: dict[str, _KeyMeaning] = {}
    names: dict[str, _KeyMeaning] = {}
    for cls in classes:
        if cls not in _names:
            fields = settings_of(cls).values()
            _names[cls] = (
                {
                    alias.name: _KeyMeaning(field, alias)
                    for field in fields
                    for alias in field.aliases
                },
                {field.name: _KeyMeaning(field, None) for field in fields},
            )
        aliases |= _names[cls][0]
        names |= _names[cls][1]
    return aliases | names


def _converted(entry: Assignment, name: _KeyMeaning) -> Assignment | None:
    """Rewrite an entry to the setting's own name; None if the alias's value does not set it."""
    if name.alias is None:
        return entry
    text: str | None = entry.value
    if name.alias.convert is not None:
        text = name.alias.convert(entry.value, entry.origin)
    return None if text is None else replace(entry, key=name.setting.name, value=text)


_COUNTS = ("servers", "workers")


def _unknown(entry: Assignment, known: Mapping[str, _KeyMeaning]) -> ConfigError:
    names = sorted({*known, *IGNORED})
    near = near_name(entry.key.lower().replace("-", "_"), names)
    hint = f"did you mean {near!r}?" if near else "docs/settings.md lists all settings"
    if entry.key in _COUNTS:
        hint = f"it is an option of `snailps train` and `snailps local`: --{entry.key} N"
    return ConfigError(f"{entry.origin}: unknown setting {entry.key!r}; {hint}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[Assignment]:
    """Yield entries of the SNAILPS_KEY variables, sorted; keys in lower case, like settings."""
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in OTHER_ENVIRONMENT:
            key = name[len(ENVIRONMENT_PREFIX) :].lower()
            yield Assignment(key, environ[name], f"environment {name}", _ENVIRONMENT, shared=True)


def _is_service_link(entry: Assignment) -> bool:
    """Whether a variable is of a service: SNAILPS_PORT or SNAILPS_MASTER_PORT=tcp://...

    Ask it of unknown settings only: a model of a user's may have one of such a name.
    """
    text = f"{entry.key.upper()}={entry.value}"
    return entry.source == _ENVIRONMENT and _SERVICE_LINK.fullmatch(text) is not None


def _from_override(text: str) -> Assignment:
    match = re.fullmatch(r"\s*([A-Za-z_][\w.-]*)\s*=(.*)", text, re.DOTALL)
    if match is None:
        raise ConfigError(f"--set {text}: expected key=value, such as --set epochs=3; got {text!r}")
    return Assignment(match[1], match[2], f"--set {text}")
