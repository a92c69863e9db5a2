"""The short help of commands with many options: one line an option, in groups, on one screen.

    options of a command, their groups -> HelpInGroups -> at most 40 lines
    --help-all                         -> Typer's own help, with every option and its whole text

A group is the panel that an option has in Typer's help; the group `Expert` is omitted in the short
help.  An option's line is the first sentence of its text, cut where the line ends: such a sentence
should make sense in fifty characters.  Must not know the commands: they pass their options.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from typer.core import TyperCommand

WIDTH = 80
NAME_WIDTH = 31
LINES_MAX = 40
HELP_ALL = "--help-all"
EXPERT = "Expert"
MODEL = "Model"
GROUPS = ("Basics", MODEL, "Stopping", "Checkpoints", "Cluster")
OTHERS = "Options"
FEW = 16
"""Up to this number of options there are no groups."""
LINES_BELOW = 2

_GROUP_OF = {
    "Basics": "input train test validation output overwrite epochs lr formats set json ui verbose",
    "Stopping": "stop_after stop_by max_steps max_seconds target_loss",
    "Checkpoints": "checkpoint_interval checkpoint_dir fresh",
    "Cluster": "servers workers threads consistency wire",
}
_GROUPED = {key: group for group, keys in _GROUP_OF.items() for key in keys.split()}
_GROUPED |= dict.fromkeys(
    re.findall(
        r"\w+",
        "model dim window negatives minn maxn bucket min_count sample optimizer continue_from "
        "pretrained loss word_ngrams column label_column classes hash_bits l1 l2 factors hidden "
        "activation batch_size labels test_labels data_dir rounds learners bs bpe pipelines "
        "valid shared margin temperature norm normalize calibrate top",
    ),
    MODEL,
)


def group_of(key: str) -> str:
    return _GROUPED.get(key, EXPERT)


class HelpInGroups(TyperCommand):
    """A command whose ``--help`` has one line an option."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the short help, or with ``--help-all`` Typer's own."""
        if (ctx.find_root().obj or {}).get("all"):
            super().format_help(ctx, formatter)
        else:
            formatter.write(short_help(ctx.command_path, self.help or "", self.params))


def short_help(path: str, text: str, options: list[Any]) -> str:
    lines = [f"Usage: {path} [OPTIONS]", ""]
    parts = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    visible = [
        option
        for option in options
        if not getattr(option, "hidden", False) and "--help" not in option.opts
    ]
    few = len(visible) <= FEW
    for part in parts:
        lines += [*_wrapped(part), ""] if few else _wrapped(part)
    if few:
        return "\n".join([*lines, f"{OTHERS}:", *map(option_line, visible)]) + "\n"
    panels: dict[str, list[str]] = {group: [] for group in GROUPS}
    for option in visible:
        if (group := group_of(max(option.opts, key=len)[2:].replace("-", "_"))) in panels:
            panels[group].append(option_line(option))
    titles = sum(map(bool, panels.values()))
    room = LINES_MAX - len(lines) - titles - LINES_BELOW
    room -= sum(len(panel) for group, panel in panels.items() if group != MODEL)
    panels[MODEL] = panels[MODEL][: max(0, room)]  # a model declares its important options first
    for group, panel in panels.items():
        lines += [f"{group}:", *panel] if panel else []
    hidden = len(visible) - sum(map(len, panels.values()))
    lines += ["", f"{hidden} more options, and what each one does: {path} {HELP_ALL}"]
    return "\n".join(lines) + "\n"


def option_line(option: Any) -> str:
    """Write an option on one line: names, type, first sentence, default."""
    names = ", ".join(sorted(option.opts, key=len))
    metavar = option.metavar or ""
    if len(names) + len(metavar) + 3 > NAME_WIDTH:
        metavar = "NAME" if "|" in metavar else metavar
    start = f"  {names} {metavar}".rstrip()
    default, text = _parts(option)
    room = WIDTH - max(NAME_WIDTH, len(start) + 2) - len(default)
    if len(text) > room:
        text = text[: room - 2].rsplit(" ", 1)[0].rstrip(",;:(") + " .."
    return f"{start:<{NAME_WIDTH - 2}}  {text}{default}".rstrip()


def _parts(option: Any) -> tuple[str, str]:
    """Split an option's text into its default, in brackets, and its first sentence."""
    text = (option.help or "").replace("`", "")
    default = ""
    if found := re.search(r" ?Default: (.*)\.$", text):
        text, default = text[: found.start()], f" [{re.sub(r'[.]0$', '', found[1])}]"
    elif isinstance(option.default, (int, float)) and not isinstance(option.default, bool):
        default = f" [{option.default}]"
    if len(default) > 16:
        default = ""
    head = "Required. " if text.startswith("Required") else ""
    if head:
        text = text.partition(". ")[2]
    return default, head + re.split(r"(?<=[^.])\.(?: |$)", text)[0].rstrip(".")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
