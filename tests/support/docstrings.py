"""Which modules have examples in docstrings, and running them.

module -> DocTestFinder -> examples, with those that start processes or without -> failures
"""

import doctest
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIP = "# doctest: +SKIP"


def modules_with_examples():
    """Names of the modules of the package whose docstrings have examples."""
    modules = []
    for path in sorted((ROOT / "snailps").rglob("*.py*")):
        if path.suffix not in (".py", ".pyx") or path.name.startswith("_kernels_"):
            continue
        if re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), re.MULTILINE):
            modules.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return modules


def examples_of(module, whole=False):
    """Docstrings with examples of a module, a `DocTest` each.

    Those marked to be skipped are among them as such; or, if `whole`, as any other.
    """
    loaded = importlib.import_module(module)
    by_text = {}
    for test in doctest.DocTestFinder().find(loaded):
        if test.examples:
            by_text.setdefault(test.docstring, test)  # Cython lists functions twice
    parser = doctest.DocTestParser()
    for test in by_text.values():
        text = test.docstring.replace(SKIP, "") if whole else test.docstring
        yield parser.get_doctest(text, {**vars(loaded)}, test.name, test.filename, test.lineno)


def run_page(text):
    """Runs the examples of a page in Markdown."""
    # A fence would be taken as output of the line before.
    lines = ["" if line.startswith("```") else line for line in text.splitlines()]
    page = doctest.DocTestParser().get_doctest("\n".join(lines) + "\n", {}, "page", None, 0)
    assert sum(doctest.SKIP not in example.options for example in page.examples) > 10
    assert run(page) == ""


def run(test, **names):
    """Runs the examples of a docstring with these further names; what failed, as text."""
    said = []
    test.globs.update(names)
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    return "".join(said)
