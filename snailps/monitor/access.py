"""Access to the page: tokens of requests, and the sites that they come from.

    client's headers -> Access.judge -> None, or why it is refused

Each request must carry the token.  So a web page elsewhere that makes a name of its own point here
(DNS rebinding) reads nothing: a browser sends the cookie to the host alone that it is of.  Must not
know sockets or files.
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
    """Refuse a token that can be guessed, or that no address can hold."""
    sound = all(c.isascii() and (c.isalnum() or c in "-_.~") for c in token)
    if len(token) < TOKEN_CHARACTERS_MIN or not sound:
        raise ConfigError(
            f"the page's token has {len(token)} characters: it needs {TOKEN_CHARACTERS_MIN} or "
            "more, of letters, digits, - _ . ~; or leave it out, and one is drawn"
        )


def cookies_of(headers: Mapping[str, str]) -> list[str]:
    """All headers of cookies: a proxy may send more than one."""
    found: list[str] = headers.get_all("Cookie", []) if isinstance(headers, Message) else []
    return found or [headers.get("Cookie", "")]


@dataclass(frozen=True, slots=True)
class Access:
    """The rule of one page."""

    host: str
    port: int
    token: str

    def judge(self, headers: Mapping[str, str], asked_token: str = "") -> tuple[int, str] | None:
        """Status code and reason of a refusal, or None.

        `asked_token` is the address's, with which a browser comes the first time.
        """
        foreign = headers.get("Sec-Fetch-Site", "none") in ("cross-site", "same-site")
        if foreign and headers.get("Sec-Fetch-Mode") != "navigate":
            # Another site's page embeds or reads this one; following a link is allowed.
            return 403, "This page is not for other sites."
        if self._has_token(headers, asked_token):
            return None
        return 401, "Open the whole address that `snailps ui` printed: it ends with a token."

    def _has_token(self, headers: Mapping[str, str], asked: str) -> bool:
        given = [asked, headers.get("Authorization", "").removeprefix("Bearer ")]
        # Not `http.cookies`: it stops at a cookie that it does not take, of another page here.
        for cookie in ";".join(cookies_of(headers)).split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self.cookie_name:
                given.append(value)
        expected = self.token.encode()
        found = False
        for one in given:  # all of them: constant time
            found |= hmac.compare_digest(one.encode("utf-8", "replace"), expected)
        return found

    @property
    def cookie_name(self) -> str:
        """A name a port: cookies belong to a host, which may have pages of several runs."""
        return f"{COOKIE}-{self.port}"

    def cookie(self) -> str:
        """The header that lets a browser come again without the token in its address.

        Of the page's own path, which is not `/` where a proxy has it; sent where a link of another
        site is followed, and never with what that site requests by itself.
        """
        return f"{self.cookie_name}={self.token}; HttpOnly; SameSite=Lax"
