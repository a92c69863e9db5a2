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
# Estimators of rows read files themselves, a piece at a time: a path, and the name of the column of
# labels.
# What the other columns are is inferred, and can be overridden: `columns=["visitor:ignore"]`.

# %%
train, test = folder / "train.parquet", folder / "test.parquet"
with snailps.cluster():
    linear = snailps.LogisticRegression(epochs=6).fit(train, "clicked")
    machine = snailps.FMClassifier(factors=4, epochs=6).fit(train, "clicked")
print(linear.columns_)

# %% [markdown]
# On visits that neither has seen; always "no" is right in half of them.

# %%
for model in (linear, machine):
    print(f"{type(model).__name__}: accuracy {model.score(test):.3f}")

# %% [markdown]
# The probability of a click, for a file or for rows in memory.

# %%
print(machine.predict_proba(test)[:3].round(3))
print(machine.predict([{"visitor": "visitor 7", "article": "article 3"}]))
