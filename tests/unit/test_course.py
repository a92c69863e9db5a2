import itertools

import pytest

from snailps.node.course import Course


@pytest.mark.parametrize("points_max", [2, 16, 33])
def test_course_keeps_the_first_point_and_evenly_spaced_ones(points_max):
    course = Course(points_max)
    for value in range(1000):
        if course.is_due(value):
            course.append((value,))
        assert len(course.points) <= points_max
    assert course.points[0] == (0,)
    gaps = {after - before for (before,), (after,) in itertools.pairwise(course.points)}
    assert max(gaps) <= 2 * min(gaps)
    assert course.points[-1][0] >= 1000 - 2 * max(gaps)


def test_point_that_does_not_grow_is_not_due():
    course = Course(8)
    course.append((3.0, "a"))
    assert not course.is_due(3.0)
    assert not course.is_due(2.0)
    assert course.is_due(3.1)
    course.clear()
    assert course.is_due(2.0)
