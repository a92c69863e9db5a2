# %% [markdown]
# # Word vectors from a DataFrame
#
# A column of texts becomes vectors of words and of texts. Open this file in Jupyter (by jupytext),
# VS Code or PyCharm: `# %%` begins a cell. It takes `pip install snailps pandas`.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import snailps
from snailps.data.stdlib_prose import write_prose

# %% [markdown]
# The data: 1 MB of the documentation in Python's own library, a sentence a row. Any column of `str`
# or of lists of words does as well, of pandas, polars or pyarrow.

# %%
scratch = tempfile.TemporaryDirectory(prefix="snailps-")  # removed with this process
folder = Path(scratch.name)
write_prose(str(folder / "prose.txt"), 1_000_000)
frame = pd.DataFrame({"text": (folder / "prose.txt").read_text().splitlines()})
print(frame.shape)

# %% [markdown]
# `fit` starts processes on this machine and keeps them for the next fit. Parameters are the
# [settings](../../docs/settings.md) by name; a wrong one is refused with the right one.

# %%
model = snailps.FastText(dim=50, bucket=100_000, epochs=20)
model.fit(frame, column="text")
print(model, model.wv)

# %%
history = pd.DataFrame(model.history_)
print(history[["epoch", "loss"]])

# %% [markdown]
# Neighbours, also of a word that the text does not have: its subwords give it a vector.

# %%
for word in ("string", "unpicklably"):
    near = model.wv.most_similar(word, topn=5)
    print(word, "in the text:", word in model.wv, "near:", *(one.word for one in near))

# %% [markdown]
# Vectors of the rows: means of their words' unit vectors. The rows that are most like one of them:

# %%
rows = model.transform(frame["text"])
units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
asked = int(frame["text"].str.contains("string").to_numpy().argmax())
print("asked:", frame["text"][asked])
for at in np.argsort(-(units @ units[asked]))[1:4]:
    print("found:", frame["text"][at])

# %% [markdown]
# As tables and files. `.bin` is fastText's format, and whole: training goes on with it.

# %%
table = model.wv.to_pandas()
print(table.shape == (len(model.wv), 50), table.index[0] == model.wv.words[0])
model.save(folder / "prose.bin")
print(snailps.load(folder / "prose.bin"))

# %% [markdown]
# New text: words keep their rows, and new ones are added.

# %%
before = len(model.wv)
model.partial_fit(["a snail crosses the garden"] * 20)
print(model.wv.words[before:])
