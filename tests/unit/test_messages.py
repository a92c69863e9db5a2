"""Control messages: one table of (message, bytes) drives both directions, then wrong fields."""

import contextlib
import dataclasses
import json

import pytest
from cases import each, examples
from hypothesis import given
from hypothesis import strategies as st

from snailps.errors import MisuseError, ProtocolError
from snailps.pieces import JoinedFile, Layout, Piece
from snailps.transport import messages as m
from snailps.transport.messages.terms import ChunkBlock, Partition, PassRange, Step

KNOWN = [
    (
        m.Register("worker", "h", 7, 0.5),
        b'{"is":"Register","role":"worker","host":"h","pid":7,"cores":0.5,"endpoints":[]}',
    ),
    (
        m.Welcome(3, 4, 5, 1024, 0.5, 2.0),
        b'{"is":"Welcome","node":3,"incarnation":4,"job":5,"frag_num":1024,"interval_s":0.5,'
        b'"timeout_s":2.0,"patience_s":0.0}',
    ),
    (
        m.Rejoin(
            5, 3, 4, "server", "h", 7, 2.0, [["h", 1]], 1, "SIGTERM", {"standbys": [[0, 2, ""]]}
        ),
        b'{"is":"Rejoin","job":5,"node":3,"incarnation":4,"role":"server","host":"h","pid":7,'
        b'"cores":2.0,"endpoints":[["h",1]],"epoch":1,"leaving":"SIGTERM",'
        b'"state":{"standbys":[[0,2,""]]}}',
    ),
    (m.TakeRoute({"epoch": 1}), b'{"is":"TakeRoute","route":{"epoch":1}}'),
    (m.MakeTables([[1, {"dim": 2}]]), b'{"is":"MakeTables","tables":[[1,{"dim":2}]]}'),
    (m.DropTables([3, 4]), b'{"is":"DropTables","numbers":[3,4]}'),
    (m.Expire(9, 1, [0, 2]), b'{"is":"Expire","tick":9,"before":1,"shards":[0,2]}'),
    (m.Save(3, "/c/3.part"), b'{"is":"Save","number":3,"folder":"/c/3.part","clock":-1}'),
    (m.StopSaving(), b'{"is":"StopSaving"}'),
    (
        m.Saved(3, [{"name": "a"}], ""),
        b'{"is":"Saved","number":3,"files":[{"name":"a"}],"text":""}',
    ),
    (m.Load(3, "/c/3", [[1, 2]]), b'{"is":"Load","number":3,"folder":"/c/3","tables":[[1,2]]}'),
    (m.Loaded(3, 9, "no"), b'{"is":"Loaded","number":3,"rows":9,"text":"no"}'),
    (m.Durable([1, 4]), b'{"is":"Durable","numbers":[1,4]}'),
    (m.SetClock(3, True), b'{"is":"SetClock","clock":3,"early":true,"shards":[]}'),
    (
        m.CloseClock(3, [0, 2], [1]),
        b'{"is":"CloseClock","clock":3,"slots":[0,2],"shards":[1]}',
    ),
    (
        m.Fence(7, 3, 1, 4, [5], [[6, 9]]),
        b'{"is":"Fence","incarnation":7,"clock":3,"slot":1,"slots":4,"shards":[5],"gone":[[6,9]]}',
    ),
    (m.Declare([{"name": "in"}]), b'{"is":"Declare","tables":[{"name":"in"}]}'),
    (m.Declared([1, 2]), b'{"is":"Declared","numbers":[1,2]}'),
    (
        m.Start(1, "a.b:C", {"lr": "0.05"}, 2, True),
        b'{"is":"Start","number":1,"worker_class":"a.b:C","settings":{"lr":"0.05"},"workers":2,'
        b'"survey":true}',
    ),
    (m.Lease("train", True), b'{"is":"Lease","pass_":"train","back":true,"held":0,"again":[]}'),
    (
        m.Leased(
            1,
            Piece("/in.txt", 2, 3),
            4,
            5,
            (0.0, 0.5),
            Partition(7, 8, 2, 3, 6, (1,), (1, 2, 1), 4),
            True,
            Layout("9", 640, (JoinedFile("/a", 0, 10), JoinedFile("/b", 10, 630, "2")), True),
        ),
        b'{"is":"Leased","number":1,"path":"/in.txt","start":2,"stop":3,"epoch":4,"seed":5,'
        b'"progress":[0.0,0.5],"clock":-1,"slot":0,"slots":1,"index":-1,"chunk":7,"chunk_index":-1,'
        b'"chunk_blocks":8,"part":2,"parts":3,"output_parts":6,"durable":[1],"sizes":[1,2,1],"passes":4,'
        b'"pass_index":-1,"range_index":-1,"range_count":0,"block_count":0,"first":true,'
        b'"version":"9","spread":640,"files":[["/a",0,10,""],["/b",10,630,"2"]],"by_file":true,'
        b'"flushes":false}',
    ),
    (m.CheckOut(9), b'{"is":"CheckOut","number":9}'),
    (m.CheckedOut(5), b'{"is":"CheckedOut","part":5,"ends":false}'),
    (
        m.CheckIn(9, 5, 7, 0.25, {"loss": 3.5}),
        b'{"is":"CheckIn","number":9,"part":5,"units":7,"seconds":0.25,"metrics":{"loss":3.5},'
        b'"durable":false}',
    ),
    (m.CameBack(), b'{"is":"CameBack"}'),
    (m.Slowest(3, 2), b'{"is":"Slowest","clock":3,"node":2}'),
    (m.Workers(2), b'{"is":"Workers","workers":2}'),
    (
        m.Fetch(1, "survey", "lines", 2),
        b'{"is":"Fetch","number":1,"pass_":"survey","unit":"lines","text":2}',
    ),
    (m.Content(b"\x00\xffraw"), b'{"is":"Content"}' + b"\x00\xffraw"),
    (m.Content(b""), b'{"is":"Content"}'),
    (
        m.Done("survey", 1, 2, 0.25, {"loss": 3.5}, b"part", [7, 4]),
        b'{"is":"Done","pass_":"survey","number":1,"units":2,"seconds":0.25,'
        b'"metrics":{"loss":3.5},"numbers":[7,4],"whole":true}part',
    ),
    (m.Again(), b'{"is":"Again"}'),
    (m.Enough(), b'{"is":"Enough"}'),
    (m.Summarise(), b'{"is":"Summarise","job":0}'),
    (m.Summary(b"voc"), b'{"is":"Summary"}voc'),
    (m.Finished({"rows": 1}), b'{"is":"Finished","figures":{"rows":1}}'),
    (
        m.Failed("why", "trace", True),
        b'{"is":"Failed","text":"why","trace":"trace","is_wrong":true}',
    ),
    (m.Leaving("SIGTERM"), b'{"is":"Leaving","why":"SIGTERM"}'),
    (m.Stop(False, "bye"), b'{"is":"Stop","failed":false,"text":"bye","again":false}'),
    (m.Bye({}), b'{"is":"Bye","figures":{}}'),
    (m.Ask("status"), b'{"is":"Ask","what":"status"}'),
    (m.Report({"a": [1]}), b'{"is":"Report","data":{"a":[1]}}'),
    (
        m.Examine(["h", 7], {"host": "n"}),
        b'{"is":"Examine","endpoint":["h",7],"facts":{"host":"n"}}',
    ),
    (m.Examined([]), b'{"is":"Examined","findings":[]}'),
    (m.Probe(3, b"raw"), b'{"is":"Probe","size":3}raw'),
    (
        m.Submit({"model": "x"}, ["driver:h:7/a/1"], "k", b"source"),
        b'{"is":"Submit","settings":{"model":"x"},"files":["driver:h:7/a/1"],"key":"k"}source',
    ),
    (m.Submitted(3), b'{"is":"Submitted","job":3}'),
    (m.AskJob(3), b'{"is":"AskJob","job":3}'),
    (m.ReadFile("0abc", 5, 9), b'{"is":"ReadFile","file":"0abc","start":5,"stop":9}'),
    (m.Shutdown(), b'{"is":"Shutdown"}'),
    (m.SaveRows("/a"), b'{"is":"SaveRows","folder":"/a"}'),
    (m.LoadRows("/a"), b'{"is":"LoadRows","folder":"/a"}'),
    (m.Cancel(), b'{"is":"Cancel","early":false}'),
    (m.Cancel(True), b'{"is":"Cancel","early":true}'),
    (m.Ok(), b'{"is":"Ok"}'),
    (m.HostStandby(2, [[1, {}]]), b'{"is":"HostStandby","shard":2,"tables":[[1,{}]]}'),
    (
        m.BackUp(2, 9, "h", 7, True, False),
        b'{"is":"BackUp","shard":2,"copy":9,"host":"h","port":7,"sync":true,"paced":false,'
        b'"resume":false}',
    ),
    (m.Backed(2, 9), b'{"is":"Backed","shard":2,"copy":9}'),
    (m.Unbacked(2, 9, "why"), b'{"is":"Unbacked","shard":2,"copy":9,"text":"why"}'),
    (m.Alone(2), b'{"is":"Alone","shard":2}'),
    (m.Promote(2, 3), b'{"is":"Promote","shard":2,"epoch":3}'),
    (m.Yield(2, 5.0), b'{"is":"Yield","shard":2,"limit_s":5.0,"stay":false}'),
    (m.Yielded(2, ""), b'{"is":"Yielded","shard":2,"text":""}'),
    (m.DropShard(2), b'{"is":"DropShard","shard":2}'),
    (m.KeepShards([1, 3]), b'{"is":"KeepShards","shards":[1,3]}'),
    (m.Drain(4), b'{"is":"Drain","server":4}'),
]


