"""What a user's code raises: it names the method, the block, and the line of the user's own."""

import math
import re
import threading

import numpy as np
import pytest
from attach import attach

from snailps import Table, Tensor, Worker
from snailps.errors import (
    ClusterError,
    ConfigError,
    MisuseError,
    NotFinite,
    explain,
    own_lines,
    place_of,
    trace_of,
)
from snailps.pieces import Piece
from snailps.transport.messages.terms import Partition
from snailps.worker.user_code import made, named, numbers_of, tables_of
from tests.support.blocks import held_block

HERE = __file__


def line_with(text):
    with open(HERE) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


class Mine(Worker):
    def train(self, block):
        return self.helper(block)

    def helper(self, block):
        if block.number == 1:
            raise KeyError("w")  # raised by the helper
        if block.number == 2:
            return np.ones(3).reshape(2, 2)  # raised in NumPy
        if block.number == 3:
            self.pull("nothing", [1])  # raised in snailps
        if block.number == 5:
            raise NotFinite("table 'w': got nan")  # raised for its values
        if block.number == 4:
            Table("t", 0)  # a mistake that explains itself
        return {}


def block(number):
    return held_block(number=number, piece=Piece("in.txt", 0, 10))


@pytest.mark.parametrize(
    ("number", "error", "line"),
    [
        (1, "KeyError: 'w'", "# raised by the helper"),
        (2, "ValueError: cannot reshape", "# raised in NumPy"),
        (3, "MisuseError: no table 'nothing'", "# raised in snailps"),
        (5, "NotFinite: table 'w': got nan", "# raised for its values"),
    ],
)
def test_error_in_train_has_the_innermost_line_of_the_users_own(number, error, line):
    model = Mine(Mine.Settings())
    with pytest.raises(ClusterError) as caught, named(model, "train", block(number)):
        model.train(block(number))
    text = str(caught.value)
    assert text.startswith(f"Mine.train failed on block {number} (in.txt, bytes 0 to 10): {error}")
    assert text.endswith(f" ({HERE}, line {line_with(line)}, in helper)")


def test_error_in_a_partition_names_its_part_and_chunk():
    model, lease = Mine(Mine.Settings()), block(1)
    lease.terms = Partition(7, 1, 2, 3, 6)
    with pytest.raises(ClusterError) as caught, named(model, "train", lease):
        model.train(lease)
    text = str(caught.value)
    assert text.startswith("Mine.train failed on block 1 (part 2 of 3 in chunk 7): KeyError")


def test_error_that_explains_itself_stays_as_it_is():
    model = Mine(Mine.Settings())
    with pytest.raises(ConfigError, match=r"^table 't': dim: "), named(model, "train", block(4)):
        model.train(block(4))


def test_explained_error_of_a_users_code_at_the_master_has_its_line():
    with pytest.raises(ZeroDivisionError) as caught:
        raise ZeroDivisionError("no rows")  # where it happened
    place = f" ({HERE}, line {line_with('# where it happened')}, in "
    assert explain(caught.value).startswith(f"ZeroDivisionError: no rows{place}")


def raise_in_pyx():
    exec(compile("raise ValueError('factor')", "snailps/shard/_shard.pyx", "exec"))


def test_place_of_an_error_in_a_compiled_part_is_the_line_that_called_it():
    with pytest.raises(ValueError, match="factor") as caught:
        raise_in_pyx()
    assert place_of(caught.value).startswith(f" ({HERE}, line ")
    assert place_of(caught.value).endswith(", in raise_in_pyx)")


def test_place_of_an_error_without_a_traceback_is_empty():
    assert place_of(ValueError("made, never raised")) == ""


def test_trace_has_the_users_lines_of_every_error_in_the_chain():
    def fail():
        try:
            np.ones(3).reshape(2, 2)
        except ValueError as error:
            raise KeyError("w") from error

    model = Mine(Mine.Settings())
    model.train = lambda block: fail()
    with pytest.raises(ClusterError) as caught, named(model, "train", block(1)):
        model.train(block(1))
    trace = trace_of(caught.value.__cause__)
    assert set(re.findall(r'File "(.*)", line', trace)) == {HERE}
    assert "KeyError: 'w'" in trace
    assert "ValueError: cannot reshape" in trace


def test_trace_without_a_users_line_is_whole():
    with pytest.raises(ValueError, match="could not convert") as caught:
        np.loadtxt(["x"])
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    assert "_read" in trace_of(caught.value)


