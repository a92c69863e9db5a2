"""Input: files to blocks, blocks to words, words to ids.  Knows no role and no socket.

    inputs -> blocks.expand, blocks.cut -> Blocks -> blocks.read_block -> bytes
    bytes -> WordCounter -> Vocabulary -> Lexicon -> ids

Import from the modules: `blocks`, `scratch` and `unpacking` for files, `reading` and `table_files`
for tables in files, `vocabulary` for words, `_text` and
`_subwords` for the compiled loops, `stdlib_prose` for the demo's text, `word_counts` for the bytes
in which counts travel.
"""
