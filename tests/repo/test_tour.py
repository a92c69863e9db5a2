"""docs/tour.md is what docs/tour.py writes; its screens are those of a real run."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tour.md"
TOUR = runpy.run_path(str(ROOT / "docs" / "tour.py"))


def without_screens(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_text_of_the_tour_is_that_of_its_script():
    assert without_screens(PAGE.read_text()) == TOUR["page"]({})


def test_screens_show_a_run_that_survived_and_no_folder_of_a_machine():
    text = PAGE.read_text()
    screens = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(screens) == text.count("\n```\n") / 2 == 6
    assert all(line == line.rstrip() for screen in screens for line in screen.splitlines())
    assert not re.search(r"/tmp/|/home/|/work/|Traceback", text)
    assert re.search(r"server \d+ was lost .* no push is", text)
    assert "fasttext is trained" in screens[3]
