"""docs/design/reading.md: the way through the core's files, which need nothing above the border."""

import re
from pathlib import Path

from sources import PACKAGE, module_name
from test_border import INSIDE, ROOMS, modules_named, room_of, room_reached

DESIGN = PACKAGE.parent / "docs" / "design"
ROWS = re.findall(
    r"^\| `([^`]+)` \| (.*) \|$", (DESIGN / "reading.md").read_text(encoding="utf-8"), re.MULTILINE
)
FILES = [file for file, _ in ROWS]
BUILT_ON_IT = {*ROOMS["OPTIONS"], *ROOMS["PRODUCTS"]}
LINES, ROUNDED = 19_000, 1_000
"""Lines of all files, as the page says."""


def texts_of(file: str) -> list[Path]:
    """A file of the page, and its `.pxd`, which is read with it."""
    path = PACKAGE / file
    return [text for text in sorted({path, path.with_suffix(".pxd")}) if text.is_file()]


def test_page_leads_from_the_frame_to_the_checkpoints():
    assert len(FILES) == len(set(FILES))
    assert (FILES[0], FILES[-1]) == ("transport/frame.py", "master/checkpoints.py")
    for page in ("ARCHITECTURE.md", "README.md"):
        text = (PACKAGE.parent / page).read_text(encoding="utf-8")
        assert f" {len(FILES)} files" in text, page
    lines = sum(text.read_text(encoding="utf-8").count("\n") for f in FILES for text in texts_of(f))
    assert f"some {LINES:,} lines" in (DESIGN / "reading.md").read_text(encoding="utf-8")
    assert abs(lines - LINES) <= ROUNDED
    assert [file for file in FILES if not (PACKAGE / file).is_file()] == []
    assert [question for _, question in ROWS if not question.endswith("?")] == []


def test_files_of_the_core_import_no_option_or_product():
    lines = {
        f"{file}: {name}": room_reached(name)
        for file in FILES
        for name in modules_named(PACKAGE / file)
    }
    assert {room_of(module_name(PACKAGE / file)) for file in FILES} <= INSIDE
    wrong = {line for line, room in lines.items() if room in BUILT_ON_IT}
    assert wrong == set()


def test_each_file_imports_only_files_of_the_page_that_come_before_it():
    places = {module_name(PACKAGE / file): place for place, file in enumerate(FILES)}
    later = [
        f"{file}: {name}"
        for place, file in enumerate(FILES)
        for text in texts_of(file)
        for name in modules_named(text)
        if max(places.get(part, 0) for part in (name, name.rpartition(".")[0])) > place
    ]
    assert later == []


def file_named(name: str, package: str) -> str:
    """The file that a question names: in its package, or by the end of its path."""
    files = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.[ph]*"))
    packages = [package, *(["files"] if package == "data" else [])]
    near = [f"{place}/{name}" for place in packages if (PACKAGE / place / name).is_file()]
    return (near or [file for file in files if f"/{file}".endswith(f"/{name}")] or [name])[0]


def is_read(file: str) -> bool:
    """Whether the page has the file; a `.pyx` is read with its `.pxd`."""
    return file in FILES or str(Path(file).with_suffix(".pyx")) in FILES


def test_questions_of_the_core_name_files_of_the_page():
    page = (DESIGN / "questions.md").read_text(encoding="utf-8")
    wrong, count = [], 0
    for section in page.split("\n## snailps/")[1:]:
        package = section.split("\n")[0].rpartition("snailps/")[2]
        for question in re.split(r"^(?=\d+\. )", section, flags=re.MULTILINE)[1:]:
            if not re.match(r"\d+\. \*core\* ", question):
                continue
            count += 1
            names = re.findall(r"`([\w/]+\.(?:py|pyx|pxd|h))\b", question)
            wrong += [
                f"{package}: {question.partition('**')[2][:60]}: {name}"
                for name in names
                if not is_read(file_named(name, package))
            ]
    assert wrong == []
    assert count >= len(FILES)