def body(fields, blob=b""):
    """A body that says these fields, however wrong they are."""
    text = json.dumps(fields).encode()
    return len(text).to_bytes(4, "little") + text + blob


def fields_of(message):
    """The fields of a message's JSON, and its blob."""
    data = m.encode(message)
    stop = 4 + int.from_bytes(data[:4], "little")
    fields = json.loads(data[4:stop])
    del fields["is"]
    return fields, data[stop:]


def ids(value):
    return type(value).__name__ if isinstance(value, m.Message) else ""


def json_bytes(written):
    """Length of the JSON object that `written` begins with."""
    _, stop = json.JSONDecoder().raw_decode(written.decode("latin-1"))
    return stop


@pytest.mark.parametrize(("message", "written"), KNOWN, ids=ids)
def test_message_encodes_to_known_bytes_and_back(message, written):
    data = json_bytes(written).to_bytes(4, "little") + written
    assert m.encode(message) == data
    assert m.decode(data) == message


def test_known_messages_are_all_there_are():
    assert {type(message).__name__ for message, _ in KNOWN} == set(m.codec.REGISTRY)


@each("message", [message for message, _ in KNOWN], ids=ids)
def test_message_is_frozen(message):
    for field in dataclasses.fields(message):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, field.name, None)


@each("message", [message for message, _ in KNOWN], ids=ids)
def test_message_with_each_field_of_a_wrong_type_is_refused(message):
    good, blob = fields_of(message)
    for name, value in good.items():
        for wrong in (None, [], {}, "x", 1, 1.5, True):
            fits = type(wrong) is type(value) or (type(value) is float and type(wrong) is int)
            if fits:
                continue
            with pytest.raises(ProtocolError, match=rf"{type(message).__name__}\.{name}: expected"):
                m.decode(body({"is": type(message).__name__, **good, name: wrong}, blob))


