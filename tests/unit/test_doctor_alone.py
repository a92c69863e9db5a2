"""`snailps doctor` on one host, without connections."""

from types import SimpleNamespace

import pytest

from snailps.api.worker import load_class
from snailps.config import MasterSettings, RawConfig, ServerSettings
from snailps.diagnostics.doctor import Doctor
from snailps.master.job.settings import job_settings
from snailps.models import CLASSES
from snailps.node.probe_service import ProbeService


@pytest.mark.parametrize(("setting", "check"), [("tls", "tls"), ("secret_file", "secret")])
def test_doctor_without_its_secret_or_certificate_looks_no_further(
    tmp_path, monkeypatch, setting, check
):
    """Else it would listen, and connect, as a process that has none."""
    settings = MasterSettings(master_addr="127.0.0.1:16831", **{setting: str(tmp_path / "none")})
    doctor, looks = Doctor(settings, ServerSettings(), wait_s=0.0), []
    monkeypatch.setattr(doctor, "look_around", lambda: looks.append(True))
    errors = [one.check for one in doctor.run().findings if one.level == "error"]
    assert check in errors
    assert looks == []


@pytest.mark.parametrize(("hosts", "level"), [(2, "error"), (0, "warning")])
def test_doctor_that_refused_a_host_which_is_missing_finds_an_error(monkeypatch, hosts, level):
    """`doctor --hosts 2 && start` must not go on."""
    doctor = Doctor(MasterSettings(), ServerSettings(), wait_s=0.0, hosts=hosts)
    monkeypatch.setattr(doctor, "newest_refusal", lambda: "refused 10.0.0.9:1: wrong secret")
    doctor.wait_for_others(ProbeService("doctor", True))
    (found,) = [one for one in doctor.diagnosis.findings if one.check == "handshake"]
    assert (found.level, found.text) == (level, "refused 10.0.0.9:1: wrong secret")
    assert doctor.diagnosis.ok == (level == "warning")


@pytest.mark.parametrize(("days", "level"), [(100, "ok"), (10, "warning")])
def test_doctor_says_when_a_certificate_ends(days, level):
    doctor = Doctor(MasterSettings(), ServerSettings(), clock=lambda: 1e9)
    doctor.check_tls(SimpleNamespace(check=lambda: ("node1", 1e9 + days * 86400)))
    (found,) = doctor.diagnosis.findings
    assert (found.level, found.check) == (level, "tls")
    assert (
        "the certificate of node1 is signed by the CA beside it, and valid until 20" in found.text
    )


def test_doctor_of_the_masters_host_finds_a_result_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("1 1:1\n")
    raw = RawConfig.from_mapping(
        {"worker_class": CLASSES["logistic"], "input": "in.txt", "output": "out"}, "the test"
    )
    cls = load_class(CLASSES["logistic"], "the test")
    model = cls, job_settings(cls, raw)

    def outputs():
        doctor = Doctor(MasterSettings(), ServerSettings(), model)
        doctor.look_at_job()
        return [(one.level, one.text) for one in doctor.diagnosis.findings if one.check == "output"]

    assert [level for level, _ in outputs()] == ["ok"]
    (tmp_path / "out.npz").touch()
    ((level, text),) = outputs()
    assert (level, "out.npz exists" in text) == ("error", True)
    (tmp_path / "out.journal").mkdir()  # a run goes on, and replaces its own
    assert [level for level, _ in outputs()] == ["ok"]
