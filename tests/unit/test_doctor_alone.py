"""`snailps doctor` on one host, without connections."""

import pytest

from snailps.config import MasterSettings, ServerSettings
from snailps.diagnostics.doctor import Doctor


@pytest.mark.parametrize(("setting", "check"), [("tls", "tls"), ("secret_file", "secret")])
def test_doctor_without_its_secret_or_certificate_looks_no_further(
    tmp_path, monkeypatch, setting, check
):
    """Else it would listen, and connect, as a process that has none."""
    settings = MasterSettings(master_addr="127.0.0.1:16831", **{setting: str(tmp_path / "none")})
    doctor, looks = Doctor(settings, ServerSettings(), wait_s=0.0), []
    monkeypatch.setattr(doctor, "_look_around", lambda: looks.append(True))
    errors = [one.check for one in doctor.run().findings if one.level == "error"]
    assert check in errors
    assert looks == []
