"""data.normal_forms, data._normaliser: known forms, and any text beside a plain twin."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import each, examples
from hypothesis import example, given
from hypothesis import strategies as st
from twins.normal_forms import normal_form

from snailps.data import _normaliser, normal_forms
from snailps.data._labelled import LineReader
from snailps.data._normaliser import Normaliser

LABEL = b"__label__"
PARTS = ["lower", "nfc", "nfkc,lower,digits", "casefold", "urls", "nfkc,casefold,digits,urls"]
PIECES = st.sampled_from([
    "Word", "ÉCOLE", "E\u0301cole", "ﬁn", "Ｗｉｄｅ", "１２", "1984", "٤٣", "Straße", "ΟΔΟΣ", "İ",
    "Привет,", "a\u00a0B", "__label__X", "__LABEL__x", "＿_label__x", "</s>", "</S>", "É</S>",
    "http://A.b/C?d=1).", "(WWW.Foo.org", "https://", "wwW.é", "xhttp://a", "me@Example.org.",
    "a@b", "@", "x.@y.z", "ww.w", "<", "<" * 70, "w" * 130, "日本", "\u1e9b\u0323", "\udcff\udc80",
])  # fmt: skip
BLANKS = st.sampled_from([" ", "\n", "\n\n", "\t", "\r\n", " \0", "", "-"])
TEXTS = st.lists(st.tuples(PIECES, BLANKS), max_size=60).map(
    lambda pairs: "".join(map("".join, pairs)).encode("utf-8", "surrogateescape")
)


def normalised(text, parts):
    return Normaliser(parts, label_prefix=LABEL).of(text.encode()).decode()


@each(
    "parts, text, expected",
    [
        ("lower", "Good NEWS, Ö Straße __label__Sport\n", "good news, ö straße __label__Sport\n"),
        ("casefold", "Straße ΟΔΟΣ", "strasse οδοσ"),
        ("lower", "ΟΔΟΣ", "οδος"),
        ("nfc", "E\u0301 ﬁ", "É ﬁ"),
        ("nfkc", "E\u0301 ﬁ Ｗ 2\u00a0km", "É fi W 2 km"),
        ("digits", "In 1984, ٤٣ and x9", "In 0000, 00 and x0"),
        ("urls", "see http://A.b/c?d. (www.x.org) or", "see <url>. (<url>) or"),
        ("urls", "ask Me.You+x@mail.Example.org, a@b", "ask <email>, a@b"),
        ("urls", "awww.x.y https:// http://", "awww.x.y https:// http://"),
        ("urls,nfkc", "ｈttp://x.y é@é.de", "<url> é@é.de"),
        ("lower", "a</S> </S> </s>", "a</s> </S> </s>"),
        ("lower", "__LABEL__a x__LABEL__a", "__LABEL__a x__label__a"),
    ],
)
def test_known_forms(parts, text, expected):
    assert normalised(text, parts) == expected


@pytest.mark.parametrize("parts", PARTS)
@given(text=TEXTS)
@example(b"")
@example(b"W.www.X " * 40 + b"\xff")
@examples(60)
def test_any_text_agrees_with_twin(parts, text):
    form = Normaliser(parts, label_prefix=LABEL).of(text)
    assert form == normal_form(text, parts)
    assert form.count(b"\n") == text.count(b"\n")


def test_forms_of_many_words_in_threads_are_those_of_the_twin():
    words = [f"Wörter{number}É" for number in range(9000)] + ["Plain", "http://x.y/É"] * 500
    text = " ".join(np.random.default_rng(5).permutation(words).tolist()).encode() + b"\n"
    normaliser = Normaliser("lower,urls", label_prefix=LABEL)
    with ThreadPoolExecutor(4) as pool:
        forms = list(pool.map(normaliser.of, [text] * 4))
    assert {*forms} == {normal_form(text, "lower,urls")}


def test_forms_of_words_are_made_once(monkeypatch):
    made = []

    def conversion(parts):
        convert = normal_forms.conversion(parts)
        return lambda words: made.append(words) or convert(words)

    monkeypatch.setattr(_normaliser, "conversion", conversion)
    normaliser = Normaliser("lower", label_prefix=LABEL)
    for text in ("É é\nÉ Plain", "é x É"):
        assert normaliser.of(text.encode()) == text.lower().encode()
    assert made == ["É\né\nÉ\n".encode()]


@each(
    "parts, error",
    [
        ("lower,title", "expected parts of nfc, nfkc, lower"),
        ("nfc,nfkc", "either nfc or nfkc"),
        ("lower casefold", "expected parts of"),
    ],
)
def test_unknown_or_double_parts_are_refused(parts, error):
    with pytest.raises(ValueError, match=error):
        normal_forms.normal_parts(parts)


def test_parts_are_written_in_one_order_and_as_bits():
    assert normal_forms.normal_parts(" Digits, lower,nfkc,") == "nfkc,lower,digits"
    assert normal_forms.normal_parts("") == ""
    for parts in PARTS:
        assert normal_forms.parts_of(normal_forms.mask_of(parts)) == parts
    with pytest.raises(ValueError, match="unknown parts"):
        normal_forms.parts_of(1 << 6)


def test_reader_reads_the_normal_form_of_lines_and_of_texts_by_offsets():
    words = ["größe".encode(), b"cat", b"<url>", b"</s>"]
    reader = LineReader(words, [b"__label__A"], label_prefix=LABEL, normalize="nfkc,lower,urls")
    lines = reader.read("__label__A GRO\u0308ßE Cat\nHTTP://x.y\n".encode())
    assert (lines.features.tolist(), lines.feature_ptr.tolist()) == ([0, 1, 3, 2, 3], [0, 3, 5])
    assert lines.labels.tolist() == [0]
    texts = b"CATC\nat"
    by_offsets = reader.read(texts, np.array([0, 3, 7]))
    assert by_offsets.feature_ptr.tolist() == [0, 2, 3]
