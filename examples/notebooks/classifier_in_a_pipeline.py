# %% [markdown]
# # A text classifier in a pipeline
#
# `snailps.TextClassifier` is an estimator as scikit-learn's are: in pipelines, cross-validation and
# grid searches. It takes `pip install snailps scikit-learn`.

# %%
import sysconfig
import tempfile
from pathlib import Path

from sklearn.metrics import classification_report
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import snailps
from snailps.data.stdlib_prose import write_prose

# %% [markdown]
# The data: sentences of documentation, and the package of Python's library that each is from.

# %%
packages = ["asyncio", "email", "logging", "unittest"]
texts, labels = [], []
with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
    for package in packages:
        path = Path(folder, package)
        write_prose(str(path), library=str(Path(sysconfig.get_path("stdlib"), package)))
        found = path.read_text().splitlines()
        texts += found
        labels += [package] * len(found)
print({package: labels.count(package) for package in packages})

# %% [markdown]
# A pipeline: a step of your own, then the classifier. Whatever is a list of `str` can be its input.


# %%
def shortened(sentences):
    """The first forty words of each sentence."""
    return [" ".join(sentence.split()[:40]) for sentence in sentences]


pipeline = Pipeline(
    [
        ("shorten", FunctionTransformer(shortened)),
        ("classify", snailps.TextClassifier(dim=20, lr=0.5, epochs=10, bucket=20_000)),
    ]
)
train_texts, test_texts, train_labels, test_labels = train_test_split(
    texts, labels, test_size=0.25, random_state=1, stratify=labels
)

# %% [markdown]
# All fits are jobs on one cluster of this machine; the `with` block ends it.

# %%
with snailps.cluster():
    pipeline.fit(train_texts, train_labels)
    scores = cross_val_score(pipeline, train_texts, train_labels, cv=3)
    search = GridSearchCV(pipeline, {"classify__word_ngrams": [1, 2]}, cv=2)
    search.fit(train_texts, train_labels)
print(f"accuracy in cross-validation: {scores.mean():.2f}")
print(f"best: {search.best_params_}, {search.best_score_:.2f}")

# %%
print(f"accuracy on unseen sentences: {pipeline.score(test_texts, test_labels):.2f}")
print(classification_report(test_labels, pipeline.predict(test_texts), zero_division=0))

# %% [markdown]
# Probabilities, in the order of `classes_`.

# %%
asked = ["the event loop runs callbacks of a future", "a header of the message has an address"]
for text, chances in zip(asked, pipeline.predict_proba(asked), strict=True):
    ranked = sorted(zip(chances, pipeline.classes_, strict=True), reverse=True)
    print(text, "->", ", ".join(f"{label} {chance:.2f}" for chance, label in ranked[:2]))
