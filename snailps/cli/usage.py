"""Words mistakes in a command line as a single line, like every other error.

    Typer's UsageError, the words typed -> usage_line -> "--workers: expected at least 1; got 0 ..."

Typer's own words differ between its versions, and none names the value that was typed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

from snailps.errors import near_name

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""`UsageError` of the Click that Typer uses: an installed one, or its own."""

_PHRASES = (
    (r"Input should be greater than or equal to (\S+)", r"expected at least \1"),
    (r"Input should be less than or equal to (\S+)", r"expected at most \1"),
    (r"(\S+) is not in the range x>=(\S+)", r"expected at least \2"),
    (r"(\S+) is not in the range (\S+)<=x<=(\S+)", r"expected a number from \2 to \3"),
    (r"Input should be a valid (integer|number)\b.*", r"expected a whole number"),
    (r".* is not a valid (integer|float)\b.*", r"expected a number"),
    (r"Input should be (.*)", r"expected \1"),
    (r"(?:Value error, )?\S+ is not one of (.*)", r"expected one of \1"),
)


def usage_line(error: Exception, words: Sequence[str]) -> str:
    """Describe the mistake, and name the ``--help`` that lists the options."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "") or "snailps"
    text = _sentence(error, words)
    return f"{text}{'' if text.endswith('?') else '.'} {path} --help shows how"


def _sentence(error: Exception, words: Sequence[str]) -> str:
    text = " ".join(str(error.format_message()).split()).rstrip(".")  # type: ignore[attr-defined]
    if wrong := re.match(r"Invalid value(?: for (?P<names>[^:]+))?: (?P<why>.*)", text):
        names = re.findall(r"-{1,2}[\w-]+", wrong["names"] or "")
        got = next((_typed(name, words) for name in names if _typed(name, words)), "")
        name = names[-1] if names else (wrong["names"] or "").strip("'\"{}[]")
        return f"{name}: {_plain(wrong['why'])}" + (f"; got {got!r}" if got else "")
    if option := re.match(r"No such option:? '?(-{1,2}[^\s']+)'?", text):
        near = re.findall(r"--(?!help\b)[\w-]+", text[option.end() :])  # the end names --help
        return f"there is no option {option[1]}" + _near(option[1], near)
    if command := re.match(r"No such command '([^']*)'", text):
        near = re.findall(r"'([\w-]+)'", text[command.end() :])
        return f"there is no command {command[1]!r}" + _near(command[1], near)
    if missing := re.match(r"Missing (argument|option|parameter):? *(.*)", text):
        names = re.findall(r"-{1,2}[\w-]+", missing[2])
        word = missing[2].strip("'").partition("'")[0]
        return f"{names[-1] if names else word if '|' in word else word.upper()} is missing"
    if needing := re.match(r"Option '?(-{1,2}[\w-]+)'? requires an argument", text):
        return f"{needing[1]}: expected a value, got none"
    if more := re.match(r"Got unexpected extra arguments? ?\(?(?:s\) \()?(.*?)\)?$", text):
        why = f"expected fewer words; {more[1]!r} is more than the command takes"
        return why + "".join(_as_input(error, word, words) for word in more[1].split()[:1])
    return text


def _plain(why: str) -> str:
    for pattern, words in _PHRASES:
        if match := re.fullmatch(pattern, why):
            return match.expand(words)
    return why


def _near(typed: str, names: Sequence[str]) -> str:
    near = near_name(typed, names)
    return f"; did you mean {near}?" if near else ""


def _as_input(error: Exception, word: str, words: Sequence[str]) -> str:
    """Ask whether a surplus word was meant as ``--input``, if the command takes that option."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    takes = any("--input" in option.opts for option in getattr(command, "params", ()))
    return f"; did you mean --input {word}?" if takes and not _typed("--input", words) else ""


def _typed(name: str, words: Sequence[str]) -> str:
    """Find the value that was typed for an option; empty if there is none."""
    for index, word in enumerate(words):
        if word == name and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""