@each("message", [message for message, _ in KNOWN], ids=ids)
def test_message_that_lacks_a_required_field_is_refused(message):
    fields, blob = fields_of(message)
    required = [
        field.name
        for field in dataclasses.fields(message)
        if (field.default, field.default_factory) == (dataclasses.MISSING,) * 2
    ]
    for lacking in fields:
        if lacking in ("progress", "chunk", "part", "parts", "output_parts"):
            continue  # a block's shares come with its number, its parts with its chunk
        rest = {name: value for name, value in fields.items() if name != lacking}
        data = body({"is": type(message).__name__, **rest}, blob)
        if lacking in required:
            with pytest.raises(ProtocolError, match=f"lacks its field '{lacking}'"):
                m.decode(data)
        else:
            m.decode(data)


@each("message", [message for message, _ in KNOWN], ids=ids)
def test_message_with_an_unknown_field_is_refused(message):
    fields, blob = fields_of(message)
    with pytest.raises(ProtocolError, match=r"unknown fields \['colour'\]"):
        m.decode(body({"is": type(message).__name__, **fields, "colour": 1}, blob))


def test_whole_number_for_a_float_is_taken():
    fields = {"node": 1, "incarnation": 2, "job": 3, "frag_num": 4, "timeout_s": 2}
    got = m.decode(body({"is": "Welcome", "interval_s": 1, **fields}))
    assert got == m.Welcome(1, 2, 3, 4, 1.0, 2.0)
    assert type(got.interval_s) is float


