"""Mistakes in a command line as one line, like every other error.

    Typer's UsageError, the words typed -> usage_line -> "--workers: expected at least 1; got 0 ..."

Typer's own words differ between its versions, and none names the given value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

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
    """The mistake in the command line, and the help that has the options."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "") or "snailps"
    text = _sentence(error, words)
    return f"{text}{'' if text.endswith('?') else '.'} {path} --help shows how"


def _sentence(error: Exception, words: Sequence[str]) -> str:
    text = " ".join(str(error.format_message()).split()).rstrip(".")  # type: ignore[attr-defined]
    if wrong := re.match(r"Invalid value(?: for (?P<names>[^:]+))?: (?P<why>.*)", text):
        names = re.findall(r"-{1,2}[\w-]+", wrong["names"] or "")
        got = next((_given(name, words) for name in names if _given(name, words)), "")
        name = names[-1] if names else (wrong["names"] or "").strip("'\"{}[]")
        return f"{name}: {_plain(wrong['why'])}" + (f"; got {got!r}" if got else "")
    if option := re.match(r"No such option:? '?(-{1,2}[^\s']+)'?", text):
        near = re.findall(r"--[\w-]+", text[option.end() :])
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
        if found := re.fullmatch(pattern, why):
            return found.expand(words)
    return why


def _near(given: str, names: Sequence[str]) -> str:
    # Imported here: most command lines are right.
    from difflib import get_close_matches

    best = get_close_matches(given, names, 1)
    return f"; did you mean {best[0]}?" if best else ""


def _as_input(error: Exception, word: str, words: Sequence[str]) -> str:
    """A question, if the command wants a file as an option that was not given."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    takes = any("--input" in one.opts for one in getattr(command, "params", ()))
    return f"; did you mean --input {word}?" if takes and not _given("--input", words) else ""


def _given(name: str, words: Sequence[str]) -> str:
    """The value that was typed for an option; empty if unknown."""
    for at, word in enumerate(words):
        if word == name and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""
