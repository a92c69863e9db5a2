"""The number of cases of a test: tables of cases in one test, and more drawn ones on request.

each(names, cases)   -> one test that goes through all, and names those that failed
examples(n), seeds(n) -> n of them, or N times as many with `pytest --more=N`
"""

from __future__ import annotations

import functools
import inspect

import hypothesis
import pytest

factor = 1
"""That of ``--more``; set before tests are collected."""


def examples(count):
    """Sets the number of examples that Hypothesis draws; half a second has to do for all."""
    return hypothesis.settings(max_examples=count * factor, deadline=None)


def seeds(count, *named):
    """The first `n` seeds, and seeds that have found a fault before."""
    return [*range(count * factor), *named]


def each(names, cases, ids=None):
    """Like `pytest.mark.parametrize`, but with one test for all cases, which share their fixtures.

    For tables of cases that take one path and a millisecond each.  All cases run; the failure names
    the failed ones, and shows the traceback of the first.

    Parameters
    ----------
    names : str
        Names of the parameters, separated by commas.
    cases : sequence
        Values of the parameter, or tuples of values.
    ids : callable, optional
        A case's name from its first value.
    """
    names, cases = [name.strip() for name in names.split(",")], list(cases)
    assert cases, "a test of no case"

    def around(test):
        signature = inspect.signature(test)

        @functools.wraps(test)
        def all_of(*own, **fixtures):
            failed = []
            for case in cases:
                values = (case,) if len(names) == 1 else case
                try:
                    test(*own, **fixtures, **dict(zip(names, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((ids(values[0]) if ids else repr(case)[:100], error))
            if failed:
                lines = [f"{name}: {type(e).__name__}: {e}".rstrip()[:1000] for name, e in failed]
                heading = f"{len(failed)} of {len(cases)} cases failed, the first as shown above:"
                raise AssertionError("\n".join([heading, *lines])) from failed[0][1]

        fixture_parameters = [
            parameter for name, parameter in signature.parameters.items() if name not in names
        ]
        assert len(fixture_parameters) + len(names) == len(signature.parameters), names
        all_of.__signature__ = signature.replace(parameters=fixture_parameters)
        return all_of

    return around
