"""The live page and the report in a real Chromium, beside real runs and a huge synthetic one.

Each test ends with: no error in the console, and no request has left this machine.
"""

import json
import os
import random
import signal
import urllib.request
from urllib.parse import urlsplit

import pytest
from processes import LIMIT_S, SNAILPS, Process, environment
from statuses import HOSTILE, status

from snailps.monitor import watcher as watcher_module
from snailps.monitor.access import new_token
from snailps.monitor.page_server import PageServer
from snailps.monitor.watcher import ShownRun
from snailps.transport import messages
from snailps.transport.security.trust import OPEN

WORD = "<img/src=x/onerror=window.harmed=1>"
"""A word of the text, which a page that shows words as markup would run."""
RUN = ShownRun("1", "127.0.0.1:1", OPEN)
SEEN_S = 10.0
"""A loss is on the page so long after the master knows of it, at most."""


@pytest.fixture
def text(tmp_path):
    """A text that is quickly read, with words like markup."""
    rng = random.Random(7)
    words = [f"word{number}" for number in range(400)] + [WORD, "</script>", "&amp;"]
    weights = [1 / (place + 1) for place in range(400)] + [0.05, 0.05, 0.05]
    lines = (" ".join(rng.choices(words, weights, k=20)) for _ in range(20_000))
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def train(tmp_path, text):
    """Starts a training with its page; the process and the page's address."""
    started = []

    def train(epochs, *more):
        env = environment(XDG_RUNTIME_DIR=str(tmp_path))
        command = [
            *SNAILPS, "train", "word2vec", "--input", str(text), "--output", str(tmp_path / "out"),
            "--epochs", str(epochs), "--servers", "2", "--workers", "2", "--ui",
            "--set", "dim=16", *more,
        ]  # fmt: skip
        process = Process("train", command, cwd=tmp_path, env=env)
        started.append(process)
        return process, process.wait_line("live page: ").rpartition(" ")[2]

    yield train
    for process in started:
        process.close()


def stayed_here(chrome, url, *, has_ended=False):
    """No error was told but of a page's process that has ended; no request left its address."""
    refused = "ERR_CONNECTION_REFUSED" if has_ended else "\0"
    assert [one for one in chrome.problems if refused not in one] == []
    home = urlsplit(url).netloc
    assert {urlsplit(one).netloc for one in chrome.requests} == {home}
    assert chrome.evaluate("window.harmed") is None


def picture(url):
    home, mark, token = url.partition("?")
    with urllib.request.urlopen(f"{home}api/run{mark}{token}", timeout=LIMIT_S) as answer:
        found = json.load(answer)
    nodes = found["status"]["nodes"]
    found["nodes"] = [dict(zip(nodes["columns"], row, strict=True)) for row in nodes["rows"]]
    return found


def opened(chrome, url):
    chrome.look(1280)
    chrome.goto(url)
    chrome.wait_for("!byId('run').hidden && view.status.phase === 'training'")


def test_page_shows_a_training_and_a_killed_server(chrome, shoot, train):
    process, url = train(100_000, "--set", f"validation_words={WORD}")
    opened(chrome, url)
    line = "document.querySelector('.curve .c-line').getAttribute('d').split('L').length"
    first = chrome.wait_for(f"{line} > 2 && {line}")
    chrome.wait_for(f"{line} > {first}")
    chrome.wait_for("document.querySelectorAll('#words text').length > 100")
    assert "server" in chrome.text()
    assert chrome.evaluate("document.querySelectorAll('.p.server .shard.primary').length") >= 2
    shoot("training")

    victim = next(node for node in picture(url)["nodes"] if node["role"] == "server")
    os.kill(victim["pid"], signal.SIGKILL)
    name = f"server {victim['id']}"
    lost = f"view.status.events.find((one) => one.kind === 'lost' && one.who === '{name}')"
    # By the master's own clock: when it knew, and when it drew the first picture that says so.
    age_s = chrome.wait_for(f"1e-9 + view.status.elapsed_s - {lost}.at_s")
    assert age_s < SEEN_S
    chrome.wait_for(f"byId('events').innerText.includes('{name} was lost')")
    chrome.wait_for(f"byId('alarm').innerText.includes('{name} was lost')")
    assert chrome.evaluate("document.querySelectorAll('.p.server.s-lost').length") == 1
    shoot("lost")
    chrome.wait_for("view.status.shards.every((shard) => shard.standby)")
    chrome.wait_for("document.querySelectorAll('.c-bad .c-mark').length > 0")
    stayed_here(chrome, url)

    process.send(signal.SIGINT)
    chrome.wait_for("view.picture.state === 'ended'")
    assert process.wait() == 130


