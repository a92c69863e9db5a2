# %% [markdown]
# # Clicks from Parquet: factorization machines
#
# Visitors like some articles, others like others: only the pair decides, which a linear model
# cannot express. It takes `pip install snailps pyarrow`.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import snailps
from snailps.data.matrix_writer import spool_matrix

scratch = tempfile.TemporaryDirectory(prefix="snailps-")  # removed with this process
folder = Path(scratch.name)

# %% [markdown]
# The data: 40 visitors and 30 articles with planted tastes. Strings are categories, numbers are
# numbers, a missing value makes no entry.


# %%
def visits(rows, seed):
    """A table of visits; whether a visitor clicks depends on taste and offer."""
    planted = np.random.default_rng(17)
    taste, offer = planted.normal(0, 1.5, (40, 2)), planted.normal(0, 1.5, (30, 2))
    rng = np.random.default_rng(seed)
    visitor, article = rng.integers(40, size=rows), rng.integers(30, size=rows)
    scores = (taste[visitor] * offer[article]).sum(axis=1)
    clicked = rng.random(rows) < 1 / (1 + np.exp(-scores))
    columns = {
        "visitor": [f"visitor {number}" for number in visitor],
        "article": [f"article {number}" for number in article],
        "clicked": clicked.astype(np.int8),
    }
    return pa.table(columns)


pq.write_table(visits(20_000, 5), folder / "train.parquet")
pq.write_table(visits(4_000, 6), folder / "test.parquet")

# %% [markdown]
# `write_matrix` and `spool_matrix` write what models of examples read without parsing. The spooled
# file is gone with its `with` block.

# %%
test = pq.read_table(folder / "test.parquet")
written = snailps.write_matrix(folder / "test.mx", test, label="clicked")
print(f"{written.units:,} examples with {written.entries:,} entries")

models = {
    "linear": "snailps.models.sparse.linear:Linear",
    "factorization machine": "snailps.models.sparse.fm:FactorizationMachine",
}
figures = {}
with (
    snailps.cluster() as cluster,
    spool_matrix(pq.read_table(folder / "train.parquet"), label="clicked") as train,
):
    for name, model in models.items():
        settings = {"epochs": 6, "test": str(folder / "test.mx")}
        if "fm" in model:
            settings["factors"] = 4
        figures[name] = cluster.run(model, settings, input=train).figures

# %% [markdown]
# On visits that neither has seen; a coin has a log loss of 0.69 and an AUC of 0.5.

# %%
for name, found in figures.items():
    test_figures = found["test"]
    print(f"{name}: log loss {test_figures['log_loss']:.3f}, AUC {test_figures['auc']:.3f}")
