"""The base class that users subclass, and how a process finds a subclass by its name."""

import importlib
import os
import sys
import time

import numpy as np
import pytest
from attach import attach

from snailps import JobSettings, Table, Worker
from snailps.api import class_loading
from snailps.api.traits import Cut, InRounds, Reported, is_clocked, trait_of
from snailps.api.wire_choice import WireChoice
from snailps.api.worker import load_class
from snailps.config import RawConfig, settings_of
from snailps.errors import ConfigError, MisuseError
from snailps.store.route import Route, ShardAddress
from tests.support.blocks import held_block


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into the current folder; its name is new for every test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"model_{tmp_path.name}"

    def write(text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for known in [known for known in sys.modules if tmp_path.name in known]:
        del sys.modules[known]


@pytest.mark.parametrize(
    ("path", "text", "parts"),
    [
        ("{name}", "", ["expected package.module:Class"]),
        ("{name}:", "", ["expected package.module:Class"]),
        ("__main__:Mine", "", ["notebook cell", "mymodel:Mine"]),
        ("no_such_module_here:Mine", "", ["No module named", "PYTHONPATH", "pip install"]),
        ("./{name}:Mine", "", ["expected package.module:Class"]),
        ("{name}.py:Mine", "", ["leave out '.py', as in {name}:Mine"]),
        (
            "{name}:Mine",
            "import no_such_dependency",
            ["importing {name} fails: No module named 'no_such_dependency' (", ".py, line 1, in "],
        ),
        ("{name}:Mine", "import sys; sys.exit(3)", ["importing {name} fails: SystemExit: 3 ("]),
        ("{name}:Mine", "x = 1\n1 / 0", ["importing", "ZeroDivisionError", ".py, line 2, in "]),
        ("{name}:Mine", "def broken(:", ["importing", "SyntaxError", ".py, line 1)$"]),
        ("{name}:Mine", "Mine = 5", ["no snailps.Worker of that name", "it has: none"]),
        (
            "{name}:Mine",
            "from snailps import Worker\nclass B(Worker): pass\nclass A(Worker): pass",
            ["it has: A, B"],
        ),
    ],
)
def test_load_class_with_what_is_no_model_says_why(module, path, text, parts):
    name = module(text)
    with pytest.raises(ConfigError) as caught:
        load_class(path.format(name=name), "job.conf:3")
    message = str(caught.value)
    assert message.startswith("job.conf:3: worker_class: ")
    for part in parts:
        assert part.format(name=name) in f"{message}$"


class Client:
    """Stands in for the fan-out client."""

    def __init__(self):
        self.asked = []

    def know_tables(self, tables):
        assert tables[4] == ("w", True)

    def pull(self, number, keys, out, state, wire):
        self.asked.append(("pull", number, out.shape, state, wire))
        return "rows"

    def push(self, number, keys, values, state, merge, wire, feedback, coarse, lr_scale):
        self.asked.append(("push", number, values.shape, state, merge, wire, lr_scale))


@pytest.fixture
def worker():
    worker = Worker(JobSettings())
    worker.client = Client()
    tables = [Table("w", 3), Table("g", 3, "ftrl", lr=0.1), Table("a", 3, "adam", lr=0.1)]
    tables += [Table("mean", 3, "average")]
    route = Route.build(1, [ShardAddress(0, "127.0.0.1", 1)], 4)
    wires = WireChoice(worker.client, route)
    numbered = {table.name: (4 + i, table) for i, table in enumerate(tables)}
    attach(worker, worker.client, wires, numbered)
    return worker


def test_worker_with_declared_table_asks_for_its_number(worker):
    keys = np.arange(5, dtype=np.uint64)
    assert worker.pull("w", keys) == "rows"
    worker.push("w", keys, np.zeros((5, 3), np.float32))
    assert worker.client.asked == [
        ("pull", 4, (5, 3), False, 0),
        ("push", 4, (5, 3), False, False, 0, 1.0),
    ]


def test_worker_pushes_gradients_merged_and_differences_of_state_as_they_are(worker):
    keys = np.arange(5, dtype=np.uint64)
    worker.pull("g", keys, state=True)
    worker.push("g", keys, np.zeros((5, 3), np.float32))
    worker.push("g", keys, np.zeros((5, 9), np.float32), state=True)
    worker.push("a", keys, np.zeros((5, 3), np.float32), lr_scale=0.5)
    assert worker.client.asked == [
        ("pull", 5, (5, 9), True, 0),
        ("push", 5, (5, 3), False, True, 0, 1.0),
        ("push", 5, (5, 9), True, False, 0, 1.0),
        ("push", 6, (5, 3), False, True, 0, 0.5),
    ]


def test_push_to_means_without_clocks_is_refused_as_no_step_would_ever_end(worker):
    keys = np.arange(5, dtype=np.uint64)
    for push in (worker.push, worker.push_async):
        with pytest.raises(MisuseError, match=r"'mean' has access 'average': .*consistency: bsp"):
            push("mean", keys, np.zeros((5, 4), np.float32))
    worker.pull("mean", keys)
    assert worker.client.asked == [("pull", 7, (5, 3), False, 0)]


def test_worker_refuses_to_push_a_state_that_does_not_add_up(worker):
    keys = np.arange(5, dtype=np.uint64)
    for name, width in (("a", 10), ("mean", 7)):
        with pytest.raises(MisuseError, match=r"does not add up.*adagrad, add, ftrl, .*sgd"):
            worker.push(name, keys, np.zeros((5, width), np.float32), state=True)
    with pytest.raises(MisuseError, match=r"rows of 9 values, got shape \(5, 3\)"):
        worker.push("g", keys, np.zeros((5, 3), np.float32), state=True)
    with pytest.raises(MisuseError, match=r"rows of 4 values, got shape \(5, 3\)"):
        worker.push("mean", keys, np.zeros((5, 3), np.float32))
    assert not worker.client.asked


def test_worker_with_unknown_table_or_wrong_width_refuses(worker):
    keys = np.arange(5, dtype=np.uint64)
    with pytest.raises(MisuseError, match="no table 'v' was declared; declared: a, g, mean, w"):
        worker.pull("v", keys)
    with pytest.raises(MisuseError, match=r"rows of 3 values, got shape \(5, 2\)"):
        worker.push("w", keys, np.zeros((5, 2), np.float32))
    with pytest.raises(MisuseError, match=r"got shape \(15,\)"):
        worker.pull("w", keys, np.zeros(15, np.float32))
    assert not worker.client.asked


def test_worker_without_train_says_so(worker):
    with pytest.raises(NotImplementedError, match=r"Worker has no train\(\)"):
        worker.train(None)


@pytest.mark.parametrize(
    ("total", "workers", "expected"),
    [(100, 1, 10), (1 << 20, 1, (1 << 20) // 20), (1 << 20, 4, (1 << 20) // 80),
     (1 << 40, 1, 1 << 20)],
)  # fmt: skip
def test_worker_block_bytes_is_a_twentieth_of_an_epoch_for_all(total, workers, expected):
    assert Cut.block_bytes(JobSettings(), total, workers) == expected


def test_block_data_is_read_once_and_when_asked():
    reads = []

    def read():
        reads.append(1)
        return b"bytes"

    block = held_block(read)
    assert not reads
    assert block.data == block.data == b"bytes"
    assert len(reads) == 1


# --- settings that are none -----------------------------------------------------------------------

SETTINGS = """
from dataclasses import dataclass
from typing import ClassVar
import snailps
{before}
class MySettings(snailps.JobSettings):
    {field}

class Mine(snailps.Worker):
    Settings = {settings}
"""
DATACLASS = "@dataclass(frozen=True, slots=True)"
SETTING = 'snailps.setting(8, help="Width.", when="Tests.")'


@pytest.mark.parametrize(
    ("before", "field", "parts"),
    [
        (DATACLASS, "dim: int = 'x'", ["MySettings.dim: its default 'x' is no int"]),
        (DATACLASS, "dim: list = ()", ["MySettings.dim", "int, float, bool, str"]),
        (DATACLASS, "epochs = 3", ["MySettings.epochs", "snailps.setting(3"]),
        ("", "dim: int = 8", ["MySettings", "(dim)", "@dataclass(frozen=True, slots=True)"]),
        ("", f"dim: int = {SETTING}", ["MySettings", "(dim)", "@dataclass"]),
        (DATACLASS, f"dim: list = {SETTING}", ["MySettings.dim", "int, float, bool, str"]),
        (DATACLASS, f"dim: 'Missing' = {SETTING}", ["Missing"]),
    ],
)
def test_settings_class_with_what_is_no_setting_is_refused_in_words(module, before, field, parts):
    name = module(SETTINGS.format(before=before, field=field, settings="MySettings"))
    with pytest.raises(ConfigError) as caught:
        load_class(f"{name}:Mine", "job.conf:3")
    assert str(caught.value).startswith(f"job.conf:3: worker_class: {name}:Mine: ")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("settings", ["dict", "MySettings()", "object"])
def test_model_whose_settings_are_no_class_of_settings_is_refused_in_words(module, settings):
    name = module(SETTINGS.format(before=DATACLASS, field="pass", settings=settings))
    with pytest.raises(ConfigError, match=r"Mine\.Settings must be a class derived from"):
        load_class(f"{name}:Mine", "job.conf:3")


@pytest.mark.parametrize("before", [DATACLASS, "@dataclass(frozen=True)"])
@pytest.mark.parametrize("field", [f"dim: int = {SETTING}", "width: ClassVar[int] = 3", "pass"])
def test_settings_class_of_settings_is_accepted(module, before, field):
    name = module(SETTINGS.format(before=before, field=field, settings="MySettings"))
    load_class(f"{name}:Mine", "job.conf:3")


# --- classes that were edited ---------------------------------------------------------------------

MODEL = "import snailps\n{more}class Mine(snailps.Worker):\n    step = {step}\n"


def test_load_class_again_after_an_edit_finds_the_new_code(module):
    name = module(MODEL.format(more="", step=1))
    first = load_class(f"{name}:Mine", "test")
    assert load_class(f"{name}:Mine", "test") is first  # nothing was edited
    module(MODEL.format(more="", step=20))
    assert (first.step, load_class(f"{name}:Mine", "test").step) == (1, 20)


def test_load_class_again_after_an_edit_of_what_it_imports_finds_the_new_code(module, tmp_path):
    helper = tmp_path / f"helper_{tmp_path.name}.py"
    helper.write_text("STEP = 1\n")
    name = module(MODEL.format(more=f"from {helper.stem} import STEP\n", step="STEP"))
    assert load_class(f"{name}:Mine", "test").step == 1
    helper.write_text("STEP = 20\n")
    assert load_class(f"{name}:Mine", "test").step == 20


def test_load_class_again_after_an_edit_of_what_it_imported_later_finds_the_new_code(
    module, tmp_path
):
    """`train` imports it, say: it was not there when the class was found."""
    helper = tmp_path / f"later_{tmp_path.name}.py"
    helper.write_text("STEP = 1\n")
    more = f"def step():\n    import {helper.stem}\n    return {helper.stem}.STEP\n"
    path = module(MODEL.format(more=more, step="staticmethod(step)")) + ":Mine"
    assert load_class(path, "test").step() == 1
    helper.write_text("STEP = 20\n")
    later = time.time_ns() + 10**9  # kernels give files the time of their last tick
    os.utime(helper, ns=(later, later))
    assert load_class(path, "test").step() == 20
    assert load_class(path, "test") is load_class(path, "test")


def test_load_class_in_a_package_after_an_edit_finds_the_new_code(module, tmp_path):
    package = tmp_path / f"package_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "steps.py").write_text("STEP = 1\n")
    model = MODEL.format(more="from .steps import STEP\n", step="STEP")
    (package / "model.py").write_text(model)
    module("")
    path = f"{package.name}.model:Mine"
    assert load_class(path, "test").step == 1
    (package / "steps.py").write_text("STEP = 20\n")
    assert load_class(path, "test").step == 20


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_load_class_again_after_an_edit_leaves_installed_libraries_alone(
    module, tmp_path, monkeypatch, folder
):
    """A home folder may hold both: the model, and what `pip install --user` has installed."""
    installed = tmp_path / ".local" / "lib" / "python3" / folder
    installed.mkdir(parents=True)
    library = f"library_{tmp_path.name}_{folder[:4]}"
    (installed / f"{library}.py").write_text("")
    monkeypatch.syspath_prepend(str(installed))
    more = f"import {library}\n"
    name = module(MODEL.format(more=more, step=1))
    load_class(f"{name}:Mine", "test")
    before = sys.modules[library]
    module(MODEL.format(more=more, step=20))
    assert load_class(f"{name}:Mine", "test").step == 20
    assert sys.modules[library] is before


def test_load_class_in_a_copy_of_a_process_finds_what_the_file_says(module, monkeypatch):
    monkeypatch.setattr(class_loading, "_inherited", set())
    name = module(MODEL.format(more="", step=1))
    monkeypatch.syspath_prepend(".")
    assert importlib.import_module(name).Mine.step == 1  # as a notebook does
    module(MODEL.format(more="", step=20))
    class_loading.inherit()
    assert load_class(f"{name}:Mine", "test").step == 20


FIELDS = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
import snailps

@dataclass(frozen=True, slots=True)
class MySettings(snailps.JobSettings):
    dim: int = 8
    epochs: int = 3

class Base(snailps.Worker):
    Settings = MySettings
    width: int = 4
    rate: float = 1
    words: tuple[str, ...] = ("a", "b")
    shared: ClassVar[int] = 5
    threads: int = 6
    table: dict = {}
    _own: int = 7

class Mine(Base):
    rate: float = 0.5
    name: str = "x"
"""


def test_plain_fields_are_settings(module):
    cls = load_class(f"{module(FIELDS)}:Mine", "here")
    settings = RawConfig.from_mapping({"width": "9", "dim": "2"}, "here").build(cls.Settings)
    assert (settings.dim, settings.epochs, settings.width, settings.rate) == (2, 3, 9, 0.5)
    model = cls(settings, 1)
    assert (model.width, model.rate, model.words, model.name) == (9, 0.5, ("a", "b"), "x")
    assert (model.threads, model.shared, model._own) == (1, 5, 7)
    known = settings_of(cls.Settings)
    assert known.keys() - settings_of(JobSettings).keys() == {
        "dim", "width", "rate", "words", "name",
    }  # fmt: skip
    assert known["epochs"].help == settings_of(JobSettings)["epochs"].help
    with pytest.raises(ConfigError, match="did you mean 'width'"):
        RawConfig.from_mapping({"widht": "9"}, "here").build(cls.Settings)
    with pytest.raises(ConfigError, match="epochs: expected a whole number from 1 to"):
        RawConfig.from_mapping({"epochs": "0"}, "here").build(cls.Settings)


def test_class_that_counts_unpushed_blocks_by_the_old_name_is_refused():
    with pytest.raises(TypeError, match=r"Mine\.owes is called unpushed now"):
        type("Mine", (Worker,), {"owes": 1})


def test_only_the_named_module_comes_from_the_current_folder_first(module, tmp_path, monkeypatch):
    """A folder of data may hold files named like modules of any library."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "installed").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "installed")
    name = module("import shadowed_here, beside_here\nfrom snailps import Worker\n"
                  "class Mine(Worker): found = shadowed_here.at, beside_here.at")  # fmt: skip
    for folder in ("", "installed/"):
        for each in (name, "shadowed_here"):
            path = tmp_path / f"{folder}{each}.py"
            if not path.exists():
                path.write_text(f"at = {folder!r}")
    (tmp_path / "beside_here.py").write_text("at = 'here'")
    assert load_class(f"{name}:Mine", "x").found == ("installed/", "here")
    for other in ("shadowed_here", "beside_here"):
        del sys.modules[other]


def test_class_that_writes_a_method_of_a_trait_has_the_trait_and_its_other_methods():
    class Short(Worker):
        @classmethod
        def block_bytes(cls, settings, total_bytes, workers):
            return super().block_bytes(settings, total_bytes, workers) // 2

        def workers_changed(self):
            super().workers_changed()

    class Shorter(Short):
        unit = "word"

        @classmethod
        def rounds(cls, settings):
            return 3

    settings = JobSettings()
    assert trait_of(Short, Cut).block_bytes(settings, 1 << 20, 1) * 2 == Cut.block_bytes(
        settings, 1 << 20, 1
    )
    assert trait_of(Short, Cut) is Short
    assert trait_of(Short, InRounds) is InRounds
    assert Short(settings).unpushed == 0
    assert not is_clocked(Short, settings)
    assert is_clocked(Shorter, settings)
    assert (Shorter.fraction(settings), Shorter.unit, Short.unit) == (1.0, "word", "line")


def test_class_has_the_traits_of_what_is_added_after_it_was_made(module):
    name = module("""
from snailps import Worker

def tiny(cls):
    cls.block_bytes = classmethod(lambda cls, settings, total_bytes, workers: 7)
    return cls

@tiny
class Mine(Worker):
    pass

Mine.counts = "words"
""")
    cls = load_class(f"{name}:Mine", "x")
    assert trait_of(cls, Cut).block_bytes(JobSettings(), 1 << 20, 1) == 7
    assert trait_of(cls, Reported).counts == "words"
