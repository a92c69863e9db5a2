"""models.seen_blocks: a block that was seen trains the same rows, and is not read again."""

import numpy as np
import pytest
from connected import connected, flush, in_order, keep

from snailps.models import seen_blocks
from snailps.models.seen_blocks import SeenBlocks
from snailps.models.sparse.batch import BIAS_KEY, TABLE
from snailps.models.sparse.fm import FactorizationMachine, FmSettings
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.pieces import Piece
from tests.support.blocks import held_block

FEATURES, EPOCHS = 30, 3
MODELS = {"linear": (Linear, LinearSettings), "fm": (FactorizationMachine, FmSettings)}


def lines(seed, n=60):
    """Labelled examples of 5 features each."""
    rng = np.random.default_rng(seed)
    drawn = (np.sort(rng.choice(FEATURES, 5, replace=False)) for _ in range(n))
    return "".join(
        f"{int(keys.sum() > 70)} " + " ".join(f"{key + 1}:1" for key in keys) + "\n"
        for keys in drawn
    ).encode()


TEXTS = [lines(seed) for seed in range(4)]


def blocks(reads, texts=TEXTS):
    """All blocks of all epochs; each read of one is noted."""
    for number in range(EPOCHS * len(texts)):
        epoch, at = divmod(number, len(texts))
        share = number / (EPOCHS * len(texts)), (number + 1) / (EPOCHS * len(texts))

        def read(at=at):
            reads.append(at)
            return texts[at]

        yield held_block(
            read, number, Piece("text", 1000 * at, 1000 * at + 1000), epoch=epoch, progress=share
        )


def trained(make, settings, *, room=0, texts=TEXTS, **options):
    """Rows after all epochs, and which blocks were read; of at most `room` kept rows."""
    model, reads = in_order(make(settings, **options)), []
    if room:
        keep(model, room)
    for block in blocks(reads, texts):
        block.prepared = model.prepare(block)
        model.train(block)
    flush(model)
    keys = np.array([*range(1, FEATURES + 1), BIAS_KEY], np.uint64)
    return model.pull(TABLE, keys, state=True), reads


@pytest.mark.parametrize("kind", list(MODELS))
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("min_count", [1, 2])
def test_seen_blocks_train_the_rows_that_read_ones_do(monkeypatch, kind, workers, min_count):
    model_class, settings_class = MODELS[kind]
    settings = settings_class(
        format="libsvm", epochs=EPOCHS, min_count=min_count, expected_features=1000
    )
    with connected(model_class, 1) as make:
        summary = b""
        if min_count > 1:
            surveyor = model_class.surveyor(settings)
            for block in blocks([]):
                surveyor.add(make(settings).survey(block))
            summary = surveyor.result()
        rows, reads = trained(make, settings, workers=workers, summary=summary)
        monkeypatch.setattr(seen_blocks, "SEEN_BYTES_MAX", 0)
        expected, all_reads = trained(make, settings, workers=workers, summary=summary)
    assert reads == list(range(len(TEXTS)))
    assert all_reads == reads * EPOCHS
    assert np.array_equal(rows, expected)
    assert np.abs(rows[:, 0]).min() > 0


def test_examples_of_a_seen_block_come_in_another_order_in_another_epoch():
    """As numbers: neither when they are read nor when they come again are they copied."""
    with connected(Linear, 1) as make:
        model, batches = make(LinearSettings(format="libsvm", epochs=EPOCHS)), []
        for epoch in range(2):
            block = held_block(TEXTS[0], epoch, epoch=epoch, seed=epoch, progress=(0.0, 0.1))
            block.prepared = model.prepare(block)
            model.train(block)
            batches += block.prepared.batch
    first, again = batches
    assert again.places is first.places
    assert again.values is first.values
    labels = [int(line[:1]) for line in TEXTS[0].splitlines()]
    assert first.labels.tolist() == labels
    assert sorted(first.order.tolist()) == sorted(again.order.tolist()) == list(range(60))
    assert first.order.tolist() != again.order.tolist()


def test_blocks_are_read_again_where_their_rows_were_dropped():
    """There is room for the rows of one block, and each has others: all get places anew."""
    texts = [
        "".join(f"{key % 2} {key}:1\n" for key in range(1 + 100 * at, 101 + 100 * at)).encode()
        for at in range(4)
    ]
    settings = LinearSettings(format="libsvm", epochs=EPOCHS)
    with connected(Linear, 1) as make:
        _, reads = trained(make, settings, room=1, texts=texts)
    assert reads == list(range(len(texts))) * EPOCHS


def block(start, epoch=0):
    return held_block(piece=Piece("text", start, start + 10), epoch=epoch)


def test_seen_blocks_are_those_of_the_present_numbering():
    seen = SeenBlocks(2)
    seen.keep(block(0), "it", 1, 0)
    assert seen.find(block(0, 1), 0) == "it"
    assert seen.find(block(10, 1), 0) is None
    assert seen.find(block(0, 1), 1) is None
    assert seen.find(block(0, 1), 0) is None  # it was dropped


def test_what_finds_no_room_or_does_not_come_again_is_not_kept(monkeypatch):
    monkeypatch.setattr(seen_blocks, "SEEN_BYTES_MAX", 10)
    seen = SeenBlocks(2)
    for start, size, kept in ((0, 6, True), (10, 5, False), (20, 4, True)):
        seen.keep(block(start), "it", size)
        assert (seen.find(block(start, 1)) is not None) == kept
    one_epoch = SeenBlocks(1)
    one_epoch.keep(block(0), "it", 1)
    assert one_epoch.find(block(0)) is None
