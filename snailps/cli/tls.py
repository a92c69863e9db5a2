"""``snailps tls``: makes a private CA and certificates for a cluster, by the openssl program.

folder, names -> openssl -> ca.pem, ca.key; for each name a folder with ca.pem, node.pem, node.key
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from snailps.config.output import make_folder
from snailps.errors import ConfigError, SnailError
from snailps.files.atomic import publish
from snailps.transport.security.tls import CA, CA_KEY, CERTIFICATE, KEY

app = typer.Typer(no_args_is_help=True, help="Make certificates for encrypted connections.")

DAYS = 3650
OPENSSL_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CONFIG = """\
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[node]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@app.callback()
def _group() -> None:
    pass


@app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the CA.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]", help="Nodes to make a certificate for; by default one, cluster."
        ),
    ] = None,
) -> None:
    """Make a private CA and sign certificates; set `tls` to the folder FOLDER/NAME of a node.

    Run it again with other names to sign more certificates with the same CA. Anyone
    with FOLDER/ca.key can admit nodes to the cluster: keep it off the nodes. Needs the program
    openssl.

    For example: snailps tls init certificates node1 node2
    """
    made = init(folder, names or ["cluster"])
    for path in made:
        typer.echo(path)


def init(folder: Path, names: Sequence[str]) -> list[Path]:
    """Make a CA in `folder` unless there is one, sign certificates, and return their folders."""
    for name in names:
        if not _NAME.fullmatch(name) or name in (CA, CA_KEY):
            raise ConfigError(
                f"{name!r} cannot be the name of a node: expected up to 64 letters, digits and . _ "
                "-, beginning with a letter or digit"
            )
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} exists already: remove it, or choose another name")
    make_folder(folder, "folder", mode=0o755)
    if (folder / CA).exists() != (folder / CA_KEY).exists():
        raise ConfigError(
            f"{folder} has only one of {CA} and {CA_KEY}, and signing needs both: restore the "
            "other one, or choose another folder"
        )
    if not (folder / CA).exists():
        _make_ca(folder)
    return [_make_node(folder, name) for name in dict.fromkeys(names)]


def _make_ca(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        config = Path(made, "config")
        config.write_text(_CONFIG.format(name=f"snailps {secrets.token_hex(4)}"))
        key, certificate = Path(made, CA_KEY), Path(made, CA)
        _new_key(key)
        _openssl(
            "req", "-new", "-x509", "-config", config, "-extensions", "ca", "-key", key,
            "-days", DAYS, "-out", certificate,
        )  # fmt: skip
        certificate.chmod(0o644)
        publish(key, folder / CA_KEY)
        publish(certificate, folder / CA)


def _make_node(folder: Path, name: str) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work, name)
        made.mkdir(mode=0o755)
        config, request = Path(work, "config"), Path(work, "request")
        config.write_text(_CONFIG.format(name=name))
        _new_key(made / KEY)
        _openssl("req", "-new", "-config", config, "-key", made / KEY, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", folder / CA, "-CAkey", folder / CA_KEY,
            "-set_serial", f"0x{secrets.randbits(120) | 1 << 120:x}", "-days", DAYS,
            "-extfile", config, "-extensions", "node", "-out", made / CERTIFICATE,
        )  # fmt: skip
        shutil.copyfile(folder / CA, made / CA)
        for public in (CA, CERTIFICATE):
            (made / public).chmod(0o644)
        publish(made, folder / name)
        return folder / name


def _new_key(path: Path) -> None:
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)


def _openssl(*words: object) -> None:
    """Run openssl with a umask that lets only the owner read the files it writes."""
    try:
        done = subprocess.run(
            ["openssl", *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            umask=0o077,
            timeout=OPENSSL_S,
        )
    except FileNotFoundError:
        raise SnailError(
            "the program openssl is not installed: install the package openssl, or make the "
            "certificates on another machine"
        ) from None
    except subprocess.TimeoutExpired:
        raise SnailError(
            f"openssl {words[0]} has not ended after {OPENSSL_S:.0f} s and was killed: try again"
        ) from None
    if done.returncode:
        raise SnailError(f"openssl {words[0]} failed: {done.stderr.strip()[-500:]}")
