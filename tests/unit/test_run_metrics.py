"""master.job.run_metrics: figures of a run from the figures of its members."""

from types import SimpleNamespace

from snailps.master.job.run_metrics import work_share


def test_work_share_is_that_of_all_workers_together():
    figures = [
        {"work_s": 3.0, "cpu_s": 4.0},
        {"work_s": 1.0, "cpu_s": 4.0},
        {"peak_rss_mb": 60.0},  # a server
        {},  # a worker that was killed
    ]
    members = [SimpleNamespace(figures=each) for each in figures]
    assert work_share(members) == {"work_share": 0.5, "workers_timed": 2}


def test_work_share_is_unknown_of_models_that_do_not_count_it():
    assert work_share([SimpleNamespace(figures={"work_s": 0.0, "cpu_s": 4.0})]) == {}
