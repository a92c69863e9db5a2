"""Input by HTTP that changes: between jobs, and between what the master and a worker read."""

import contextlib
import gzip
import hashlib
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from processes import LIMIT_S, SNAILPS, Cluster, Process, environment

from snailps.errors import DataError
from snailps.files.scratch import Scratch

pytest.importorskip("aiohttp", reason="fsspec reads http:// with it")
LINES = 1000
VERSIONS = [f"{number}\n".encode() * LINES for number in range(4)]
"""Of one length, whose lines are the version's number."""


class Origin(ThreadingHTTPServer):
    """A server of one file, which has the next of its versions from ``?change`` on.

    By the name ``moved.txt`` it is said to be elsewhere; `breaks`: only half of it is sent.
    """

    daemon_threads = True

    def __init__(self, mark, tls=None):
        super().__init__(("127.0.0.1", 0), Answer)
        self.mark, self.now, self.got, self.breaks = mark, 0, 0, False
        self.protocol = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    @property
    def url(self):
        return f"{self.protocol}://127.0.0.1:{self.server_port}/in.txt"

    def handle_error(self, request, client_address):
        """Says nothing of those who leave."""


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
        if self.path == "/moved.txt":
            self.send_response(302)
            self.send_header("Location", self.server.url)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
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
            self.wfile.write(content[: len(content) // 2] if self.server.breaks else content)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(*how):
    with Origin(*how) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=["ETag", "Last-Modified", ""])
def origin(request):
    with serving(request.param) as server:
        yield server


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
            assert "not the version that the job began with" in cluster.processes[-1].stderr
        assert origin.now == number + 1
        with np.load(folder / "out.npz") as saved:
            assert saved["counts.keys"].tolist() == [number]
            assert saved["counts.rows"].ravel().tolist() == [LINES]


@pytest.mark.parametrize("origin", ["ETag"], indirect=True)
def test_page_that_has_moved_is_read_where_it_is(origin, tmp_path):
    scratch, moved = Scratch(str(tmp_path), 0), origin.url.replace("in.txt", "moved.txt")
    assert scratch.local(moved).read_bytes() == VERSIONS[0]
    scratch.close()


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("origin", ["ETag"], indirect=True)
def test_page_that_breaks_off_is_an_error_and_no_copy(origin, tmp_path, ending):
    scratch = Scratch(str(tmp_path), 0)
    origin.breaks = True
    with pytest.raises(DataError, match=rf"127\.0\.0\.1:{origin.server_port}/in\.txt"):
        scratch.local(origin.url + ending)
    origin.breaks = False
    assert scratch.local(origin.url + ending).read_bytes() == VERSIONS[0]
    scratch.close()


def test_job_reads_https_where_the_certificate_is_trusted_and_nowhere_else(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=origin", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    words = ["train", "word2vec", "--output", "out", "--epochs", "1", "--json"]
    words += ["--set", "min_count=1", "--set", f"scratch_dir={tmp_path / 'scratch'}"]
    with serving("ETag", (certificate, key)) as server:
        for trusted in (False, True):
            more = {"SSL_CERT_FILE": str(certificate)} if trusted else {}
            command = [*SNAILPS, *words, "--input", server.url]
            with Process("train", command, cwd=tmp_path, env=environment(**more)) as run:
                code = run.wait()
            assert (code == 0) == trusted, run.stderr
            assert trusted or (len(run.errors) == 1 and "certificate" in run.errors[0].lower())
    assert (tmp_path / "out.vec").read_text().split()[0] == "2"  # words: "0", and ends of lines