def test_optional_fields_that_are_absent_get_their_defaults():
    assert m.decode(body({"is": "Leased", "number": -1})) == m.Leased(-1)
    got = m.decode(body({"is": "Register", "role": "worker", "host": "h", "pid": 1, "cores": 1}))
    assert got == m.Register("worker", "h", 1, 1, [])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes, at least 4"),
        (b"\x02\x00\x00", "3 bytes, at least 4"),
        (b"\x03\x00\x00\x00{}", "states 3 bytes of JSON"),
        (b"\xff\xff\xff\xff{}", "states 4,294,967,295"),
        (b"\x02\x00\x00\x00{]", "no JSON"),
        (b"\x02\x00\x00\x00\xff\xfe", "no JSON"),
        (b"\x00\x00\x00\x00", "no JSON"),
        (body([1, 2]), "no JSON object"),
        (body("Ok"), "no JSON object"),
        (body(None), "no JSON object"),
        (body({}), "unknown control message None"),
        (body({"is": "Explode"}), "unknown control message 'Explode'"),
        (body({"is": "Message"}), "unknown control message 'Message'"),
        (body({"is": ["Ok"]}), "unknown control message"),
        (body({"is": {"Ok": 1}}), "unknown control message"),
        (body({"is": "Ok"}, b"raw"), "Ok carries 3 raw bytes, none expected"),
        (body({"is": "Content", "blob": "text"}, b"raw"), "raw bytes in the JSON"),
    ],
)
def test_decode_of_a_bad_body_says_what_is_wrong(data, words):
    with pytest.raises(ProtocolError) as caught:
        m.decode(data)
    assert words in str(caught.value)
    assert caught.value.code == "message"


def test_encode_of_oversize_json_is_our_own_fault():
    with pytest.raises(MisuseError, match="limit 16,777,216"):
        m.encode(m.Failed("x" * (m.JSON_BYTES_MAX + 1)))


def test_blob_over_the_json_limit_is_fine():
    blob = bytes(m.JSON_BYTES_MAX + 1)
    assert m.decode(m.encode(m.Content(blob))) == m.Content(blob)


@examples(100)
@given(st.sampled_from(KNOWN), st.data())
def test_decode_of_a_mutated_body_gives_a_message_or_a_protocol_error(known, data):
    whole = bytearray(m.encode(known[0]))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        got = m.decode(bytes(whole))
    except ProtocolError:
        return
    assert isinstance(got, m.Message)


@pytest.mark.parametrize(
    "terms",
    [
        None,
        Step(0),
        Step(6, 1, 4, 2),
        ChunkBlock(7, 0, 8),
        Partition(7, 8, 0, 1, 2),
        PassRange(3, 1, 4, 9),
    ],
)
def test_lease_brings_its_terms_and_no_others(terms):
    lease = m.Leased(1, progress=(0.0, 1.0), terms=terms)
    fields, _ = fields_of(lease)
    assert m.decode(m.encode(lease)) == lease
    if terms is not None:
        other = "chunk_index" if isinstance(terms, Step) else "clock"
        with pytest.raises(ProtocolError, match="Step or ChunkBlock or Partition or PassRange"):
            m.decode(body({"is": "Leased", **fields, other: 3}))


