"""Options that several commands have, and the settings that they give.

    -c FILE, environment, --set KEY=VALUE -> read_config -> RawConfig

Imports no model and no process, so that a command that needs neither starts at once.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from snailps.config import ClusterSettings, RawConfig
from snailps.config.fields import format_value
from snailps.errors import ConfigError
from snailps.outward import without_secrets


def settings_like(incomplete: str) -> list[str]:
    """Complete the name of a setting: ``checkpoint_dir=``."""
    from snailps.cli.settings import documented_classes
    from snailps.config.fields import settings_of

    names = {
        name
        for _, cls in documented_classes()
        for name, setting in settings_of(cls).items()
        if not setting.hidden
    }
    return [f"{name}=" for name in sorted(names) if name.startswith(incomplete)]


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", metavar="FILE", help="A .conf file with settings (docs/settings.md)."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one setting; it wins over other sources.",
        autocompletion=settings_like,
    ),
]
DocumentFdOption = Annotated[int, typer.Option("--document-fd", hidden=True)]
JsonLogOption = Annotated[
    Path | None,
    typer.Option("--json-log", metavar="FILE", help="Append a JSON record to FILE every 5 s."),
]
TensorboardOption = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard", metavar="DIR", help="Write curves, norms, vectors for TensorBoard."
    ),
]
FreshOption = Annotated[
    bool,
    typer.Option("--fresh", help="Start anew, even if this job has a checkpoint.", metavar=""),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace result files that exist.", metavar="")
]
ColumnOption = Annotated[
    str, typer.Option(help="Column with the text, in tables.", metavar="NAME", show_default=False)
]
TEXT_OPTIONS: dict[str, Any] = {
    "column": ColumnOption,
    "label_column": Annotated[
        str,
        typer.Option(help="Column with the labels, in tables.", metavar="NAME", show_default=False),
    ],
    "weight_column": Annotated[
        str,
        typer.Option(
            help="Column with the weights of texts or examples, in tables: one of weight 2 counts "
            "as two.",
            metavar="NAME",
            show_default=False,
        ),
    ],
    "soft_labels": Annotated[
        bool,
        typer.Option(
            "--soft-labels",
            help="Labels may have weights, as in `__label__a:0.75`; a line has one as "
            "`__label__:2`.",
            metavar="",
        ),
    ],
}
"""Parameter of functions that read labelled texts -> its option."""


SHORT: dict[str, Any] = {
    "json_log": JsonLogOption, "tensorboard": TensorboardOption, "fresh": FreshOption,
    "overwrite": OverwriteOption,
}  # fmt: skip
"""Setting -> the option that is short for its ``--set``."""


def short_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `SHORT` to a command, after `as_json`; it receives them in its `sets`."""

    @functools.wraps(command)
    def with_sets(**values: Any) -> None:
        short = {name: value for name in SHORT if (value := values.pop(name, None))}
        texts = [f"{k}={format_value(v if v is True else str(v))}" for k, v in short.items()]
        command(**{**values, "sets": [*(values.get("sets") or []), *texts]})

    hints = get_type_hints(command, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
    ]
    place = 1 + [parameter.name for parameter in parameters].index("as_json")
    parameters[place:place] = [
        parameters[place - 1].replace(
            name=name, annotation=kind, default=False if kind.__origin__ is bool else None
        )
        for name, kind in SHORT.items()
    ]
    # Typer reads signature and annotations: both must show the added options.
    with_sets.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_sets.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_sets


def rows_file(output: Path | None, format: str) -> Path | None:
    """Return the file of ``--output`` and ``--format``; None: standard output, which `-` names."""
    if str(output) == "-":
        output = None
    if format == "parquet" and output is None:
        raise ConfigError(
            "--format parquet needs --output FILE: Parquet cannot be written to standard output"
        )
    if output is not None and output.suffix == ".parquet" and format != "parquet":
        raise ConfigError(f"--output {output}: add --format parquet, or choose another ending")
    return output


def read_config(path: Path | None, overrides: Sequence[str] | None) -> RawConfig:
    """Read settings as text, with their origins: types are checked by `RawConfig.build`."""
    return RawConfig.load(path, environ=os.environ, overrides=overrides or ())


def command_line(words: Sequence[str]) -> str:
    """Write the command that continues the run: these words without ``--fresh`` and secrets."""
    shown = (without_secrets(word) for word in words if word != "--fresh")
    return shlex.join(["snailps", *shown])


def connect_options(address: str, settings: ClusterSettings) -> list[str]:
    """Options with which another command connects to this master."""
    values = {"master_addr": address, "secret_file": settings.secret_file, "tls": settings.tls}
    return [word for key, value in values.items() if value for word in ("--set", f"{key}={value}")]


def connection_settings(raw: RawConfig) -> ClusterSettings:
    """Build the settings of connections; imports models only if there are other keys to check."""
    if not raw.entries:
        return ClusterSettings()
    from snailps.cli.known_classes import known_classes

    return raw.build(ClusterSettings, also_known=known_classes(raw))
