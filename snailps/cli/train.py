"""``snailps train MODEL``: train a model on a cluster on this machine, without a .conf file.

The options of a command are the settings of its model: both come from the settings class.
"""

from __future__ import annotations

import contextlib
import glob
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from snailps import models
from snailps.api.traits import Adopted, trait_of
from snailps.api.worker import Worker, load_class
from snailps.cli import PATHS
from snailps.cli.common import log_as_set
from snailps.cli.help import HelpInGroups, group_of
from snailps.cli.known_classes import known_classes
from snailps.cli.local import JsonOption, ServersOption, VerboseOption, WorkersOption, run_local
from snailps.cli.options import SHORT, SetOption
from snailps.cli.page_process import UiOption
from snailps.config import JobSettings, RawConfig, WorkerSettings
from snailps.config.fields import format_value, settings_of
from snailps.errors import ConfigError
from snailps.files.unpacking import is_url
from snailps.master.job.settings import job_settings

_NOT_OPTIONS = ("worker_class", *SHORT)
_TYPES = {"int": "int", "float": "number", "bool": "true|false", "str": "text", "list": "list"}
_OPTIONS: tuple[tuple[str, Any, object], ...] = (
    ("servers", ServersOption, 1),
    ("workers", WorkersOption, 1),
    ("sets", SetOption, None),
    ("json_log", SHORT["json_log"], None),
    ("tensorboard", SHORT["tensorboard"], None),
    ("as_json", JsonOption, False),
    ("ui", UiOption, False),
    ("fresh", SHORT["fresh"], False),
    ("overwrite", SHORT["overwrite"], False),
    ("verbose", VerboseOption, False),
)
_REQUIRED = {"input": "", "output": "Prefix of the paths of the result files."}
"""Required setting -> the help text that replaces its own; empty: keep its own."""


def command_of(name: str) -> Callable[..., None]:
    cls = models.SETTINGS[name]
    model = models.MODELS[name]
    every = settings_of(cls)
    job = {key: every[key] for key in settings_of(JobSettings)}
    of_model = {key: value for key, value in every.items() if key not in job}
    judged = "test" in of_model
    first = {key: job[key] for key in ("input", "output")}
    settings = {**first, **of_model, **job, "threads": settings_of(WorkerSettings)["threads"]}
    parameters = []
    for key, setting in settings.items():
        if setting.hidden or key in _NOT_OPTIONS or key in model.fixed:
            continue
        flag = f"--{key.replace('_', '-')}"
        shown = setting.format(setting.default)
        text = setting.about + (f" Default: {shown}." if shown else "")
        if key in _REQUIRED:
            either = (
                "Required, unless --test is given" if judged and key == "output" else "Required"
            )
            text = f"{either}. {_REQUIRED[key] or setting.help}"
        kind: Any = list[str] | None if key in PATHS else str | None
        metavar = "|".join(setting.choices) or (setting.unit or _TYPES[setting.kind]).upper()
        metavar = "PATH..." if key in PATHS else metavar
        flags = [flag]
        if key == "input":
            flags = ["--train", flag] if judged else [flag, "--train"]
        option = typer.Option(
            *flags, help=text, metavar=metavar, show_default=False, rich_help_panel=group_of(key)
        )
        parameters.append(_parameter(key, Annotated[kind, option], None))
    parameters += [_parameter(*option) for option in _OPTIONS]

    def command(**values: Any) -> None:
        code = train(name, values)
        raise typer.Exit(code)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    example = "--input corpus.txt --output out/corpus --epochs 5"
    if judged:
        example = "--train train.svm --test test.svm --output out/model"
    example = model.example or example
    command.__doc__ = f"{model.about}\n\nFor example: snailps train {name} {example}"
    return command