def test_unicode_travels():
    message = m.Failed("Datei \u201e\u4e2d\u6587.txt\u201c fehlt", "\U0001f40c")
    assert m.decode(m.encode(message)) == message


# --- the door ------------------------------------------------------------------------------------

DEEP = json.loads("[" * 600 + "]" * 600)
HOSTILE = [
    10**400, -(10**400), 1 << 63, 1 << 64, -1, 0, 1.5, 1e999, -1e999, float("nan"), True, None, "",
    "x" * 100_000, "\ud800", "\udc80", "a\0b", "../../x", [], {}, [None], [[]], DEEP, {"": DEEP},
    {"a": 10**400}, {"bad_lines": float("nan")}, {"\ud800": 1}, [["x" * 300, 1]],
    [["h", float("inf")]], [["h", 65_536]], ["x"], [[1, 10**400]], {"x" * 300: 1},
    {str(number): 1.0 for number in range(2000)},
]  # fmt: skip


@each("message", [message for message, _ in KNOWN], ids=ids)
def test_field_of_whatever_content_gives_a_message_or_a_protocol_error(message):
    """And a message that came in goes out again as it is: it holds nothing that JSON cannot."""
    good, blob = fields_of(message)
    for name in good:
        for wrong in HOSTILE:
            data = body({"is": type(message).__name__, **good, name: wrong}, blob)
            with contextlib.suppress(ProtocolError):
                got = m.decode(data)
                assert m.decode(m.encode(got)) == got or "nan" in repr(got)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"is": "Durable", "numbers": ["x"]}, r"Durable.numbers\[0\]: expected a whole number"),
        ({"is": "Durable", "numbers": [-1]}, r"Durable.numbers\[0\]: .* got -1"),
        (
            {"is": "Done", "pass_": "train", "number": 1, "units": 1 << 63, "seconds": 1,
             "metrics": {}},
            "Done.units: .* to 9007199254740992",
        ),
        (
            {"is": "Done", "pass_": "train", "number": 1, "units": 1, "seconds": 1,
             "metrics": {"bad_lines": float("nan")}},
            r"Done.metrics\['bad_lines'\]: .* got nan",
        ),
        ({"is": "Yield", "shard": 1, "limit_s": 10**400}, "a whole number of 1,329 bits"),
        ({"is": "Expire", "tick": 1, "before": 2}, "before is 2"),
        ({"is": "Leased", "number": 1}, "two shares"),
        ({"is": "Leased", "number": 1, "progress": [0, 1], "flushes": True}, "no block"),
        ({"is": "Leased", "number": 1, "progress": [0, 1], "chunk": 3}, "Step or ChunkBlock"),
        (
            {"is": "Leased", "number": 1, "progress": [0, 1], "chunk": 3, "part": 2, "parts": 2},
            "a partition of a chunk",
        ),
        (
            {"is": "Leased", "number": 1, "progress": [0, 1], "chunk": 3, "part": 1, "parts": 2,
             "output_parts": 4, "sizes": [0, 1]},
            r"Leased.sizes\[0\]",
        ),
        (
            {"is": "Leased", "number": 1, "progress": [0, 1], "chunk": 3, "part": 1, "parts": 2,
             "output_parts": 4, "sizes": [1]},
            "one for each of 2 partitions",
        ),
        ({"is": "CheckIn", "number": 1, "part": -1, "units": 1, "seconds": 1,
          "metrics": {}}, "CheckIn.part"),
        ({"is": "CheckedOut", "part": 1 << 17}, "CheckedOut.part"),
        ({"is": "Bye", "figures": {"bytes_in": 1e300}}, "bytes_in"),
        ({"is": "CloseClock", "clock": 1, "slots": [4096]}, r"slots\[0\]"),
        ({"is": "CloseClock", "clock": 1, "slots": ["0"]}, r"slots\[0\]: .* got '0'"),
        ({"is": "Fence", "incarnation": -1}, "incarnation"),
    ],
)  # fmt: skip
def test_value_out_of_its_range_is_refused_with_its_place(message, words):
    with pytest.raises(ProtocolError, match=words):
        m.decode(body(message))


