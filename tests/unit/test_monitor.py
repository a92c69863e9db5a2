"""The live page without a browser: pictures, curves, who may read, HTTP, questions asked."""

import http.client
import itertools
import json
import re
import socket
import threading
from functools import partial

import pytest
from statuses import HOSTILE, status
from waiting import LIMIT_S, acquired, run_all, until

from snailps.config.addresses import host_of
from snailps.errors import ClusterError, ConfigError, ConnectionLost
from snailps.monitor import page_server
from snailps.monitor import watcher as watcher_module
from snailps.monitor.access import Access, check_token, new_token
from snailps.monitor.page_server import CONNECTIONS_MAX, PageServer
from snailps.monitor.picture import packed, plain, table, trimmed
from snailps.monitor.series import Series
from snailps.monitor.static_files import SCRIPTS, static
from snailps.monitor.watcher import IDLE_S, LOOK_S, Ending, ShownRun, Watcher
from snailps.node.status import FIGURED_AT
from snailps.transport import messages
from snailps.transport.security.trust import OPEN

TOKEN = "a-token-that-is-long-enough"


# --- pictures ------------------------------------------------------------------------------------


def test_trimmed_status_has_users_words_and_columns():
    found = trimmed(status(servers=2, workers=1))
    nodes = [dict(zip(found["nodes"]["columns"], r, strict=True)) for r in found["nodes"]["rows"]]
    assert [node["words"] for node in nodes] == ["serving", "serving", "training"]
    assert found["phase_words"] == "training"
    assert found["shards"]["rows"][0][found["shards"]["columns"].index("standby")] == 2
    assert "counts" not in found["loop"]
    json.loads(packed(found))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.23456789, 1.2346),
        (float("nan"), None),
        (float("inf"), None),
        ("wörd", "wörd"),
        ("bad\udcff", "bad\ufffd"),
        ("half \ud83d", "half \ufffd"),  # of a character, in a user's error
        ({"k": (1, [2.0])}, {"k": [1, [2.0]]}),
        ({"units_per_s": 1796060393.676}, {"units_per_s": 1796100000.0}),
        ({"began_s": 1796060393.6761}, {"began_s": 1796060393.676}),  # five digits are 11 h off
        ({"events": [{"at_s": -172812.3456}]}, {"events": [{"at_s": -172812.346}]}),
        ({"at_s": [172812.3456]}, {"at_s": [172812.346]}),
        ({"lag_s": 0.000123456}, {"lag_s": 0.00012346}),
        (None, None),
        (True, True),
    ],
)
def test_plain_value_becomes_what_json_has(value, expected):
    assert plain(value) == expected


def test_columns_of_times_keep_milliseconds():
    rows = [{"joined_s": 172812.3456, "pulls_per_s": 172812.3456}]
    assert table(rows)["rows"] == [[172812.346, 172810.0]]
    series = Series()
    series.add({**status(), "phase": "training", "elapsed_s": 172812.3456})
    assert series.columns()["at_s"] == [172812.346]


def test_table_without_rows_has_no_columns():
    assert table([]) == {"columns": [], "rows": []}


def test_picture_of_a_large_cluster_is_small():
    assert len(packed(trimmed(status(servers=100, workers=1000, shards=8)))) < 400_000


# --- curves --------------------------------------------------------------------------------------


def test_full_series_covers_the_whole_run_with_bounded_points():
    series = Series(points_max=32)
    for second in range(1, 2001):
        series.add(status(at_s=float(second)))
    times = series.columns()["at_s"]
    assert 12 <= len(times) <= 32
    assert times[0] == 1.0
    assert times[-1] > 1800
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert max(gaps) <= 4 * min(gaps)


def test_series_looks_at_trainings_alone():
    series = Series()
    series.add({**status(), "phase": "survey"})
    assert series.points == []


def test_series_begins_anew_with_another_master():
    series = Series()
    series.add(status(at_s=100.0))
    series.add(status(at_s=2.0))
    assert series.columns()["at_s"] == [2.0]


