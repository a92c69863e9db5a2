"""Trains a knowledge graph with PyKEEN on the CPU, or writes one of its data sets as text.

    python bench/peers/train_pykeen.py write umls FOLDER
    python bench/peers/train_pykeen.py train FOLDER --model RotatE --dim 32 --epochs 50 ...

Prints one JSON object: filtered realistic MRR and hits@10 of both sides on the test triples,
seconds and processor seconds of the training alone.  The data sets nations, umls and kinships are
in PyKEEN's wheel.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from pathlib import Path

PARTS = {"train": "training", "valid": "validation", "test": "testing"}


def write(name: str, folder: Path) -> None:
    from pykeen.datasets import get_dataset

    found = get_dataset(dataset=name)
    folder.mkdir(parents=True, exist_ok=True)
    for part, attribute in PARTS.items():
        triples = getattr(found, attribute)
        labels = triples.label_triples(triples.mapped_triples)
        text = "".join("\t".join(row) + "\n" for row in labels)
        (folder / f"{part}.txt").write_text(text)


def train(o: argparse.Namespace) -> dict[str, float]:
    import torch
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.losses import NSSALoss
    from pykeen.models import model_resolver
    from pykeen.training import SLCWATrainingLoop
    from pykeen.triples import TriplesFactory

    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    training = TriplesFactory.from_path(o.folder / "train.txt")
    ids = {"entity_to_id": training.entity_to_id, "relation_to_id": training.relation_to_id}
    valid, test = (
        TriplesFactory.from_path(o.folder / f"{part}.txt", **ids) for part in ("valid", "test")
    )
    own = {}
    if o.model in ("ComplEx", "DistMult"):
        own["regularizer"] = None
    if o.model == "TransE":
        own |= {"scoring_fct_norm": 1, "entity_constrainer": None}
    model = model_resolver.make(
        o.model,
        triples_factory=training,
        embedding_dim=o.dim,
        random_seed=o.seed,
        loss=NSSALoss(margin=o.margin, adversarial_temperature=o.temperature),
        **own,
    )
    optimizer = getattr(torch.optim, o.optimizer)(model.get_grad_params(), lr=o.lr)
    falls = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1.0, end_factor=max(1e-6, o.lr_end), total_iters=o.epochs
    )
    loop = SLCWATrainingLoop(
        model=model,
        triples_factory=training,
        optimizer=optimizer,
        lr_scheduler=falls,
        negative_sampler="basic",
        negative_sampler_kwargs={"num_negs_per_pos": o.negatives},
    )
    wall, cpu = time.perf_counter(), time.process_time()
    loop.train(training, num_epochs=o.epochs, batch_size=o.batch, use_tqdm=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = RankBasedEvaluator().evaluate(
        model,
        test.mapped_triples,
        additional_filter_triples=[training.mapped_triples, valid.mapped_triples],
        batch_size=256,
        use_tqdm=False,
    )
    return {
        "mrr": found.get_metric("both.realistic.inverse_harmonic_mean_rank"),
        "hits_at_10": found.get_metric("both.realistic.hits_at_10"),
        "triples": training.num_triples * o.epochs,
        "train_s": wall,
        "cpu_s": cpu,
    }


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("name")
    writing.add_argument("folder", type=Path)
    training = commands.add_parser("train")
    training.add_argument("folder", type=Path)
    training.add_argument("--model", default="RotatE")
    training.add_argument("--dim", type=int, default=32)
    training.add_argument("--epochs", type=int, default=50)
    training.add_argument("--negatives", type=int, default=32)
    training.add_argument("--margin", type=float, default=6)
    training.add_argument("--temperature", type=float, default=1)
    training.add_argument("--lr", type=float, default=0.01)
    training.add_argument("--lr-end", type=float, default=1.0, help="1: the rate is constant")
    training.add_argument("--optimizer", default="Adam")
    training.add_argument("--batch", type=int, default=256)
    training.add_argument("--seed", type=int, default=1)
    training.add_argument("--threads", type=int, default=1)
    o = parser.parse_args()
    if o.command == "write":
        write(o.name, o.folder)
    else:
        print(json.dumps(train(o)))


if __name__ == "__main__":
    main()