def test_loss_that_is_no_number_passes_for_the_training_has_diverged():
    done = m.Done("train", 1, 1, 1.0, {"loss": float("inf"), "examples": 2.0})
    assert m.decode(m.encode(done)) == done


def test_text_for_people_is_cut_and_cleaned_not_refused():
    long = m.decode(m.encode(m.Failed("\ud800" + "x" * 100_000, "t" * 1_000_000)))
    assert long.text.startswith("\\ud800xxx")
    long.text.encode()
    assert (len(long.text), len(long.trace)) == (65_541, 131_072)


def test_settings_of_a_job_that_has_ended_arrive_whole():
    settings = {"encoding": "x" * 300_000}
    told = {"settings": settings, "figures": {}, "failure": "", "trace": "", "tables": None}
    report = m.decode(m.encode(m.Report(told)))
    assert report.data["settings"] == settings


def test_path_that_is_no_utf8_travels():
    message = m.Leased(1, Piece("/data/\udcff.txt"), progress=(0.0, 1.0))
    assert m.decode(m.encode(message)) == message


def test_body_of_very_many_lists_is_refused_before_they_are_made():
    text = b'{"is":"Durable","numbers":[' + b"[]," * 500_000 + b"[]]}"
    with pytest.raises(ProtocolError, match="more than 262,144 lists"):
        m.decode(len(text).to_bytes(4, "little") + text)


def test_json_of_another_encoding_is_refused():
    text = '{"is":"Ok"}'.encode("utf-16")
    with pytest.raises(ProtocolError, match="no JSON"):
        m.decode(len(text).to_bytes(4, "little") + text)


@pytest.mark.parametrize(
    ("asked", "answer", "words"),
    [
        (m.Lease("train"), m.Ok(), "Lease is answered by Leased, got Ok"),
        (m.Done("train", 1, 1, 1.0, {}), m.Leased(-1), "by Ok or Enough"),
        (m.Stop(False, ""), m.Ok(), "by nothing"),
        (m.Expire(1, 0, [1]), m.Report({}), "Report on Expire: expected a field 'done'"),
        (m.HostStandby(1, []), m.Report({"endpoint": ["h", 0]}), r"\.endpoint\[1\]: expected"),
        (m.SetClock(1), m.Report({"done": [None]}), r"\.done\[0\]"),
        (m.Ask("stats"), m.Report({"shards": [{"shard": 1}]}), r"\.shards\[0\]: expected a field"),
        (m.AskJob(1), m.Report({"settings": {}}), "Report on AskJob: expected a field 'figures'"),
        (m.Ask("stats"), m.Report({"waits": [[1, 2]]}), r"\.waits\[0\]: expected a list of 3"),
    ],
)
def test_answer_of_another_kind_or_content_is_refused(asked, answer, words):
    with pytest.raises(ProtocolError, match=words):
        m.Answers.of(asked).checked(answer)


def test_answer_that_fits_is_taken_with_what_else_it_says():
    stats = {"shards": [], "peak_rss_mb": 1, "colour": ["red"]}
    assert m.Answers.of(m.Ask("stats")).checked(m.Report(stats)) == m.Report(stats)
    anything = m.Report({"shards": "of a status"})
    assert m.Answers.of(m.Ask("status")).checked(anything) == anything


@pytest.mark.parametrize(
    ("message", "role", "words"),
    [
        (m.Lease("train"), "", "Lease before Register"),
        (m.Lease("train"), "server", "Lease from a server: only worker may send it"),
        (m.Shutdown(), "worker", "only driver"),
        (m.Stop(True, ""), "worker", "only master"),
    ],
)
def test_message_is_for_its_roles_to_say(message, role, words):
    with pytest.raises(ProtocolError, match=words):
        m.check_speaker(message, role)
    m.check_speaker(m.Ask("status"), role)
