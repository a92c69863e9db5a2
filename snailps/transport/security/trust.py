"""What members of a cluster have and strangers lack: the shared secret, certificates.

    settings, SNAILPS_SECRET, a launcher's secret -> Trust.of -> handshakes; where to listen

Owns how the secret is read, and that it is never shown.  Must not know connections.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snailps.config import ClusterSettings, format_addr
from snailps.dataclass import dataclass, field
from snailps.errors import ConfigError

if TYPE_CHECKING:
    from snailps.transport.security.tls import Tls

VARIABLE = "SNAILPS_SECRET"
SECRET_BYTES_MIN = 16
"""A listener proves to any peer that it knows the secret: a short one could be guessed."""
SECRET_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Trust:
    """How this process tells members of its cluster from strangers.

    `secret`: shared, empty for none; `insecure`: peers without it may connect from other machines;
    `tls`: everything is encrypted, and a peer without a certificate is refused.
    """

    secret: bytes = field(default=b"", repr=False)
    insecure: bool = False
    tls: Tls | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        settings: ClusterSettings,
        environ: Mapping[str, str] | None = None,
        *,
        secret: bytes = b"",
    ) -> Trust:
        """Make it from the settings; a launcher's `secret` is used if they name none.

        ConfigError: the secret or a certificate cannot be read, can be read by others, or is
        invalid.
        """
        variables = os.environ if environ is None else environ
        of_variable = os.fsencode(variables.get(VARIABLE, "")).strip()
        of_file = _read(settings.secret_file) if settings.secret_file else b""
        if of_variable and of_file and of_variable != of_file:
            raise ConfigError(
                f"two secrets: the environment's {VARIABLE} and the secret in secret_file "
                f"({settings.secret_file}) differ; leave one of them out"
            )
        if of_variable:
            _check(of_variable, f"environment {VARIABLE}")
        tls = _tls(settings.tls) if settings.tls else None
        if tls is None and not settings.insecure:
            of_file = of_file or secret
        return cls(of_variable or of_file, settings.insecure, tls)

    def close(self) -> None:
        if self.tls is not None:
            self.tls.close()

    def check_listening(self, host: str, port: int) -> None:
        """Raise ConfigError for an address that other machines reach while any peer would be
        admitted, and for a certificate that no peer would accept."""
        if self.tls is not None:
            self.tls.check()
        if self.secret or self.tls or self.insecure or is_loopback(host):
            return
        raise ConfigError(
            f"cannot listen on {format_addr(host, port)} without a secret: any process that "
            "reaches that address could read and change the model. Give all processes of the "
            f"cluster one secret (secret_file: PATH, or {VARIABLE}; docs/security.md), or, in an "
            "isolated network, set insecure: true"
        )


OPEN = Trust()
"""No secret: enough for processes that talk on one machine only."""


def is_loopback(host: str) -> bool:
    """Whether an IP address, or the name localhost, is reached from this machine only."""
    try:
        address: Any = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
    return bool((getattr(address, "ipv4_mapped", None) or address).is_loopback)


def _tls(folder: str) -> Tls:
    from snailps.transport.security.tls import Tls  # imports OpenSSL, which few clusters need

    return Tls(folder)


def _read(path: str) -> bytes:
    """Read the secret from a file that only its owner, and at most the group, can read."""
    quoted = shlex.quote(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(f"secret_file: {path} is not a regular file")
            if mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise ConfigError(
                    f"secret_file: {path} can be read or changed by others (mode "
                    f"{stat.S_IMODE(mode):04o}): chmod 600 {quoted}; if they may have read it, "
                    "make another secret"
                )
            secret = file.read(SECRET_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"secret_file: {path} does not exist. Make one, and copy it to every machine: "
            f"(umask 077; head -c 32 /dev/urandom | base64 > {quoted})"
        ) from None
    except OSError as error:
        raise ConfigError(f"secret_file: cannot read {path}: {error.strerror}") from None
    _check(secret.strip(), f"secret_file {path}")
    return secret.strip()


def _check(secret: bytes, where: str) -> None:
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"{where}: expected a secret of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, got "
            f"{len(secret)}; a good one: head -c 32 /dev/urandom | base64"
        )
