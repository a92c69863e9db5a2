# %% [markdown]
# # A model of your own
#
# Matrix factorization of ratings, as a class in a cell. Servers keep the tables and apply steps;
# a worker pulls the rows that a block needs, and pushes gradients. Edit the cell and train again.

# %%
import numpy as np

import snailps
from snailps.data.spool import spool_text

# %% [markdown]
# The data: 60 people rate 80 books, with planted tastes and some noise; a line has person, book and
# rating.


# %%
def ratings(count, seed):
    """Lines of ratings, and the ratings."""
    planted = np.random.default_rng(7)
    tastes, books = planted.normal(0, 1, (60, 2)), planted.normal(0, 1, (80, 2))
    rng = np.random.default_rng(seed)
    person, book = rng.integers(60, size=count), rng.integers(80, size=count)
    rating = (tastes[person] * books[book]).sum(axis=1) + rng.normal(0, 0.1, count)
    lines = [f"{p} {b} {r:.3f}" for p, b, r in zip(person, book, rating, strict=True)]
    return lines, (person, book, rating)


# %% [markdown]
# The model. Annotated fields with a value are settings: `cluster.run(Factors, {"width": 8})`. The
# source of the class goes to the workers, with `sums_of`, `np` and `snailps`, which it uses.


# %%
def sums_of(rows, places, count):
    """Sums of the rows that have the same place, (count, width)."""
    found = np.zeros((count, rows.shape[1]), np.float32)
    np.add.at(found, places, rows)
    return found


class Factors(snailps.Worker):
    """Rating = person . book."""

    width: int = 4
    rate: float = 0.1
    batch: int = 250

    def tables(self):
        """A row for each person and each book; AdaGrad at the servers."""
        options = {"access": "adagrad", "lr": self.rate, "init": "normal", "scale": 0.3}
        return [
            snailps.Table("people", self.width, **options),
            snailps.Table("books", self.width, **options),
        ]

    def train(self, block):
        """Steps over minibatches of a block's lines."""
        lines = np.array([line.split() for line in block.data.splitlines()], float)
        loss = 0.0
        for at in range(0, len(lines), self.batch):
            part = lines[at : at + self.batch]
            people, p = np.unique(part[:, 0].astype(np.uint64), return_inverse=True)
            books, b = np.unique(part[:, 1].astype(np.uint64), return_inverse=True)
            of_people, of_books = self.pull("people", people), self.pull("books", books)
            wrong = ((of_people[p] * of_books[b]).sum(axis=1) - part[:, 2]).astype(np.float32)
            self.push("people", people, sums_of(wrong[:, None] * of_books[b], p, len(people)))
            self.push("books", books, sums_of(wrong[:, None] * of_people[p], b, len(books)))
            loss += float((wrong**2).sum()) / 2
        return {"units": len(lines), "examples": len(lines), "loss": loss}


# %% [markdown]
# Two workers on this machine. After the job its tables can be read.

# %%
train_lines, _ = ratings(20_000, 1)
_, (person, book, rating) = ratings(2_000, 2)
with snailps.cluster(workers=2) as cluster, spool_text(train_lines) as data:
    job = cluster.run(Factors, {"epochs": 10, "width": 2}, input=data)
    with job.results() as results:
        of_people = results.pull("people", np.arange(60))
        of_books = results.pull("books", np.arange(80))
print("loss of the epochs:", *(f"{one['loss']:.3f}" for one in job.history))

# %% [markdown]
# Against a constant, on ratings that were not trained on.

# %%
guess = (of_people[person] * of_books[book]).sum(axis=1)
ours = np.sqrt(np.mean((guess - rating) ** 2))
constant = np.std(rating)
print(f"error {ours:.3f}, of a constant {constant:.3f}")
