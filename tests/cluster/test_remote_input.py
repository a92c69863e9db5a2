"""Input by HTTP that changes: between jobs, and between what the master and a worker read."""

import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from processes import Cluster

from snailps.data.scratch import Scratch

pytest.importorskip("aiohttp", reason="fsspec reads http:// with it")
LINES = 1000
VERSIONS = [f"{number}\n".encode() * LINES for number in range(4)]
"""Of one length, whose lines are the version's number."""


class Origin(ThreadingHTTPServer):
    """A server of one file, which has the next of its versions from ``?change`` on."""

    daemon_threads = True

    def __init__(self, mark):
        super().__init__(("127.0.0.1", 0), Answer)
        self.mark, self.now, self.got = mark, 0, 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/in.txt"


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        origin = self.server
        if self.path.endswith("?change"):
            origin.now += 1
        origin.got += 1
        self.answer(with_body=True)

    def answer(self, *, with_body):
        content, mark = VERSIONS[self.server.now], self.server.mark
        if self.path.partition("?")[0].endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        if mark == "ETag":
            self.send_header(mark, f'"{hashlib.sha256(content).hexdigest()}"')
        elif mark:
            self.send_header(mark, f"Mon, 02 Nov 2026 10:00:0{self.server.now} GMT")
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(params=["ETag", "Last-Modified", ""])
def origin(request):
    with Origin(request.param) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_copy_of_page_is_made_anew_on_each_host_when_the_page_changes(origin, tmp_path, ending):
    for version in VERSIONS[:2]:
        for host in ("a", "b"):
            scratch = Scratch(str(tmp_path / host), 0)
            got = origin.got
            assert scratch.local(origin.url + ending).read_bytes() == version
            again = Scratch(str(tmp_path / host), 0)
            assert again.local(origin.url + ending).read_bytes() == version
            # A page of which nothing tells the version is fetched by each job.
            assert origin.got == got + (1 if origin.mark else 2)
            scratch.close()
            again.close()
        origin.now += 1


@pytest.mark.parametrize("origin", ["ETag"], indirect=True)
def test_job_whose_input_changes_before_workers_read_it_trains_on_what_was_listed(origin, tmp_path):
    """For two jobs, of which the second reads anew; each changes its input in `setup`."""
    for number in (0, 1):
        folder = tmp_path / f"job{number}"
        folder.mkdir()
        origin.now = number
        job = {
            "worker_class": "cluster_models:OfChangedInput", "input": origin.url, "epochs": 1,
            "output": "out", "scratch_dir": tmp_path / "scratch",
        }  # fmt: skip
        with Cluster(folder, job=job) as cluster:
            codes, master = cluster.run()
            assert set(codes) == {0}, master.stderr
            assert "not the version of which the job was made" in cluster.processes[-1].stderr
        assert origin.now == number + 1
        with np.load(folder / "out.npz") as saved:
            assert saved["counts.keys"].tolist() == [number]
            assert saved["counts.rows"].ravel().tolist() == [LINES]
