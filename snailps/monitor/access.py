"""Decides which requests may read the page: by their token and the site they come from.

    client's headers -> Access.judge -> None, or why it is refused

Each request must carry the token.  A foreign web page whose own host name points here (DNS
rebinding) can read nothing, because a browser sends a cookie only to the host that has set it.
Must not know sockets or files.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from email.message import Message

from snailps.dataclass import dataclass
from snailps.errors import ConfigError

TOKEN_BYTES = 24
TOKEN_CHARACTERS_MIN = 16
COOKIE = "snailps-page"


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def check_token(token: str) -> None:
    """Refuse a token that is easy to guess, or that cannot stand in an address."""
    sound = all(c.isascii() and (c.isalnum() or c in "-_.~") for c in token)
    if len(token) < TOKEN_CHARACTERS_MIN or not sound:
        raise ConfigError(
            f"the page's token has {len(token)} characters: expected {TOKEN_CHARACTERS_MIN} or "
            "more letters, digits and - _ . ~; leave it out to get a random one"
        )


def cookies_of(headers: Mapping[str, str]) -> list[str]:
    """Return all headers with cookies: a proxy may send more than one."""
    values: list[str] = headers.get_all("Cookie", []) if isinstance(headers, Message) else []
    return values or [headers.get("Cookie", "")]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may read one page: its address and its token."""

    host: str
    port: int
    token: str

    def judge(self, headers: Mapping[str, str], asked_token: str = "") -> tuple[int, str] | None:
        """Return the HTTP status and reason of a refusal, or None to let a request pass.

        `asked_token` is the token in the address, with which a browser comes the first time; later
        it sends a cookie.
        """
        foreign = headers.get("Sec-Fetch-Site", "none") in ("cross-site", "same-site")
        if foreign and headers.get("Sec-Fetch-Mode") != "navigate":
            # A page of another site embeds or reads this one.  Following a link is allowed.
            return 403, "This page is not for other sites."
        if self._has_token(headers, asked_token):
            return None
        return 401, "Open the whole address that `snailps ui` printed: it ends with a token."

    def _has_token(self, headers: Mapping[str, str], asked: str) -> bool:
        candidates = [asked, headers.get("Authorization", "").removeprefix("Bearer ")]
        # Not by `http.cookies`, which stops at the first cookie that it cannot parse: another
        # program on this host may have set that one.
        for cookie in ";".join(cookies_of(headers)).split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self.cookie_name:
                candidates.append(value)
        expected = self.token.encode()
        is_right = False
        for candidate in candidates:  # always all of them, so that the time tells nothing
            is_right |= hmac.compare_digest(candidate.encode("utf-8", "replace"), expected)
        return is_right

    @property
    def cookie_name(self) -> str:
        """Name with the port: cookies are per host, and a host may have pages of several runs."""
        return f"{COOKIE}-{self.port}"

    def cookie(self) -> str:
        """Return the header that lets a browser come back without the token in the address.

        It has no path, so that a browser sends it below the page's own path, also behind a proxy.
        `Lax`: it is sent when the user follows a link from another site, and never with requests
        that such a site makes by itself.
        """
        return f"{self.cookie_name}={self.token}; HttpOnly; SameSite=Lax"
