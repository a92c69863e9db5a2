"""What the bytes of blocks mean: words and their ids, examples, rows of tables.

    bytes of a block (`files/`) -> WordCounter -> Vocabulary -> Lexicon -> ids
                                -> ExampleReader -> Examples;  tables -> the same, or lines of text

Must not know roles or sockets.  Names are imported from the modules: `vocabulary` for words,
`examples` and `table_files` for rows, `_text` and `_subwords` for compiled loops.
"""