def test_series_goes_on_with_a_master_that_took_over():
    series = Series()
    series.add(status(at_s=98.0), 1000.0)
    series.add(status(at_s=100.0), 1000.0)
    series.add(status(at_s=2.0), 1103.0)  # three seconds after the last one's death
    series.add(status(at_s=3.0), 1103.2)  # its answer took a little longer
    found = series.columns()
    assert found["at_s"] == [-5.0, -3.0, 2.0, 3.0]
    assert all(cores is not None for cores in found["cpu"])
    series.replace({"at_s": [-50.0, -4.0, 1.0], "units_per_s": [1, 2, 3]})
    assert series.columns()["at_s"] == [-50.0, -5.0, -3.0, 2.0, 3.0]
    later = Series()
    later.add(status(at_s=10.0), 1000.0)
    # Another one, first seen when it had been there for longer.
    later.add(status(at_s=30.0) | {"master": status()["master"] | {"pid": 2}}, 1100.0)
    assert later.columns()["at_s"] == [-90.0, 30.0]


def test_series_of_a_master_whose_answer_is_late_goes_on():
    series = Series()
    series.add(status(at_s=10.0), 1000.0)
    series.add(status(at_s=20.0), 1007.0)  # seven seconds on its way
    series.add(status(at_s=30.0), 1000.1)
    assert series.columns()["at_s"] == [10.0, 20.0, 30.0]


def test_series_takes_the_masters_history_before_its_own_points():
    series = Series()
    series.add(status(at_s=10.0))
    series.replace({"at_s": [1.0, 5.0, 12.0], "units_per_s": [10, 20, 30], "loss": [None, 2.5, 2]})
    found = series.columns()
    assert found["at_s"] == [1.0, 5.0, 10.0]
    assert found["units_per_s"][:2] == [10, 20]
    assert found["loss"][:2] == [None, 2.5]
    assert found["cpu"][0] is None


def test_series_seen_first_before_the_training_keeps_the_times_of_its_history():
    series = Series()
    series.add({**status(at_s=2.0), "phase": "restoring"}, 1e6)
    series.replace({"at_s": [-30.0, -20.0]})
    series.add(status(at_s=9.0), 1e6)
    assert series.columns()["at_s"] == [-30.0, -20.0, 9.0]


def test_series_of_a_master_that_restores_takes_its_history_once():
    series = Series()
    for at_s in (1.0, 11.0, 21.0):
        series.add(status(at_s=at_s), 1000.0)
    series.add({**status(at_s=2.0), "phase": "restoring"}, 1040.0)
    series.replace({"at_s": [-39.0, -29.0, -19.0]})  # the same points, by its clock
    series.add(status(at_s=9.0), 1040.0)
    assert series.columns()["at_s"] == [-39.0, -29.0, -19.0, 9.0]


def test_series_sums_what_processes_use():
    one = status(servers=1, workers=1)
    series = Series()
    series.add(one)
    told = [node["cpu"] for node in one["nodes"]] + [one["master"]["cpu"]]
    assert series.columns()["cpu"] == [pytest.approx(sum(told), rel=1e-3)]
    one["nodes"][1] |= {"cpu": None, "rss_bytes": None}  # it is new, and has not told yet
    series.add({**one, "elapsed_s": 61.0})
    assert series.columns()["cpu"][1:] == series.columns()["rss_bytes"][1:] == [None]


# --- who may read --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "host"),
    [("localhost:80", "localhost"), ("[::1]:80", "::1"), ("a.b", "a.b"), ("", ""), ("[::1", "::1")],
)
def test_host_header_is_read_without_its_port(header, host):
    assert host_of(header) == host


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_is_not_read_from_other_sites(site):
    access = Access("127.0.0.1", 80, TOKEN)
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    assert access.judge(headers, TOKEN)[0] == 403
    assert access.judge({**headers, "Sec-Fetch-Mode": "navigate"}, TOKEN) is None


