"""Writes the report of an ended run: the page with its last picture inside, as a single file.

    Status, history, settings, log lines -> render -> HTML without requests -> OUTPUT.report.html

The page's own scripts draw it.  The run's data stands in a JSON block in which no markup can
begin, and as a list of text for readers without scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import logging
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snailps._version import __version__
from snailps.dataclass import dataclass, field
from snailps.errors import ModelWriteError
from snailps.files.atomic import atomic_file
from snailps.monitor.picture import packed, plain, trimmed
from snailps.monitor.series import Series
from snailps.monitor.static_files import SCRIPTS, static
from snailps.node.status import HistoryAnswer, Status

log = logging.getLogger(__name__)

BYTES_MAX = 300_000
PROCESSES_MAX = 300
"""Processes in the report of a larger cluster, if it would otherwise exceed `BYTES_MAX`."""
LINES_MAX = 100
SUFFIX = ".report.html"
_PACKAGES = ("numpy", "lz4", "typer")
"""Shown where the run has used them: the metadata of a package takes 8 ms to read."""


@dataclass(frozen=True, slots=True)
class Story:
    """The record of a run at its end, from which a report is made."""

    status: Status
    history: HistoryAnswer
    settings: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)


def write_report(output: str, story: Story, written: str) -> str:
    """Write ``OUTPUT.report.html`` and return its path; empty if it cannot be written.

    A report that cannot be written is logged and never fails the run.  `written` is the date and
    time for its last line.
    """
    path = Path(f"{output}{SUFFIX}")
    try:
        with atomic_file(path) as file:
            file.write(render(story, machine(), written))
    except ModelWriteError as error:
        log.warning("cannot write the report: %s; the model is complete", error)
        return ""
    return str(path)


def render(story: Story, about: Mapping[str, str], written: str) -> bytes:
    made = _html(_picture(story, about, written, LINES_MAX, None))
    if len(made) > BYTES_MAX:
        made = _html(_picture(story, about, written, 0, PROCESSES_MAX))
    return made


def machine() -> dict[str, str]:
    facts = {
        "snailps": __version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": str(os.cpu_count() or ""),
        "memory": _memory(),
    }
    for name in _PACKAGES:
        facts[name] = getattr(sys.modules.get(name), "__version__", "")
    return {name: value for name, value in facts.items() if value}


def _picture(
    story: Story,
    about: Mapping[str, str],
    written: str,
    lines_max: int,
    processes_max: int | None,
) -> dict[str, Any]:
    status = story.status
    series = Series()
    series.replace(
        {name: values for name, values in story.history.items() if isinstance(values, list)}
    )
    # At the end all processes are gone in order; lost ones are no longer in the list.
    nodes = [node.copy() for node in status["nodes"]]
    for node in nodes:
        if node["state"] == "gone":
            node["state"], node["waits"] = "bye", ""
    shown = trimmed(
        {
            **status,
            "nodes": nodes[:processes_max],
            "shards": status["shards"][: processes_max and 2 * processes_max],
            "waits": [],
            "figures": dict(story.figures) or status["figures"],
        }
    )
    return {
        "version": 1,
        "state": "report",
        "why": "",
        "run": {"name": "", "address": status["address"], "title": "", "output": ""},
        "status": shown,
        "series": series.columns(),
        "settings": plain(list(story.settings)),
        "log": plain(list(story.lines)[-lines_max:] if lines_max else []),
        "words": {**plain(story.words), "number": 1} if story.words else None,
        "machine": plain(dict(about)),
        "report": plain(f"report of {written}"),
    }


def _html(picture: Mapping[str, Any]) -> bytes:
    page = static("page.html").decode()
    style = static("page.css").decode()
    script = "".join(static(name).decode().replace('"use strict";\n', "", 1) for name in SCRIPTS)
    script = f'"use strict";\n{script}'
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    page = page.replace('<meta name="viewport"', f'{head}<meta name="viewport"', 1)
    page = re.sub(r'<link rel="icon"[^>]*>\n', "", page)
    page = re.sub(r"<script defer [^>]*></script>\n", "", page)
    page = page.replace('<link rel="stylesheet" href="page.css">', f"<style>{style}</style>", 1)
    page = re.sub(
        r"<noscript>.*?</noscript>", lambda match: _plain_facts(picture), page, flags=re.DOTALL
    )
    page = page.replace(
        "<title>snailps</title>", f"<title>{_text(_title(picture))} – snailps</title>", 1
    )
    # Without `<` no text of a run can end this block or begin another one.
    data = packed(picture).decode().replace("<", "\\u003c").replace(">", "\\u003e")
    end = (
        f'<script type="application/json" id="report-data">{data}</script>\n'
        f"<script>{script}</script>\n</body>"
    )
    return page.replace("</body>", end, 1).encode()


def _plain_facts(picture: Mapping[str, Any]) -> str:
    """Write the facts as a list, for readers without scripts."""
    status = picture["status"]
    facts = {"model": status["job_name"], "output": status["output"], "loss": status["loss"]}
    facts |= {k: v for k, v in status["figures"].items() if isinstance(v, (str, int, float))}
    rows = "".join(
        f"<div><dt>{_text(str(name))}</dt><dd>{_text(str(value))}</dd></div>"
        for name, value in {**facts, **picture["machine"]}.items()
    )
    return f'<noscript><dl class="facts panel">{rows}</dl></noscript>'


def _title(picture: Mapping[str, Any]) -> str:
    status = picture["status"]
    return f"{status['job_name']} {Path(status['output']).name}".strip()


def _text(text: str) -> str:
    return html.escape(text, quote=True)


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    line = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return line[1] if line else platform.machine()


def _memory() -> str:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return ""
    return f"{pages * size / 1e9:.1f} GB"
