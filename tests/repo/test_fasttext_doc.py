"""docs/fasttext.md names each command, option and method of fastText, and what is ours is there."""

import re
from pathlib import Path

import official_fasttext
import typer

import snailps.fasttext as fasttext
from snailps.cli.main import app_for
from snailps.config.fields import settings_of
from snailps.fasttext.model import Model, Native
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.word_vectors.settings import WordVectorSettings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fasttext.md"
# What the program of 0.9.3 prints as its help.
COMMANDS = {
    "supervised", "quantize", "test", "test-label", "predict", "predict-prob", "skipgram", "cbow",
    "print-word-vectors", "print-sentence-vectors", "print-ngrams", "nn", "analogies", "dump",
}  # fmt: skip
OPTIONS = {
    "input", "output", "lr", "lrUpdateRate", "dim", "ws", "epoch", "minCount", "minCountLabel",
    "neg", "wordNgrams", "loss", "bucket", "minn", "maxn", "t", "label", "thread", "seed",
    "pretrainedVectors", "saveOutput", "verbose", "qnorm", "qout", "cutoff", "retrain", "dsub",
    "autotune-validation", "autotune-metric", "autotune-predictions", "autotune-duration",
    "autotune-modelsize",
}  # fmt: skip


def rows(heading, columns=2):
    """First cells of a section's tables, and the rest of each row."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) >= columns:
            yield cells


def test_every_command_of_fasttext_has_one_of_ours_with_the_options_that_are_named():
    group = typer.main.get_command(app_for())
    commands = {}
    for theirs, ours in (cells for cells in rows("Commands") if not cells[0].startswith("`-")):
        commands[re.match(r"`([\w-]+)", theirs)[1]] = ours
        for line in re.findall(r"`snailps ([^`]*)`", ours):
            words = line.split()
            command = group.commands[words[0]]
            if words[0] == "train":
                command = command.commands[words[1]]
            options = {name for parameter in command.params for name in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= options, line
    assert set(commands) == COMMANDS


def test_every_option_of_fasttext_has_a_setting_of_ours_or_none():
    settings = {"input", "output"}
    for cls in (ClassifierSettings, WordVectorSettings):
        settings |= set(settings_of(cls))
    named = {}
    for cells in rows("Commands"):
        if cells[0].startswith("`-"):
            theirs = re.findall(r"`-([\w-]+)`", cells[0])
            ours = re.findall(r"`(\w+)`", cells[1]) or [cells[1]] * len(theirs)
            named |= dict(zip(theirs, ours, strict=True))
    assert set(named) == OPTIONS
    assert set(named.values()) <= settings | {"none"}


def test_every_name_of_the_official_module_is_ours_and_on_the_page():
    official = official_fasttext.module()
    named = set(re.findall(r"\w+", " ".join(cells[0] for cells in rows("Python"))))

    def public(thing):
        return {name for name in vars(thing) if not name.startswith("_")}

    for theirs, ours in (
        (official.FastText._FastText, Model),
        (official.FastText._Meter, fasttext.FastText._Meter),
    ):
        assert public(theirs) <= public(ours)
    assert public(official.FastText._FastText) <= named
    functions = {"train_supervised", "train_unsupervised", "load_model", "tokenize", "FastText"}
    assert functions <= named & set(vars(fasttext))
    native = next(cells[1] for cells in rows("Python") if cells[0] == "`f`")
    assert set(re.findall(r"`(\w+)`", native)) == public(Native)
