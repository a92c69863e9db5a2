"""How many cores a process may use in a container."""

import os

import pytest

from snailps import kernels
from snailps.abi.quota import capacity, cores, memory

TOP, OWN = "sys/fs/cgroup", "sys/fs/cgroup/pod/box"
OLD = "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"proc/self/cgroup": "0::/\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", f"{TOP}/cpu.max": "max 100000\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", f"{TOP}/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", f"{TOP}/cpu.max": "22000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", f"{TOP}/cpu.max": "9900000 100000\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", f"{TOP}/cpu.max": "nonsense"}, 64),
        # the least of all groups above it
        ({"proc/self/cgroup": "0::/pod/box\n", f"{OWN}/cpu.max": "800000 100000\n",
          f"{TOP}/pod/cpu.max": "250000 100000\n"}, 3),
        # the first version, and a path that is its host's
        ({"proc/self/cgroup": "5:pids:/x\n4:cpu,cpuacct:/docker/1\n",
          f"{OLD}/cpu.cfs_quota_us": "150000\n", f"{OLD}/cpu.cfs_period_us": "100000\n"}, 2),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/\n",
          "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
          "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\udcff\n", f"{TOP}/cpu.max": "200000 100000\n"}, 2),
        # a name with what Python takes for the end of a line, a line that is empty or cut off
        ({"proc/self/cgroup": "0::/pod\x0cbox\n",
          "sys/fs/cgroup/pod\x0cbox/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "\n9\n0::/\n", f"{TOP}/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/\n",
          f"{OLD}/cpu.cfs_quota_us": "-1\n", f"{OLD}/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)  # fmt: skip
def test_cores_are_as_many_as_mask_and_quota_allow(files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(os.fsencode(text))
    assert cores(tmp_path) == expected


@pytest.mark.parametrize(
    ("threads", "quota", "expected"), [(1, 22_000, 0.22), (1, 400_000, 1), (8, 350_000, 3.5)]
)
def test_capacity_is_what_threads_and_quota_allow(threads, quota, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    for name, text in (("proc/self/cgroup", "0::/\n"), (f"{TOP}/cpu.max", f"{quota} 100000\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert capacity(threads, tmp_path) == expected


def test_mask_counts_where_it_is_the_smaller_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert kernels.cores() == 1


GB = 1 << 30
SLURM = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"


def of_group(at, limit, used, cache=0):
    """A control group of the second version, and page cache that can be dropped."""
    stat = f"anon {used - cache}\ninactive_file {cache}\n"
    return {f"{at}/memory.max": f"{limit}", f"{at}/memory.current": f"{used}",
            f"{at}/memory.stat": stat}  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "files", "free_gb", "why"),
    [
        ("", {}, 200, "MemAvailable"),
        ("0::/\n", of_group(TOP, 8 * GB, GB), 7, "the control group"),
        ("0::/\n", of_group(TOP, "max", GB), 200, "MemAvailable"),
        ("0::/\n", of_group(TOP, 8 * GB, 7 * GB, cache=6 * GB), 7, "the control group"),
        ("0::/\n", of_group(TOP, 8 * GB, 9 * GB), 0, "the control group"),
        # limits of parents: Slurm's job, a slice of systemd
        ("0::/system.slice/slurmstepd.scope/job_7/user/task_0\n",
         {**of_group(f"{SLURM}/user/task_0", "max", GB), **of_group(SLURM, 8 * GB, 2 * GB)}, 6,
         "the control group system.slice/slurmstepd.scope/job_7"),
        # the first version, with its host's path
        ("9:memory:/docker/abc\n",
         {f"{TOP}/memory/memory.limit_in_bytes": f"{8 * GB}",
          f"{TOP}/memory/memory.usage_in_bytes": f"{3 * GB}",
          f"{TOP}/memory/memory.stat": f"cache 1\ntotal_inactive_file {GB}\n"}, 6,
         "the control group memory"),
    ],
)  # fmt: skip
def test_free_memory_is_the_least_of_the_host_and_all_groups(groups, files, free_gb, why, tmp_path):
    files = {"meminfo": f"MemAvailable: {200 << 20} kB\n", "cgroup": groups, **files}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = memory(tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / TOP)
    assert found == (free_gb * GB, why)
