"""Command lines in the documents: every command and every option is one that there is.

docs/commands.md is what the program says.
"""

import re
import runpy
import shlex
from pathlib import Path

import typer
from cases import each

from snailps.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]

PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "bench/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "config").glob("*.conf")),
    *sorted((ROOT / "examples").glob("*")),
    *sorted((ROOT / "tools").glob("*")),
]
GROUP = typer.main.get_command(cli.app_for())
COMMANDS = "|".join(cli.COMMANDS)


def lines_of(page):
    """What follows ``snailps`` in command lines of a page, joined where a backslash ends them."""
    text = page.read_text(errors="replace").replace("\\\n", " ")
    for found in re.finditer(rf"(?<![\w./-])snailps((?: +(?:{COMMANDS}))\b[^\n`|]*)", text):
        yield found[1].strip()


def described():
    for page in PAGES:
        if page.is_file():
            for line in lines_of(page):
                if "--" in line or " -" in line:
                    yield f"{page.name}: {line}"


def command_of(words):
    """The command that the first of these words name, and the words that are left."""
    command, left = GROUP, list(words)
    while hasattr(command, "commands") and left and left[0] in command.commands:
        command = command.commands[left.pop(0)]
    return command, left


@each("line", described())
def test_described_command_line_has_options_that_there_are(line):
    line = re.split(r"\s#\s|[;&>]|\)\s", line.partition(": ")[2])[0]
    try:
        words = shlex.split(line)
    except ValueError:  # a sentence with an apostrophe in it
        words = line.split()
    if "--" in words:  # another program's follow
        words = words[: words.index("--")]
    command, left = command_of(words)
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    known |= {"--help", "-h"}
    for word in left:
        if re.fullmatch(r"--?[a-z][\w-]*(=.*)?[.,:)]*", word):
            assert word.partition("=")[0].rstrip(".,:)") in known, f"{command.name}: {word}"


def test_settings_are_taken_with_set_by_every_command_that_reads_settings():
    reading = ["local", "demo", "master", "server", "worker", "status", "doctor"]
    commands = [GROUP.commands[name] for name in reading]
    commands += GROUP.commands["train"].commands.values()
    for command in commands:
        assert any("--set" in one.opts for one in command.params), command.name


def test_commands_page_is_current():
    page = runpy.run_path(str(ROOT / "tools" / "commands_page.py"))["page"]
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == page(), (
        "docs/commands.md is out of date; run: python tools/commands_page.py > docs/commands.md"
    )


def test_commands_page_names_every_command():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert all(f"[snailps {name}" in text for name, one in GROUP.commands.items() if not one.hidden)
