"""From nothing to neighbours of a word: pip install snailps; python ten_lines.py TEXT WORD."""

import sys

import snailps

text, word = sys.argv[1:]
model = snailps.FastText(dim=50, bucket=200_000, epochs=10, verbose=False).fit(text)
for near in model.wv.most_similar(word, topn=10):
    print(f"{near.word}  {near.score:.3f}")
