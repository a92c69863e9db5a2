"""Input: files to blocks, blocks to words, words to ids.  Knows no role and no socket.

    inputs -> blocks.expand, blocks.cut -> Blocks -> blocks.read_block -> bytes
    bytes -> WordCounter -> Vocabulary -> Lexicon -> ids

Names are imported from the modules: `blocks`, `scratch`, `unpacking` for files, `reading` and
`table_files` for tables, `vocabulary` for words, `_text` and `_subwords` for compiled loops.
"""