def test_worker_pulls_and_pushes_with_any_integers_and_numbers():
    class Client:
        def __init__(self):
            self.asked = []

        def know_tables(self, tables):
            assert tables == {1: ("w", True)}

        def pull(self, number, keys, out, state, wire):
            self.asked.append(keys)
            return out

        def push(self, number, keys, values, *more, **options):
            self.asked += [keys, values]

    class Wires:
        def of_pull(self, declared, state, *, narrow):
            return 0

        def of_push(self, declared, state, *, narrow, narrower):
            return 0, False

    model, client = Worker(Worker.Settings()), Client()
    attach(model, client, Wires(), {"w": (1, Table("w", 2))})
    for keys in ([3, 5], np.array([3, 5]), np.array([3, 5], np.int32), np.array([3, 5], np.uint64)):
        assert model.pull("w", keys).shape == (2, 2)
        model.push("w", keys, [[1, 2], [3, 4]])
        for asked in (client.asked.pop(0), client.asked.pop(0)):
            assert asked.dtype == np.uint64
            assert asked.tolist() == [3, 5]
        values = client.asked.pop(0)
        assert values.dtype == np.float32
        assert values.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(MisuseError, match=r"^table 'w': keys: .* got float64 of shape \(1,\)"):
        model.pull("w", [1.5])
    with pytest.raises(MisuseError, match=r"^table 'w' .* shape \(1, 2\) of float64, expected"):
        model.pull("w", [1], np.empty((1, 2)))
    with pytest.raises(MisuseError, match=r"^table 'w': values: expected numbers"):
        model.push("w", [1], [["a", "b"]])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"units": 1, "bad_lines": float("nan")}, r"metrics\['bad_lines'\].*got nan"),
        ({"units": 1, "bad_lines": -1}, r"metrics\['bad_lines'\].*got -1"),
        ({"units": 1, "examples": float("inf")}, r"metrics\['examples'\].*got inf"),
        ({"units": float("nan")}, "'units' from 0 to 2"),
        ({"units": 1 << 63}, "'units' from 0 to 2"),
        ({"units": -1}, "'units' from 0 to 2"),
        ({"units": 10**400}, "too large"),
        ({"units": 1, "a\nb": 1}, "all printable"),
        ({"units": 1, **{str(n): n for n in range(2000)}}, "at most 1,024"),
        ({"loss": 1.0}, "'units' from 0 to 2"),
    ],
)
def test_figures_that_no_master_takes_are_refused_where_they_come_from(told, words):
    with pytest.raises((ValueError, OverflowError), match=words):
        numbers_of(told)


def test_loss_that_is_no_number_is_told():
    told = numbers_of({"units": 3, "loss": float("nan")})
    assert told["units"] == 3
    assert math.isnan(told["loss"])


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("planted")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("y" * 10_000_000), r"ValueError: y{2000} \.\.\. \(10,000,000 characters\)"),
        (Odd(), r"Odd: \(its __str__ raises RuntimeError\)"),
    ],
)
def test_error_that_says_too_much_or_nothing_is_told(error, said):
    with (
        pytest.raises(ClusterError, match=rf"^Mine.train failed: {said} \({HERE}, line \d+, in "),
        named(Mine(Mine.Settings()), "train"),
    ):
        raise error
    with pytest.raises(type(error)) as caught:
        raise error
    assert re.match(said, explain(caught.value))


class Fatherless(Mine):
    def __init__(self, settings, threads=1):
        self.threads = threads


def test_constructor_that_leaves_out_the_base_class_is_told_to_call_it():
    said = r"^Fatherless.__init__ has to call super\(\).__init__\(settings, threads\)"
    with pytest.raises(ClusterError, match=said):
        made(Fatherless, Mine.Settings(), 1)


def test_metric_that_is_no_number_is_named():
    with pytest.raises(TypeError, match="expected a number as 'loss', got 'many'"):
        numbers_of({"units": 1, "loss": "many"})


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (Table("t", 1), r"got Table\("),
        (None, "got None"),
        ([Table("t", 1), "w"], "got 'w' in it"),
    ],
)
def test_tables_that_are_none_are_refused(declared, said):
    model = Mine(Mine.Settings())
    model.tables = lambda: declared
    expected = "Mine.tables failed: TypeError: expected a list of snailps.Table and snailps.Tensor"
    with pytest.raises(ClusterError, match=f"^{expected}, {said}"):
        tables_of(model)
    model.tables = lambda: (one for one in [Table("t", 1), Tensor("w", (2, 2))])
    assert [one.name for one in tables_of(model)] == ["t", "w"]


@pytest.mark.parametrize("table", [Table("m", 2, "average"), Tensor("m", (2, 2), "average")])
def test_means_are_refused_before_the_training_where_no_step_ends(table):
    """Nothing would ever divide their sums, and the rows would stay as they are."""

    class Rounds(Mine):
        @classmethod
        def rounds(cls, settings):
            return 3

    asynchronous, bounded, clocked = (
        Mine(Mine.Settings(consistency=name)) for name in ("async", "ssp", "bsp")
    )
    in_rounds = Rounds(Mine.Settings())
    for model in (asynchronous, bounded, clocked, in_rounds):
        model.tables = lambda: [Table("t", 1), table]
    for model in (asynchronous, bounded):
        with pytest.raises(ConfigError, match=r"^Mine.tables\(\): table 'm' has access 'average'"):
            tables_of(model)
    for model in (clocked, in_rounds):
        assert len(tables_of(model)) == 2


def test_lines_of_a_thread_in_users_code_are_named_from_the_outside_in():
    begun, ends = threading.Event(), threading.Event()

    def step():
        begun.set()
        ends.wait(60)

    thread = threading.Thread(target=lambda: step())
    thread.start()
    begun.wait(60)
    said = own_lines(thread.ident)
    ends.set()
    thread.join()
    place = re.escape(HERE)
    assert re.fullmatch(rf"<lambda> \({place}, line \d+\) > step \({place}, line \d+\)", said)
    assert own_lines(thread.ident) == ""
