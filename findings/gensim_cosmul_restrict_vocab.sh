#!/usr/bin/env bash
# What:     gensim's `KeyedVectors.most_similar_cosmul(..., restrict_vocab=N)`.
# Versions: gensim 4.4.0, numpy 2.4.6 (CPython 3.11); 2026-11-30.
# Guess:    only the first N words are searched, as its docstring says and `most_similar` does.
# Happens:  all words are searched: the argument is taken and never read.  Whoever limits analogies to
#           frequent words gets rare ones, and without an error.
# Seen:     most_similar: ['w18', 'w17', 'w15'] of the first 20 words
#           most_similar_cosmul: ['w59', 'w21', 'w30'] with restrict_vocab=20
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
cat > look.py <<'PYTHON'
import numpy as np
from gensim.models import KeyedVectors

wv = KeyedVectors(5)
rows = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
wv.add_vectors([f"w{number}" for number in range(60)], rows)


def words(search, **options):
    return [word for word, _ in search("w1", topn=3, **options)]


few = words(wv.most_similar, restrict_vocab=20)
print(f"most_similar: {few} of the first 20 words")
assert all(int(word[1:]) < 20 for word in few)
cosmul = words(wv.most_similar_cosmul, restrict_vocab=20)
print(f"most_similar_cosmul: {cosmul} with restrict_vocab=20")
assert cosmul == words(wv.most_similar_cosmul)
assert any(int(word[1:]) >= 20 for word in cosmul)
PYTHON
install gensim==4.4.0 numpy==2.4.6
python look.py
