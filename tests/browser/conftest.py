"""A Chromium for the tests of the page; they are skipped where there is none."""

import os
from pathlib import Path

import pytest
from chrome import Chrome, program

SHOTS = "SNAILPS_SCREENSHOTS"


@pytest.fixture(scope="session")
def browser_path():
    found = program()
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    return found


@pytest.fixture
def chrome(browser_path, tmp_path):
    made = Chrome(browser_path, tmp_path / "profile")
    yield made
    made.close()


@pytest.fixture
def shoot(chrome):
    """Takes screenshots by name, at 1280 px light and dark and at 360 px, where they are wanted."""
    folder = os.environ.get(SHOTS)

    def shoot(name):
        if not folder:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        for width, dark in ((1280, False), (1280, True), (360, False), (360, True)):
            chrome.look(width, dark=dark, mobile=width < 500)
            chrome.wait_for(f"innerWidth === {width}")
            chrome.settle()
            chrome.screenshot(Path(folder) / f"{name}-{width}-{'dark' if dark else 'light'}.png")
        chrome.look(1280)

    return shoot
