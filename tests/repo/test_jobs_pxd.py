"""`tools/jobs_pxd.py` tells Cython what the header of kernels says, and nothing by hand."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = """\
/* A header; int not_a_field; */
#define SNAIL_PAD 16      /* floats */
#define SNAIL_JOBS_H
enum { SNAIL_SOFTMAX, SNAIL_ONE_VS_ALL };

typedef struct {          /* rows */
    const float *rows, *others; /* or NULL */
    int32_t **ends;
    float rate_start, rate_stop;
} snail_some_job;

typedef struct {
    snail_some_job first;
    int64_t (*room)(void);
    void (*train)(const snail_some_job *job, int64_t from,
                  double *loss);
} snail_kernel_table;
"""
PXD = """\
cdef extern from "kernels/_jobs.h" nogil:
    const int PAD "SNAIL_PAD"
    enum:
        SOFTMAX "SNAIL_SOFTMAX"
        ONE_VS_ALL "SNAIL_ONE_VS_ALL"
    ctypedef struct SomeJob "snail_some_job":
        const float *rows
        const float *others
        int32_t **ends
        float rate_start
        float rate_stop
    ctypedef struct KernelTable "snail_kernel_table":
        SomeJob first
        int64_t (*room)() noexcept nogil
        void (*train)(const SomeJob *, int64_t, double *) noexcept nogil
"""


@pytest.fixture(scope="module")
def jobs_pxd():
    return runpy.run_path(str(ROOT / "tools" / "jobs_pxd.py"))


def test_header_is_declared_for_cython(jobs_pxd):
    text = jobs_pxd["written"](HEADER)
    assert text[text.index("cdef extern") :] == PXD


def test_field_that_is_not_understood_is_refused(jobs_pxd):
    with pytest.raises(ValueError, match=r"_jobs\.h: expected a field .* got 'float x\[4\]'"):
        jobs_pxd["written"]("typedef struct {\n    float x[4];\n} snail_job;\n")


def test_file_stays_if_nothing_changed(jobs_pxd, tmp_path):
    header = tmp_path / "_jobs.h"
    header.write_text(HEADER)
    jobs_pxd["write"](tmp_path)
    before = (tmp_path / "_jobs.pxd").stat().st_mtime_ns
    jobs_pxd["write"](tmp_path)
    assert (tmp_path / "_jobs.pxd").stat().st_mtime_ns == before
    header.write_text(HEADER.replace("SNAIL_PAD 16", "SNAIL_PAD 16\n#define SNAIL_TOP 63"))
    jobs_pxd["write"](tmp_path)
    assert 'const int TOP "SNAIL_TOP"' in (tmp_path / "_jobs.pxd").read_text()
