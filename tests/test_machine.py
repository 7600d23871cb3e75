"""What is said of a machine.

May import: pytest, tss_bench.machine and the standard library.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tss_bench import machine


def test_the_processor_is_named_by_the_first_model_of_cpuinfo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some: CPU\n\nmodel name\t: Other\n", "utf-8")
    monkeypatch.setattr(machine, "_CPU_INFO", path)
    assert machine.processor() == "Some: CPU"


@pytest.mark.parametrize("text", [None, "processor : 0\n"])
def test_without_a_name_there_the_platform_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text, "utf-8")
    monkeypatch.setattr(machine, "_CPU_INFO", path)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert machine.processor() == "riscv64"
    assert machine.device_line("cpu").startswith("riscv64, ")