def test_token_is_needed_by_every_request():
    access = Access("0.0.0.0", 80, TOKEN)
    assert access.judge({"Host": "node1"})[0] == 401
    assert access.judge({"Host": "127.0.0.1"})[0] == 401
    assert access.judge({}, TOKEN + "x")[0] == 401
    assert access.judge({"Cookie": f"snailps-page-81={TOKEN}"})[0] == 401
    assert access.judge({"Cookie": "snailps-page-80=\u00e9; ="})[0] == 401
    for headers, asked in (
        ({}, TOKEN),
        ({"Authorization": f"Bearer {TOKEN}"}, ""),
        ({"Cookie": f"other=1; snailps-page-80={TOKEN}"}, ""),
        ({"Cookie": f'json={{"a":1}}; flag; path=/; snailps-page-80={TOKEN}'}, ""),
    ):
        assert access.judge(headers, asked) is None


def test_cookie_is_for_this_site_and_no_script():
    cookie = Access("0.0.0.0", 80, TOKEN).cookie()
    words = set(cookie.split("; "))
    assert {"HttpOnly", "SameSite=Lax"} <= words  # also where a link of another site is followed
    assert not [word for word in words if word.startswith("Path=")]  # a proxy has another one


@pytest.mark.parametrize(
    "token", ["", "short", "with spaces in the middle", "ümlaut-ümlaut-ümlaut", "a;b" * 9]
)
def test_weak_token_is_refused(token):
    with pytest.raises(ConfigError, match="the page's token has"):
        check_token(token)


def test_drawn_tokens_are_sound_and_differ():
    check_token(new_token())
    assert new_token() != new_token()


# --- HTTP ----------------------------------------------------------------------------------------


