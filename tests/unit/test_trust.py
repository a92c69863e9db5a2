"""The shared secret: where it comes from, who is kept out, and where it must not be seen."""

import os
from functools import partial

import pytest

from snailps.config import ClusterSettings, RawConfig
from snailps.errors import ConfigError, ConnectionLost
from snailps.transport.security.trust import SECRET_BYTES_MIN, Trust, is_loopback
from snailps.transport.sockets import listen

SECRET = "correct-horse-battery-staple"


def trust_of(environ=None, **settings):
    raw = RawConfig.from_mapping(settings, "test")
    return Trust.of(raw.build(ClusterSettings), environ or {})


def secret_file(folder, text=SECRET + "\n", mode=0o600):
    path = folder / "the secret"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


# --- where it comes from ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_trust_of_a_file_is_its_text_without_white_space_around(tmp_path, mode):
    assert trust_of(secret_file=secret_file(tmp_path, mode=mode)).secret == SECRET.encode()


def test_trust_of_the_environment_may_agree_with_the_file(tmp_path):
    around = {"SNAILPS_SECRET": SECRET}
    assert trust_of(around).secret == SECRET.encode()
    assert trust_of(around, secret_file=secret_file(tmp_path)).secret == SECRET.encode()
    with pytest.raises(ConfigError, match="two secrets"):
        trust_of({"SNAILPS_SECRET": "x" * 20}, secret_file=secret_file(tmp_path))


def test_trust_of_a_launched_process_has_the_launchers_secret_unless_the_user_says_otherwise(
    tmp_path,
):
    launched = partial(Trust.of, secret=b"of the launcher")
    assert launched(ClusterSettings(), {}).secret == b"of the launcher"
    assert launched(ClusterSettings(insecure=True), {}).secret == b""
    assert launched(ClusterSettings(), {"SNAILPS_SECRET": SECRET}).secret == SECRET.encode()
    settings = ClusterSettings(secret_file=secret_file(tmp_path))
    assert launched(settings, {}).secret == SECRET.encode()


def test_trust_without_any_secret_has_none():
    assert trust_of().secret == b""


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o601])
def test_trust_of_a_file_that_others_can_read_or_change_says_how_to_close_it(tmp_path, mode):
    path = secret_file(tmp_path, mode=mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 600 '{path}'"):
        trust_of(secret_file=path)


@pytest.mark.parametrize("text", ["", "\n", "x" * (SECRET_BYTES_MIN - 1), "x" * 5000])
def test_trust_of_a_short_or_huge_secret_is_refused_without_showing_it(tmp_path, text):
    path = secret_file(tmp_path, text)
    with pytest.raises(ConfigError, match="expected a secret of 16 to 4096 bytes") as caught:
        trust_of(secret_file=path)
    assert "xxx" not in str(caught.value)


def test_trust_of_what_is_no_file_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist\. Make one"):
        trust_of(secret_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"cannot read|is not a regular file"):
        trust_of(secret_file=str(tmp_path))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):  # waits for no writer
        trust_of(secret_file=str(tmp_path / "pipe"))


def test_trust_shows_its_secret_in_no_text():
    trust = Trust(SECRET.encode())
    assert SECRET not in f"{trust!r} {trust}"


def test_secret_is_no_setting():
    with pytest.raises(ConfigError, match="unknown setting 'secret'"):
        RawConfig.load(None, environ={}, overrides=["secret=x"]).build(ClusterSettings)


# --- where a process may listen ---------------------------------------------------------------


def test_listen_beyond_loopback_needs_a_secret_or_insecure():
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:\d+ without a secret.*insecure: true"):
        listen("0.0.0.0", 0)
    listen("0.0.0.0", 0, Trust(SECRET.encode())).close()
    listen("0.0.0.0", 0, Trust(insecure=True)).close()
    listen("127.0.0.1", 0).close()
    with pytest.raises(ConnectionLost, match="not an address of this machine"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False), ("localhost", True), ("node1", False),
        ("LOCALHOST", True), ("localhost.", True), ("localhost.evil.example", False), ("", False),
    ],
)  # fmt: skip
def test_is_loopback_tells_what_other_machines_reach(host, expected):
    assert is_loopback(host) is expected
