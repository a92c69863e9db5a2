"""Checks of a machine: what they say of it."""

from snailps.node.checks import shown_command


def test_command_that_holds_a_script_is_shown_on_one_line():
    cmdline = b"python3\0-c\0import socket\n\nwith socket.socket() as s:\n    s.listen()\n\0"
    assert shown_command(cmdline) == "python3 -c import socket with socket.socket() as s: s.listen"
    assert shown_command(b"") == ""