def _parameter(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def separate(key: str, words: list[str]) -> list[str]:
    """Return the paths of an option: words, or a list with commas, as in a .conf file."""
    paths = []
    for word in words:
        parts = [word] if os.path.lexists(word) else [part for part in word.split(",") if part]
        for part in parts if len(parts) > 1 else ():
            if not (os.path.lexists(part) or glob.has_magic(part) or is_url(part)):
                raise ConfigError(
                    f"--{key.replace('_', '-')}: not found: {part}, one of the paths in {word}. "
                    "Separate several paths by blanks or commas"
                )
        paths += parts
    return paths


def train(
    name: str, options: dict[str, Any], *, kept: bool = True, needed: Sequence[str] = ()
) -> int:
    """Check the options of model `name` and run the cluster; return the exit code.

    ``options["sets"]``, the `--set` ones, win over the other options.  A setting in `needed` cannot
    be changed by them: the caller relies on its value.  `kept`: the run's files are kept.
    """
    sets = options.pop("sets", None) or []
    servers, workers = options.pop("servers"), options.pop("workers")
    as_json, ui = options.pop("as_json"), options.pop("ui", False)
    verbose = options.pop("verbose", False)
    values = {key: value for key, value in options.items() if value not in (None, False)}
    values |= {k: format_value(str(v)) for k, v in values.items() if isinstance(v, Path)}
    values |= {key: tuple(separate(key, values[key])) for key in PATHS if key in values}
    typed = RawConfig.from_mapping(values, "--{key}")
    model = models.MODELS[name]
    fixed = {"worker_class": model.worker_class, **model.fixed}
    typed = typed.merged(RawConfig.from_mapping(fixed, f"snailps train {name}"))
    over = RawConfig.load(None, environ={}, overrides=sets)
    raw = RawConfig.load(None, environ=os.environ).merged(typed).merged(over)
    log_as_set(raw, "snailps")
    cls = load_class(model.worker_class, "train")
    judged = "test" in settings_of(cls.Settings) and raw.explicit("test", cls.Settings)
    _refuse_change(cls.Settings, typed, over, dict.fromkeys(fixed, f"train {name}"))
    _refuse_change(cls.Settings, typed, over, dict.fromkeys(needed, "demo"))
    for key in _REQUIRED:
        entry = raw.explicit(key, JobSettings)
        if entry is None and not (judged and key == "output"):
            raise ConfigError(f"--{key} is missing: snailps train {name} --help shows how")
        if entry is not None and not entry.value.strip():
            raise ConfigError(
                f"{entry.origin}: expected a path, got nothing; snailps train {name} --help "
                "shows how"
            )
    with _unlogged():  # the master builds them again, and logs then
        settings = job_settings(cls, raw, known_classes(raw))
    raw = raw.merged(_completed(cls, raw, settings))
    raw.build(WorkerSettings, also_known=known_classes(raw))
    return run_local(
        raw,
        servers=servers,
        workers=workers,
        as_json=as_json,
        kept=kept,
        verbose=verbose,
        job=name,
        ui=ui,
    )


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _completed(cls: type[Worker], raw: RawConfig, settings: JobSettings) -> RawConfig:
    """Print the settings that the model has derived from its input, such as a table's columns.

    Also returns them, so that the master need not read the input for them again.
    """
    texts = {}
    before = raw.build(cls.Settings, also_known=known_classes(raw))
    declared = settings_of(cls.Settings)
    completed = trait_of(cls, Adopted).completed
    for name in completed:
        if name not in declared:  # a trait may complete what this model lacks: `fm` has no classes
            continue
        value = getattr(settings, name)
        if value != getattr(before, name):
            texts[name] = declared[name].format(value)
            if not declared[name].hidden:
                option = f"--{name.replace('_', '-')}"
                typer.echo(f"{name}: {texts[name]}  ({option} overrides)", err=True)
    return RawConfig.from_mapping(texts, "the input")


def _refuse_change(
    cls: type[JobSettings], options: RawConfig, over: RawConfig, commands: dict[str, str]
) -> None:
    """Refuse a ``--set`` of `over` that changes a setting which a command fixes."""
    for key, command in commands.items():
        entry, fixed = over.explicit(key, cls), options.explicit(key, cls)
        if entry is not None and fixed is not None and entry.value != fixed.value:
            raise ConfigError(
                f"{entry.origin}: {key} is always {fixed.value} in `snailps {command}`: leave it "
                "out, or use another command"
            )


def app_for(words: Sequence[str] = ()) -> typer.Typer:
    """Make the commands of all models, or the single one whose name `words` begin with."""
    app = typer.Typer(no_args_is_help=True, help="Train a model on a cluster on this machine.")
    for name in words[:1] if words and words[0] in models.SETTINGS else models.SETTINGS:
        app.command(name, cls=HelpInGroups)(command_of(name))
    return app
