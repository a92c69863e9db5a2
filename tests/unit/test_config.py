"""Files, precedence and messages: what a user writes becomes a settings object or one sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snailps
from snailps.api.class_loading import search_here
from snailps.config import (
    Assignment,
    Document,
    JobSettings,
    RawConfig,
    Settings,
    setting,
    to_mapping,
)
from snailps.config.fields import current_folder
from snailps.config.files import read_conf
from snailps.config.output import check_output
from snailps.config.quoting import cut_comment, quote, split_list, unquote
from snailps.errors import ConfigError, DataError
from snailps.files.atomic import atomic_file
from snailps.files.blocks import files_of


@dataclass(frozen=True, slots=True)
class Demo(Settings):
    """One setting of every kind."""

    dim: int = setting(100, help="h", when="w", low=1, high=4096, aliases=["len_vec"])
    lr: float = setting(0.05, help="h", when="w", low=0.0)
    wait: float = setting(2.5, help="h", when="w", unit="s", low=0)
    chatty: bool = setting(False, help="h", when="w")
    name: str = setting("", help="h", when="w")
    size: int = setting(65536, help="h", when="w", unit="bytes", low=0, high=1 << 40)
    files: tuple[str, ...] = setting((), help="h", when="w")
    mode: Literal["fast", "slow"] = setting("fast", help="h", when="w")
    color: str = setting("red", help="h", when="w", choices=["red", "blue"])


@dataclass(frozen=True, slots=True)
class Other(Settings):
    """Settings of another role."""

    depth: int = setting(3, help="h", when="w")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def build(path: Path | None = None, *overrides: str, **environ: str) -> Demo:
    return RawConfig.load(path, environ=environ, overrides=overrides).build(Demo)


def refused(path: Path | None = None, *overrides: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        build(path, *overrides, **environ)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_build_without_sources_gives_defaults():
    assert build() == Demo()


def test_build_file_of_every_kind_gives_typed_values(tmp_path):
    path = write(
        tmp_path,
        "a.conf",
        "# a comment\n\n  dim: 20\nlr : 1e-3\nwait:3\nchatty: Yes # really\n"
        'name: "run #3, "  # quoted\nsize: 64K\nfiles: a.txt, "b,c.txt" , d#e\n'
        "mode: slow\r\ncolor: blue",
    )
    assert build(path) == Demo(
        20, 1e-3, 3.0, True, "run #3, ", 65536, ("a.txt", "b,c.txt", "d#e"), "slow", "blue"
    )


def test_settings_objects_are_frozen_and_slotted():
    demo = build()
    with pytest.raises(dataclasses.FrozenInstanceError):
        demo.dim = 3  # type: ignore[misc]
    assert not hasattr(demo, "__dict__")


@pytest.mark.parametrize(
    ("text", "value"), [("true", 1), ("on", 1), ("1", 1), ("No", 0), ("OFF", 0), ("0", 0)]
)
def test_bool_every_spelling_is_read(text, value):
    assert build(None, f"chatty={text}").chatty is bool(value)


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("64K", 65536), ("16m", 1 << 24), ("2 G", 2 << 30), ("0", 0)]
)
def test_bytes_with_and_without_letter_are_read(text, size):
    assert build(None, f"size={text}").size == size


def test_bytes_beyond_the_size_of_any_file_are_refused():
    largest = RawConfig.from_mapping({"scratch_bytes": (1 << 63) - 1}, "x").build(JobSettings)
    assert RawConfig.from_mapping(to_mapping(largest), "again").build(JobSettings) == largest
    for text in (f"{1 << 63}", "9999999999G", "999999999999999999999"):
        with pytest.raises(ConfigError, match=f"got '{text}'"):
            RawConfig.from_mapping({"scratch_bytes": text}, "x").build(JobSettings)


@pytest.mark.parametrize("name", ["output", "input", "checkpoint_dir"])
def test_path_with_a_nul_is_refused_by_its_setting(name):
    """The system refuses it later, in words that name no setting."""
    raw = RawConfig.from_mapping({name: "a\0b"}, "j.conf:3")
    with pytest.raises(ConfigError, match=rf"j.conf:3: {name}: .*\(no path has a NUL character\)"):
        raw.build(JobSettings)


def test_precedence_each_source_beats_the_one_before(tmp_path):
    path = write(tmp_path, "a.conf", "dim: 2\nlr: 2\nwait: 2\n")
    built = build(path, "wait=4", SNAILPS_LR="3", SNAILPS_WAIT="3")
    assert (built.dim, built.lr, built.wait, built.size) == (2, 3.0, 4.0, 65536)


def test_later_assignment_in_file_and_command_line_wins(tmp_path):
    path = write(tmp_path, "a.conf", "dim: 2\ndim: 3\n")
    assert build(path).dim == 3
    assert build(path, "dim=4", "dim=5").dim == 5


def test_import_is_relative_to_the_importing_file_and_takes_effect_there(tmp_path):
    write(tmp_path, "base/common.conf", "dim: 1\nlr: 1\nimport deeper/more.conf # why\n")
    write(tmp_path, "base/deeper/more.conf", "wait: 1\n")
    path = write(tmp_path, "a.conf", "dim: 9\nimport base/common.conf\nlr: 2\n")
    built = build(path)
    assert (built.dim, built.lr, built.wait) == (1, 2.0, 1.0)


def test_import_of_one_file_along_two_ways_is_no_cycle(tmp_path):
    write(tmp_path, "common.conf", "dim: 1\n")
    write(tmp_path, "b.conf", "import common.conf\n")
    assert build(write(tmp_path, "a.conf", "import common.conf\nimport b.conf\n")).dim == 1


def test_import_cycle_names_the_chain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.conf", "dim: 1\nimport b.conf\n")
    write(tmp_path, "b.conf", "import c.conf\n")
    write(tmp_path, "c.conf", "\n\nimport a.conf\n")
    message = refused(Path("a.conf"))
    assert message.startswith("c.conf:3: import cycle: a.conf -> b.conf -> c.conf -> a.conf")


def test_import_missing_file_names_line_and_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "sub/a.conf", "dim: 1\nimport none.conf\n")
    message = refused(Path("sub/a.conf"))
    assert message.startswith("sub/a.conf:2: cannot import 'none.conf': no such file")
    assert str(tmp_path / "sub" / "none.conf") in message


def test_load_missing_file_names_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refused(Path("none.conf"))
    assert "'none.conf' not found" in message
    assert str(tmp_path) in message


def test_load_folder_or_binary_is_refused(tmp_path):
    assert "is a folder; name a .conf file in it" in refused(tmp_path)
    path = tmp_path / "a.conf"
    path.write_bytes(b"dim: 1\n\xff\xfe")
    assert "expected UTF-8 text; got a byte that is not, at offset 7" in refused(path)


def test_load_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "a.conf"
    path.write_bytes(b"\xef\xbb\xbfdim: 7\n")
    assert build(path).dim == 7


@pytest.mark.parametrize("line", ["dim = 5", "dim", "async_channel_thread_num", "5: dim", ": 5"])
def test_line_of_no_known_form_names_file_and_line(tmp_path, line):
    path = write(tmp_path, "a.conf", f"lr: 1\n{line}\n")
    message = refused(path)
    assert message.startswith(f"{path}:2: expected 'key: value', 'import other.conf'")
    assert repr(line) in message


def test_name_of_an_image_in_the_environment_is_no_setting():
    """`.env` files of compose and CI have it."""
    assert build(SNAILPS_IMAGE="registry/snailps:1") == build()


def test_unknown_key_gives_origin_and_nearest_name(tmp_path):
    path = write(tmp_path, "a.conf", "lr: 1\n\ndimm: 5\n")
    assert refused(path) == f"{path}:3: unknown setting 'dimm'; did you mean 'dim'?"
    assert refused(None, "Files=5").startswith("--set Files=5: unknown setting 'Files'; did you")
    message = refused(None, SNAILPS_COLOUR="blue")
    assert message.startswith("environment SNAILPS_COLOUR: unknown setting 'colour'")
    assert message.endswith("did you mean 'color'?")


def test_number_of_processes_is_no_setting():
    message = refused(None, "servers=2")
    assert message.endswith("an option of `snailps train` and `snailps local`: --servers N")


def test_unknown_key_without_neighbour_points_to_the_page():
    assert refused(None, "qqq=5").endswith("docs/settings.md lists all settings")


def test_unknown_key_near_another_roles_name_suggests_it():
    raw = RawConfig.load(None, environ={}, overrides=["deph=1"])
    with pytest.raises(ConfigError, match="did you mean 'depth'"):
        raw.build(Demo, also_known=[Other])


def test_also_known_key_is_accepted_and_not_judged():
    raw = RawConfig.load(None, environ={}, overrides=["depth=many", "dim=4"])
    assert raw.build(Demo, also_known=[Other]).dim == 4
    with pytest.raises(ConfigError, match="--set depth: expected a whole number"):
        raw.build(Other, also_known=[Demo])


def test_environment_of_other_programs_and_of_tests_is_left_alone():
    assert build(None, HOME="/", DIM="7", SNAILPS_DATA="/somewhere") == Demo()


@pytest.mark.parametrize(
    ("override", "expected", "got"),
    [
        ("dim=many", "dim: expected a whole number from 1 to 4096", "'many'"),
        ("dim=0", "from 1 to 4096", "'0'"),
        ("dim=4097", "from 1 to 4096", "'4097'"),
        ("dim=1.5", "a whole number", "'1.5'"),
        ("dim=", "a whole number", "nothing"),
        ("lr=-1", "lr: expected a number of at least 0.0", "'-1'"),
        ("lr=nan", "a number", "'nan'"),
        ("lr=1e999", "a number", "too large"),
        ("wait=5s", "wait: expected a number (seconds)", "'5s'"),
        ("chatty=maybe", "chatty: expected true or false", "'maybe'"),
        ("size=2T", "size: expected a number of bytes such as 65536, 64K, 16M or 2G", "'2T'"),
        ("size=2000G", "from 0 to 1024G", "'2000G'"),
        ("mode=medium", "mode: expected one of fast, slow", "'medium'"),
        ("color=green", "color: expected one of red, blue", "'green'"),
        ('name="open', "name: expected text", "never closed"),
        ('name="a" b', "name: expected text", "after the closing quote: 'b'"),
        ("files=a,,b", "files: expected a comma separated list", "empty"),
    ],
)
def test_wrong_value_says_where_what_was_expected_and_what_came(override, expected, got):
    message = refused(None, override)
    name = override.partition("=")[0]
    assert message.startswith(f"--set {name}: ")
    assert expected.removeprefix(f"{name}: ") in message
    assert got in message


def test_wrong_value_in_imported_file_names_that_file(tmp_path):
    write(tmp_path, "common.conf", "\ndim: x\n")
    path = write(tmp_path, "a.conf", "import common.conf\n")
    assert refused(path).startswith(f"{tmp_path / 'common.conf'}:2: dim: expected a whole number")
    assert refused(None, SNAILPS_DIM="x").startswith("environment SNAILPS_DIM: dim: expected")


def test_override_without_equals_sign_says_how():
    assert refused(None, "dim").startswith("--set dim: expected key=value")


def test_very_long_value_is_shortened_in_the_message():
    assert len(refused(None, "dim=" + "9" * 5000).split("got ")[1]) < 100


def test_alias_declared_by_a_class_is_taken_with_a_notice():
    raw = RawConfig.from_mapping({"len_vec": "50"}, "theirs.conf:1")
    assert raw.build(Demo).dim == 50
    assert raw.notices == ["theirs.conf:1: len_vec is called dim here; taken as 'dim: 50'"]
    raw.build(Demo)
    assert len(raw.notices) == 1


def test_alias_and_name_the_later_one_wins():
    raw = RawConfig.load(None, environ={}, overrides=["len_vec=5", "dim=6"])
    assert raw.build(Demo).dim == 6
    raw = RawConfig.load(None, environ={}, overrides=["dim=6", "len_vec=5"])
    assert raw.build(Demo).dim == 5


def test_explicit_gives_the_entry_that_counts_or_none():
    raw = RawConfig.load(None, environ={"SNAILPS_NAME": '"a b"'}, overrides=["len_vec=5"])
    assert raw.explicit("name") == Assignment("name", "a b", "environment SNAILPS_NAME")
    assert raw.explicit("dim") is None
    assert raw.explicit("dim", Demo) == Assignment("dim", "5", "--set len_vec=5")


def test_merged_entries_of_the_other_win():
    options = RawConfig.from_mapping({"dim": 7, "files": ["a,b", "c"]}, "--{key}")
    built = RawConfig.load(None, environ={"SNAILPS_DIM": "3"}).merged(options)
    assert built.build(Demo) == Demo(dim=7, files=("a,b", "c"))
    with pytest.raises(ConfigError, match=r"^--dim: expected a whole number from 1"):
        RawConfig.from_mapping({"dim": 0}, "--{key}").build(Demo)


def test_values_over_what_is_shared_give_way_to_what_is_given_to_the_command(tmp_path):
    (tmp_path / "job.conf").write_text("dim: 3\n")
    around = {"SNAILPS_NAME": "a"}
    raw = RawConfig.load(tmp_path / "job.conf", environ=around, overrides=["lr=0.5"])
    built = raw.over_shared({"dim": "4", "name": "b", "lr": "0.1"}, "--set {key}").build(Demo)
    assert (built.dim, built.name, built.lr) == (4, "b", 0.5)


def test_document_gives_a_child_what_its_launcher_has_read(tmp_path):
    (tmp_path / "common.conf").write_text("lr: 0.25\n")
    (tmp_path / "job.conf").write_text('import common.conf\nname: "a # b"\nlen_vec: 5\n')
    raw = RawConfig.load(tmp_path / "job.conf", environ={"SNAILPS_WAIT": "3"}, overrides=["dim=6"])
    (tmp_path / "job.conf").unlink()
    found = Document.load(Document(raw, b"secret").dump({"dim": "7"}))
    assert found.secret == b"secret"
    assert found.raw.build(Demo) == Demo(dim=7, lr=0.25, name="a # b", wait=3.0)
    *same, own = found.raw.entries
    assert [dataclasses.astuple(entry) for entry in same] == [
        dataclasses.astuple(entry) for entry in raw.entries
    ]
    assert own.origin == "--set dim"
    assert "secret" not in repr(found)


def test_contradictions_name_only_what_differs():
    raw = RawConfig.load(None, environ={"SNAILPS_LR": "0.5"}, overrides=["dim=5", "wait=2.50"])
    assert raw.contradictions(Demo()) == [
        "--set dim is '5' here, but '100' in the job",
        "environment SNAILPS_LR: lr is '0.5' here, but '0.05' in the job",
    ]
    assert raw.contradictions(Demo(), completed=("dim", "lr")) == []


def test_auto_contradicts_no_value_that_the_master_has_decided():
    @dataclass(frozen=True, slots=True)
    class Decided(Settings):
        epochs: int = setting(0, help="h", when="w", low=1, high=300, auto=True)

    raw = RawConfig.from_mapping({"epochs": "auto"}, "worker.conf")
    assert raw.contradictions(Decided(epochs=80)) == []
    (why,) = RawConfig.from_mapping({"epochs": "5"}, "worker.conf").contradictions(Decided(80))
    assert why == "worker.conf: epochs is '5' here, but '80' in the job"


def test_setting_of_an_unknown_type_is_the_programmers_error():
    @dataclass(frozen=True, slots=True)
    class Odd(Settings):
        table: bytes = setting(b"", help="h", when="w")

    with pytest.raises(TypeError, match=r"Odd\.table"):
        RawConfig().build(Odd)
    with pytest.raises(TypeError, match="help="):
        setting(1, help="", when="w")


texts = st.text(st.characters(codec="utf-8"), max_size=30)
demos = st.builds(
    Demo,
    dim=st.integers(1, 4096),
    lr=st.floats(0, allow_infinity=False, allow_nan=False),
    wait=st.floats(0, 1e6),
    chatty=st.booleans(),
    name=texts,
    size=st.integers(0, 1 << 40),
    files=st.lists(texts, max_size=4).map(tuple),
    mode=st.sampled_from(["fast", "slow"]),
    color=st.sampled_from(["red", "blue"]),
)


@given(demos)
@settings(max_examples=30, deadline=None)
def test_mapping_round_trip_is_exact(demo):
    mapping = to_mapping(demo)
    assert all(isinstance(text, str) for text in mapping.values())
    assert RawConfig.from_mapping(mapping, "message").build(Demo) == demo


@given(demos)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_file_round_trip_is_exact(tmp_path, demo):
    lines = [f"{key}: {text}   # comment, \"'\n" for key, text in to_mapping(demo).items()]
    assert build(write(tmp_path, "a.conf", "".join(lines))) == demo


values = st.none() | st.integers(1, 4096)


@given(st.text(alphabet=' ab",#\\\t:', max_size=20))
def test_text_whatever_a_line_holds_is_a_value_or_an_error(text):
    for parse in (unquote, split_list):
        try:
            parse(cut_comment(text))
        except ValueError:
            continue


@given(st.lists(texts, max_size=5))
def test_list_of_quoted_items_round_trips(items):
    assert split_list(", ".join(quote(item) for item in items)) == items


def test_read_conf_keeps_order_and_origin(tmp_path):
    path = write(tmp_path, "a.conf", "b: 1\n# c\na: 2 # c\nb: x#y\n")
    assert read_conf(path) == [
        Assignment("b", "1", f"{path}:1"),
        Assignment("a", "2", f"{path}:3"),
        Assignment("b", "x#y", f"{path}:4"),
    ]


@pytest.mark.parametrize("service", ["", "_MASTER", "_WEB"])
def test_variables_that_kubernetes_sets_for_a_service_are_no_settings(service):
    """In each pod of its namespace; Docker's links have the same names."""
    port = f"SNAILPS{service}_PORT"
    links = {
        f"SNAILPS{service}_SERVICE_HOST": "10.0.0.1", f"SNAILPS{service}_SERVICE_PORT": "16831",
        f"SNAILPS{service}_SERVICE_PORT_RPC": "16831", port: "tcp://10.0.0.1:16831",
        **{f"{port}_16831_{kind}{part}": "tcp" for kind in ("TCP", "UDP", "SCTP")
           for part in ("", "_PROTO", "_PORT", "_ADDR")},
        "SNAILPS_NAME": "/web/snailps",
    }  # fmt: skip
    assert build(**links, SNAILPS_DIM="3").dim == 3
    for name in ("SNAILPS_PORT", "SNAILPS_SERVICE", "SNAILPS_PORT_TCP", "SNAILPS_LINK"):
        assert f"{name}: unknown setting" in refused(None, **{name: "16831"})


def test_current_folder_that_was_removed_is_said_and_asks_for_whole_paths(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert current_folder() == ""
    check_output(f"{tmp_path}/out/model")
    assert (tmp_path / "out").is_dir()
    with pytest.raises(ConfigError, match="out/model is named from the current folder, which was"):
        check_output("out/model")
    with pytest.raises(ConfigError, match="m is named from the"), atomic_file("m"):
        pass
    with pytest.raises(ConfigError, match="is named from the"):
        snailps.filter(f"{tmp_path}/x.txt", output="out", models={"m": "m.bin"}, keep="m.p > 0")
    with pytest.raises(ConfigError, match="current folder: a folder that was removed"):
        RawConfig.load(Path("job.conf"), environ={})
    with pytest.raises(DataError, match="seen from a folder that was removed"):
        files_of(["t.txt"])
    search_here("a_module")  # is looked for elsewhere