class StubControl:
    """Answers as a master would; `statuses` is asked for each."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def call(self, message, timeout_s):
        self.asked.append(message.what)
        answer = self.answers[message.what]
        if isinstance(answer, Exception):
            raise answer
        return messages.Report(answer)

    def close(self):
        pass


@pytest.fixture
def control(monkeypatch):
    details = {"settings": {"settings": [["epochs", "5", "default"]]}, "log": {"lines": []}}
    stub = StubControl({"status": status(), "history": {}, "map": {}, **details})
    monkeypatch.setattr(watcher_module, "visit", lambda address, limit_s, trust: stub)
    return stub


RUN = ShownRun("one", "127.0.0.1:1", OPEN, title="fasttext", output="out/x")


@pytest.fixture
def page(control):
    server = PageServer("127.0.0.1", 0, lambda: [RUN], token=TOKEN)
    server.start()
    yield server
    server.close()


def get(page, path, method="GET", **headers):
    headers = {"Authorization": f"Bearer {TOKEN}", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=LIMIT_S)
    try:
        connection.request(
            method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_page_and_its_files_are_served_with_strict_headers(page):
    for path in ("/", "/page.css", "/icon.svg", *(f"/{name}" for name in SCRIPTS)):
        code, headers, body = get(page, path)
        assert code == 200
        assert body
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert not [name for name in headers if name.lower().startswith("access-control")]


def test_page_needs_nothing_from_elsewhere():
    for name in ("page.html", "page.css", *SCRIPTS):
        text = static(name).decode()
        assert "https:" not in text
        assert text.count("http:") == text.count("http://www.w3.org/2000/svg")
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "document.write" not in text
        assert "eval(" not in text


@pytest.mark.parametrize("path", ["/nothing", "/../access.py", "/%2e%2e/x", "/api"])
def test_unknown_path_is_not_found(page, path):
    assert get(page, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_page_is_read_only(page, method):
    code, _, body = get(page, "/<script>", method)
    assert code == 501
    assert b"script" not in body


def test_head_has_no_body(page):
    code, headers, body = get(page, "/", "HEAD")
    assert (code, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


def test_address_that_is_none_is_refused(page):
    with socket.create_connection(("127.0.0.1", page.port), LIMIT_S) as one:
        one.sendall(b"GET http://[ HTTP/1.1\r\n\r\n")
        assert one.recv(12) == b"HTTP/1.1 400"


def test_picture_is_json_that_no_browser_takes_for_markup_and_waits_for_a_newer_one(page, control):
    _, headers, body = get(page, "/api/run?run=one")
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    picture = json.loads(body)
    while picture["state"] != "live":
        picture = json.loads(get(page, f"/api/run?run=one&after={picture['version']}")[2])
    assert picture["status"]["job_name"] == f"fasttext {HOSTILE}"
    assert picture["run"]["name"] == "one"
    assert set(picture["series"]["at_s"]) == {60.0}  # of each look so far
    assert picture["settings"] == [["epochs", "5", "default"]]


def test_unknown_run_is_told_and_not_echoed(page):
    _, _, body = get(page, "/api/run?run=%3Cscript%3E")
    assert json.loads(body) == {"state": "none", "why": "no such run"}


def test_page_without_runs_says_so(control):
    server = PageServer("127.0.0.1", 0, list, token=TOKEN)
    server.start()
    try:
        assert json.loads(get(server, "/api/run")[2]) == {"state": "none", "why": "no run"}
    finally:
        server.close()


def shown(one, *states):
    """The first picture of a watcher with one of these states."""
    picture = {"version": 0, "state": ""}
    while picture["state"] not in states:
        picture = json.loads(one.picture(picture["version"], LIMIT_S))
    return picture


def test_run_that_ended_has_its_figures_as_the_last_picture(control):
    endings = []
    one = Watcher(RUN, ending=lambda run: endings[0] if endings else None)
    one.start()
    try:
        shown(one, "live")
        figures = {"words": 7, "ended_by": "max_steps", "progress": 0.25}
        endings.append(Ending(0, "", figures))
        control.answers["status"] = ConnectionLost("the master is gone: closed")
        picture = shown(one, "ended", "lost")
        assert picture["state"] == "ended"
        assert picture["status"]["phase_words"] == "done"
        assert picture["status"]["figures"] == figures
        assert picture["status"]["progress"] == 0.25
        assert picture["status"]["waits"] == []
    finally:
        one.close()


def test_runs_are_listed(page):
    found = json.loads(get(page, "/api/runs")[2])["runs"]
    assert [run["name"] for run in found] == ["one"]
    assert "trust" not in found[0]


def test_token_moves_from_the_address_to_a_cookie(control):
    server = PageServer("127.0.0.1", 0, lambda: [RUN], token=TOKEN)
    server.start()
    try:
        for path in ("/", "/api/run", "/api/runs", "/page.js"):
            assert get(server, path, Authorization="")[0] == 401
        code, headers, _ = get(server, f"/?token={TOKEN}&run=one")
        assert (code, headers["Location"]) == (303, "./?run=one")
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert get(server, "/", Authorization="", Cookie=cookie)[0] == 200
        assert server.url.endswith(f"?token={TOKEN}")
        for odd in ("%0D%0AX%3A1", "%E6%97%A5+%2F"):  # what no header may have as it is
            code, headers, _ = get(server, f"/?token={TOKEN}&run={odd}")
            assert (code, headers["Location"]) == (303, f"./?run={odd}")
            assert "X" not in headers
    finally:
        server.close()


def test_page_below_the_path_of_a_proxy_is_the_same(page):
    for below in ("/user/ada/proxy/8087", "/hub/api/x"):
        for name in ("", "page.css", "page.js", "api/runs", "api/run?run=one"):
            assert get(page, f"{below}/{name}")[0] == 200, (below, name)
        code, headers, _ = get(page, f"{below}/?token={TOKEN}")
        assert (code, headers["Location"]) == (303, "./")
    for name in ("page.html", *SCRIPTS):  # no address begins at the top
        assert not re.search(r"""(href|src)=["'`]/|fetch\([`"']/""", static(name).decode())


def test_page_takes_for_figures_what_status_has_as_figures():
    assert f"!{json.dumps(list(FIGURED_AT))}.includes(name)" in static("page.js").decode()


def test_port_in_use_is_told(page):
    with pytest.raises(ClusterError, match="cannot listen on 127"):
        PageServer("127.0.0.1", page.port, list, token=TOKEN)


@pytest.fixture
def strangers(page):
    """As many connections as there may be, of which each has begun a request."""
    held = [
        socket.create_connection(("127.0.0.1", page.port), LIMIT_S) for _ in range(CONNECTIONS_MAX)
    ]
    for one in held:
        one.sendall(b"GET / HTTP/1.1\r\nX: ")
    yield held
    for one in held:
        one.close()


def test_page_while_strangers_hold_all_connections_takes_that_of_the_first(
    page, strangers, monkeypatch
):
    monkeypatch.setattr(page_server, "MAKE_ROOM_S", LIMIT_S)
    assert get(page, "/")[0] == 200
    assert strangers[0].recv(1) == b""
    strangers[-1].sendall(b"\r\nAuthorization: Bearer %s\r\n\r\n" % TOKEN.encode())
    assert strangers[-1].recv(15) == b"HTTP/1.1 200 OK"


def test_connection_whose_thread_begins_late_keeps_its_place(page):
    first, second = socket.socketpair()
    with first, second:
        server = page.server
        for connection in (first, second, first):  # taken, taken; the first one's thread begins
            server.will_ask(connection)
        assert server.hang_up(1) == 1
        assert not server.has_asked(first)
        assert server.has_asked(second)


def test_connections_that_are_answered_are_bounded(page, monkeypatch):
    begun, go_on = threading.Semaphore(0), threading.Event()

    def answer(path, query):
        begun.release()
        go_on.wait(LIMIT_S)
        return 200, "text/plain", b"late"

    monkeypatch.setattr(page, "answer", answer)
    held = []
    try:
        for _ in range(CONNECTIONS_MAX):
            connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=LIMIT_S)
            connection.request("GET", f"/icon.svg?token={TOKEN}")
            held.append(connection)
            acquired(begun, "the begin of an answer")
        with pytest.raises(ConnectionError):
            get(page, "/")
        go_on.set()
        assert {connection.getresponse().read() for connection in held} == {b"late"}
    finally:
        go_on.set()
        for connection in held:
            connection.close()