def test_curves_and_events_go_on_behind_a_killed_master(chrome, shoot, train):
    process, url = train(100_000)
    opened(chrome, url)
    chrome.wait_for("view.picture.series.at_s.length > 3")
    before = chrome.evaluate("view.picture.series.at_s[0]")
    os.kill(picture(url)["status"]["master"]["pid"], signal.SIGKILL)
    chrome.wait_for("byId('events').innerText.includes('the master was started again')")
    assert picture(url)["series"]["at_s"][0] < 0  # by the clock of the master that is there now
    spread = "view.picture.series.at_s.map((at, i, all) => i ? at - all[i - 1] : at)"
    chrome.wait_for("view.picture.series.at_s.length > 8")
    gaps = chrome.evaluate(spread)
    assert all(gap >= 0 for gap in gaps)
    # The first point that is known begins the axis now: it was `before` behind the job's begin.
    assert gaps[0] < before + 1
    texts = "[...document.querySelectorAll('#events li')].map((one) => one.innerText)"
    told = chrome.evaluate(texts)
    assert sum("the cluster is complete" in one for one in told) == 1
    assert not any("-" in one.split("s")[0] for one in told)  # no time is below 0
    # An earlier point, which the watcher hears of later, moves all times and doubles no event.
    seen = picture(url)
    earlier = {**seen, "series": {**seen["series"], "at_s": [*seen["series"]["at_s"]]}}
    earlier["series"]["at_s"][0] -= 1.0
    told = chrome.evaluate(f"(show({json.dumps(seen)}), show({json.dumps(earlier)}), {texts})")
    assert sum("the cluster is complete" in one for one in told) == 1
    shoot("taken-over")
    stayed_here(chrome, url)
    process.send(signal.SIGINT)
    assert process.wait() == 130


def test_page_shows_the_end_and_the_report_stays(chrome, shoot, train, tmp_path):
    process, url = train(40)
    opened(chrome, url)
    chrome.wait_for("view.picture.state === 'ended'")
    assert "done" in chrome.text()
    assert chrome.evaluate("byId('bar').getAttribute('aria-valuenow')") == "100"
    stayed_here(chrome, url, has_ended=True)  # it may end by now
    assert process.wait() == 0, process.lines[-9:]

    # The page of the run asks until it is left, also while the report is on its way.
    chrome.goto("about:blank")
    chrome.wait_for("location.href === 'about:blank'")
    report = (tmp_path / "out.report.html").as_uri()
    before = len(chrome.requests)
    chrome.goto(report)
    chrome.wait_for("document.documentElement.classList.contains('report')")
    chrome.wait_for("document.querySelectorAll('.curve .c-line').length > 1")
    assert "Machine and versions" in chrome.text()
    shoot("report")
    assert chrome.requests[before:] == [report]
    # What the page asked for while its process ended failed; nothing else did.
    assert [one for one in chrome.problems if "ERR_CONNECTION_REFUSED" not in one] == []


class StubControl:
    """A master that says always the same."""

    def __init__(self, told):
        self._told = told

    def call(self, message, timeout_s):
        others = {"settings": {"settings": []}, "log": {"lines": []}}
        return messages.Report({"status": self._told, **others}.get(message.what, {}))

    def close(self):
        pass


@pytest.fixture
def serve(monkeypatch):
    """Serves the page of a status that no cluster has; its address."""
    pages = []

    def serve(told):
        monkeypatch.setattr(watcher_module, "visit", lambda *_: StubControl(told))
        page = PageServer("127.0.0.1", 0, lambda: [RUN], token=new_token())
        page.start()
        pages.append(page)
        return page.url

    yield serve
    for page in pages:
        page.close()


