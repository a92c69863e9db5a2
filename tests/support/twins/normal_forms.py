"""A plain twin of the normal form of texts: token by token, in Python."""

import re
import unicodedata

TOKEN = re.compile(rb"[^ \t\n\v\f\r\0]+")
MAILBOX = re.compile(r"[A-Za-z0-9._%+-]+\Z")
HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
URL = re.compile(r"(?<![A-Za-z0-9])(?:https?://|ftp://|www\.).", re.I | re.S | re.ASCII)


def normal_form(text, parts, prefix=b"__label__"):
    """The text with each token replaced by its form; bytes."""
    return TOKEN.sub(lambda token: form_of(token[0], parts.split(","), prefix), text)


def form_of(token, parts, prefix):
    if token.startswith(prefix):
        return token
    text = token.decode("utf-8", "surrogateescape")
    unicode_form = next((part.upper() for part in parts if part.startswith("nf")), None)
    if unicode_form:
        text = unicodedata.normalize(unicode_form, text)
    if "lower" in parts:
        text = text.lower()
    if "casefold" in parts:
        text = text.casefold()
    if unicode_form:
        text = unicodedata.normalize(unicode_form, text)
    if "digits" in parts:
        text = re.sub(r"\d", "0", text)
    if "urls" in parts:
        text = re.sub(r"[^ ]+", lambda word: without_addresses(word[0]), text)
    form = text.encode("utf-8", "surrogateescape")
    reserved = any(part == b"</s>" or part.startswith(prefix) for part in form.split())
    return token if reserved else form


def without_addresses(word):
    """An address begins at a scheme, or around an @, whichever comes first."""
    done, copied = "", 0
    for at in range(len(word)):
        if at < copied:
            continue
        if URL.match(word, at):
            end = len(word.rstrip(".,;:!?'\")]}>"))
            return done + word[copied:at] + "<url>" + word[end:]
        host = HOST.match(word, at + 1)
        mailbox = MAILBOX.search(word[copied:at])
        if word[at] == "@" and host and mailbox and len(host[0]) > 2 and "." in host[0]:
            done += word[copied : copied + mailbox.start()] + "<email>"
            copied = host.end()
    return done + word[copied:]