def test_request_that_comes_byte_by_byte_is_ended_as_a_whole(page):
    page.server.limit_s = 0.2
    with socket.create_connection(("127.0.0.1", page.port), LIMIT_S) as one:
        one.settimeout(0.01)
        one.sendall(b"GET / HTTP/1.1\r\nX: ")

        def is_ended():
            try:
                one.sendall(b"x")
                return not one.recv(1)
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(is_ended, "the end of the connection")


# --- questions to the master ---------------------------------------------------------------------


def test_watcher_asks_seldom_when_nobody_looks_and_the_cluster_is_large():
    now = [0.0]
    one = Watcher(RUN, clock=lambda: now[0])
    assert one.period_s() == IDLE_S
    one.picture()
    assert one.period_s() == LOOK_S
    one._status = trimmed(status(servers=100, workers=3000, shards=8))
    assert one.period_s() > 1.5
    now[0] += 60
    assert one.period_s() == IDLE_S


def test_master_that_hangs_up_before_it_says_how_it_ended_is_not_shown_as_lost(
    control, monkeypatch
):
    monkeypatch.setattr(watcher_module, "ENDING_S", 0.0)
    endings, states = iter([None, None, Ending(0)]), []

    def ending(run):
        states.append(json.loads(one.picture())["state"])
        return next(endings)

    one = Watcher(RUN, ending=ending)
    one.look_once(control)
    one.note_lost(ConnectionLost("the master is gone: closed"))
    states.append(json.loads(one.picture())["state"])
    assert states == ["live", "live", "live", "ended"]


def test_watcher_shows_the_last_picture_of_a_lost_master(control, monkeypatch):
    monkeypatch.setattr(watcher_module, "ENDING_S", 0.0)
    one = Watcher(RUN)
    one.start()
    try:
        shown(one, "live")
        control.answers["status"] = ConnectionLost("the master is gone: closed")
        picture = shown(one, "ended", "lost")
        assert picture["state"] == "lost"
        assert "gone" in picture["why"]
        assert picture["status"]["phase"] == "training"
        one.end("it is over")
        assert json.loads(one.picture())["state"] == "ended"
    finally:
        one.close()


def test_pictures_are_read_by_many_threads(control):
    one = Watcher(RUN)
    one.start()
    try:
        run_all(*[partial(one.picture, 0, LIMIT_S)] * 8)
    finally:
        one.close()


def test_number_of_a_picture_of_thousands_of_digits_is_answered(page, monkeypatch):
    monkeypatch.setattr("snailps.monitor.page_server.HOLD_S", 0.0)
    code, kind, _ = page.answer("/api/run", {"run": RUN.name, "after": "9" * 5000})
    assert (code, kind) == (200, "application/json")