def test_huge_cluster_is_readable_and_gives_details(chrome, shoot, serve):
    told = status(servers=100, workers=1000, shards=8)
    told["nodes"][7]["waits"], told["nodes"][7]["waits_s"] = "worker 300", 9.0
    url = serve(told)
    opened(chrome, url)
    chrome.wait_for("document.querySelectorAll('.p').length === 1101")
    assert "100 servers · 1,000 workers · 800 shards" in chrome.text()
    assert chrome.evaluate("byId('cluster').getBoundingClientRect().height") < 1400
    assert chrome.evaluate("document.querySelectorAll('#table tbody tr').length") == 60
    shoot("huge")
    chrome.evaluate("document.querySelector('[aria-label^=\"worker 1100,\"]').dispatchEvent("
                    "new MouseEvent('click', {bubbles: true}))")  # fmt: skip
    assert "host68:2100" in chrome.evaluate("byId('details').innerText")
    for width in (1280, 360):
        chrome.look(width, mobile=width < 500)
        chrome.wait_for(f"innerWidth === {width}")
        chrome.settle()
        assert chrome.evaluate("document.documentElement.scrollWidth") <= width
    stayed_here(chrome, url)


def test_page_is_used_by_keyboard_alone(chrome, serve):
    url = serve(status(servers=3, workers=3))
    opened(chrome, url)
    reached = []
    for _ in range(30):
        chrome.key("Tab")
        reached.append(
            chrome.evaluate(
                "document.activeElement.closest('#cluster') ? 'process' : "
                "document.activeElement.closest('.curve') ? 'curve' : document.activeElement.id"
            )
        )
        if reached[-1] == "process":
            break
    assert reached.count("curve") >= 2
    chrome.key("ArrowRight")
    chrome.key("ArrowRight")
    chrome.key("Enter")
    assert (
        chrome.wait_for("!byId('details').hidden && byId('details-title').innerText") == "server 2"
    )
    chrome.key("Enter")
    chrome.wait_for("byId('details').hidden")
    stayed_here(chrome, url)


def test_page_has_landmarks_names_and_a_place_for_faults(chrome, serve):
    url = serve(status())
    opened(chrome, url)
    assert chrome.evaluate("document.documentElement.lang") == "en"
    assert chrome.evaluate("document.querySelectorAll('main, header, footer, nav').length") == 4
    assert chrome.evaluate("byId('events').getAttribute('aria-live')") == "polite"
    assert chrome.evaluate("byId('alarm').getAttribute('role')") == "alert"
    unnamed = (
        "[...document.querySelectorAll('svg')].filter((one) => !one.hasAttribute('aria-label') "
        "&& !one.closest('[aria-hidden=true]')).length"
    )
    assert chrome.evaluate(unnamed) == 0
    assert chrome.evaluate("document.querySelectorAll('section:not([aria-labelledby]):not(#empty)"
                           ":not(.curve)').length") == 0  # fmt: skip
    stayed_here(chrome, url)


def test_page_without_a_run_says_so_and_shows_the_next(chrome, monkeypatch):
    runs = []
    monkeypatch.setattr(watcher_module, "visit", lambda *_: StubControl(status()))
    page = PageServer("127.0.0.1", 0, lambda: list(runs), token=new_token())
    page.start()
    try:
        chrome.goto(page.url)
        chrome.wait_for("byId('empty').innerText.includes('No master runs')")
        runs.append(RUN)
        chrome.wait_for("!byId('run').hidden && byId('empty').hidden")
        page.watch(RUN).end("it is over")
        chrome.wait_for("view.picture.state === 'ended'")  # else "none" may come before it
        runs.clear()
        chrome.wait_for("view.picture.state === 'ended' && view.version === 0")  # "none" has come
        assert chrome.evaluate("byId('empty').hidden && !byId('run').hidden")
        stayed_here(chrome, page.url)
    finally:
        page.close()


def test_words_like_markup_stay_text(chrome, serve):
    told = status(word=HOSTILE)
    told["waits"] = [{"who": HOSTILE, "whom": HOSTILE, "seconds": 3.0}]
    told["nodes"][0]["host"] = told["nodes"][0]["waits"] = HOSTILE
    told["message"] = told["waiting_for"] = told["pass_"] = HOSTILE
    url = serve(told)
    opened(chrome, url)
    chrome.wait_for("byId('near').innerText.includes('<script>')")
    assert chrome.evaluate("document.title").startswith("10% fasttext <script>")
    assert chrome.evaluate("document.querySelectorAll('img, main script').length") == 0
    stayed_here(chrome, url)
