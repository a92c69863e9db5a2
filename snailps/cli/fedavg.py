"""``snailps fedavg``: the input files of a federated job, and plots of its histories.

    text -> prepare -> folder with vocab.txt, test.txt, cfg.json
    histories of runs -> plot -> picture

Parses and prints; models/fedavg does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snailps.cli.options import OverwriteOption
from snailps.cli.printing import JsonObjectOption, print_json, print_rows
from snailps.config.output import refuse_results
from snailps.errors import ConfigError
from snailps.models.fedavg.plotting import plot_histories
from snailps.models.fedavg.prepare import FILES
from snailps.models.fedavg.prepare import prepare as make_files

app = typer.Typer(no_args_is_help=True, help="Prepare data for federated averaging, plot its loss.")


@app.command("prepare")
def prepare(
    text: Annotated[list[str], typer.Argument(help="Files, folders and globs; .gz is unpacked.")],
    into: Annotated[Path, typer.Option("--into", help="Folder that gets the files.")],
    stop_words: Annotated[
        Path | None, typer.Option(help="File of words to leave out of the vocabulary.")
    ] = None,
    max_vocab: Annotated[
        int,
        typer.Option(min=0, help="Keep the N most frequent words, stop words counted; 0: all."),
    ] = 0,
    test_windows: Annotated[int, typer.Option(min=1, help="Number of test windows.")] = 1000,
    window: Annotated[
        int, typer.Option(min=3, max=255, help="Words per window; an odd number.")
    ] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of test windows.")] = 1,
    data_name: Annotated[str, typer.Option(help="Written to cfg.json: name of the data.")] = "",
    bpe: Annotated[int, typer.Option(min=0, help="Written to cfg.json: batches per round.")] = 0,
    bs: Annotated[int, typer.Option(min=0, help="Written to cfg.json: windows per batch.")] = 0,
    target: Annotated[
        float, typer.Option(min=0, help="Written to cfg.json: loss at which training ends.")
    ] = 0.0,
    overwrite: OverwriteOption = False,
    as_json: JsonObjectOption = False,
) -> None:
    """Write a vocabulary and test windows from a text.

    Words are lower-cased runs of ASCII letters. The test windows are drawn from the text itself.

    For example: snailps fedavg prepare moby_dick.txt --into moby --stop-words stopwords.txt
    """
    if window % 2 == 0:
        raise ConfigError(f"--window: expected an odd number of words, got {window}")
    given: dict[str, Any] = {"data_name": data_name, "bpe": bpe, "bs": bs, "target": target}
    cfg = {key: value for key, value in given.items() if value}
    files = [str(into / name) for name in FILES]
    sources = [*text, *([stop_words] if stop_words is not None else ())]
    refuse_results(files, sources, overwrite=overwrite, option="--into")
    figures = make_files(
        text,
        into,
        stop_words=stop_words,
        max_vocab=max_vocab,
        test_windows=test_windows,
        window=window,
        seed=seed,
        cfg=cfg or None,
    )
    if as_json:
        print_json(figures)
        return
    print_rows(
        ("words", "tokens", "windows", "entropy"),
        [(figures["words"], figures["tokens"], figures["windows"], f"{figures['entropy']:.3f}")],
        title=str(into),
    )


@app.command("plot")
def plot(
    histories: Annotated[
        list[Path], typer.Argument(help="Files OUTPUT.history.jsonl, one per run.")
    ],
    into: Annotated[Path, typer.Option("--into", help="Picture file: .png, .svg or .pdf.")],
    overwrite: OverwriteOption = False,
) -> None:
    """Plot the loss on the test windows against windows per learner and against seconds.

    Needs matplotlib: pip install 'snailps[plot]'.

    For example: snailps fedavg plot out/one.history.jsonl out/two.history.jsonl --into loss.png
    """
    refuse_results([into], histories, overwrite=overwrite, option="--into")
    plot_histories(histories, into)
    typer.echo(str(into))
