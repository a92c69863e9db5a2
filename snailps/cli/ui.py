"""``snailps ui``: a page in the browser that shows a run while it goes on.

settings -> Run -> PageServer -> the page's address on standard output, until Ctrl-C
"""

from __future__ import annotations

import signal
import threading
import types
from typing import Annotated

import typer

from snailps.cli.common import ConfigOption, SetOption, known_classes, read_config
from snailps.config import ClusterSettings, parse_addr
from snailps.monitor.access import is_loopback, new_token
from snailps.monitor.page_server import PageServer
from snailps.monitor.watcher import Run
from snailps.transport.control import Trust

LISTEN = "127.0.0.1:8087"
GRACE_S = 1.5
"""How long open pages have to hear that the run is over."""


def command(
    config: ConfigOption = None,
    sets: SetOption = None,
    listen: Annotated[
        str, typer.Option(help="Address of the page; port 0 takes any free one.", metavar="ADDR")
    ] = LISTEN,
    token: Annotated[
        str,
        typer.Option(
            help="What readers must know; drawn where other machines can read.", metavar="TOKEN"
        ),
    ] = "",
) -> None:
    """Serves a page that shows a run live: cluster, curves, faults, settings, log.

    Open the address that it prints. Asks the master at master_addr. Other machines can read the
    page only if --listen names an address that they reach, and with the token in the address.

    For example: snailps ui --set master_addr=node1:16831
    """
    raw = read_config(config, sets)
    settings = raw.build(ClusterSettings, also_known=known_classes(raw))
    trust = Trust.of(settings)
    run = Run(name="run", address=settings.master_addr, trust=trust)
    host, port = parse_addr(listen, "--listen", port_optional=True)
    if not token and (settings.secret_file or not is_loopback(host)):
        token = new_token()
    over = threading.Event()

    def end(number: int, frame: types.FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    page = PageServer(host, port, lambda: [run], token=token)
    page.start()
    typer.echo(page.url)
    over.wait()
    page.close("the run has ended, and the page's process with it", GRACE_S)
