"""`Observers`: when a status is made, and who sees it."""

import pytest

from snailps.master.observers import Observer, Observers


class Watch:
    """Observers, one of which sees trainings once a second."""

    def __init__(self, **more):
        self.made, self.seen, self.closed = [], [], []
        self.observers = Observers(self._make, lambda: "progress")
        close = lambda: self.closed.append(1)  # noqa: E731 - a callback
        self.add(self.seen.append, ("training",), 1.0, close=close, **more)

    def _make(self):
        self.made.append(len(self.made))
        return self.made[-1]

    def add(self, *observer, **more):
        self.observers.add(Observer(*observer, **more))

    def step(self, now, phase="training", nodes=4, news=None):
        self.observers.step(phase, nodes, news, now)


def test_status_is_seen_at_the_interval_and_made_for_nothing_else():
    watch = Watch()
    for tenth in range(100):
        watch.step(tenth / 10)
    assert watch.seen == watch.made == list(range(10))


@pytest.mark.parametrize(("nodes_per_s", "seconds"), [(1000, 1), (100, 10)])
def test_status_of_many_processes_is_seen_less_often(nodes_per_s, seconds):
    watch = Watch(nodes_per_s=nodes_per_s)
    for second in range(20):
        watch.step(float(second), nodes=1000)
    assert len(watch.seen) == 20 / seconds


def test_phases_of_others_are_not_seen_but_the_end_is():
    watch = Watch()
    watch.step(0.0, phase="survey")
    assert not watch.made
    watch.observers.end()
    watch.observers.close()
    assert (watch.seen, watch.closed) == ([0], [1])


def test_news_are_seen_at_once_by_all_and_one_status_is_for_all():
    watch, slow, news = Watch(), [], {}
    watch.add(slow.append, ("training",), 60.0)
    watch.step(0.0)
    watch.step(0.1, phase="survey", news=news)
    watch.step(0.2, news=news)
    watch.step(0.3, news=news)
    assert watch.seen == slow == watch.made == [0, 1]


def test_no_status_is_made_where_progress_is_enough_for_all_that_are_due():
    watch, points = Watch(), []
    watch.add(points.append, ("training", "survey"), 1.0, whole=False)
    watch.step(0.0, phase="survey")
    watch.step(1.0, phase="survey")
    assert (points, watch.made) == (["progress"] * 2, [])
    watch.step(2.0)
    assert (points[2:], watch.seen) == ([0], [0])
