"""The layers of the design, read from the imports of every module.

L0 <- L1 <- L2 <- L3, never up; L1 folders do not import each other, but weights may use decoding.

May import: pytest and the standard library.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tss_bench", "model_adapters", "tasks")

LAYERS = {
    "tss_bench": 0,
    "tss_bench.autoload": 0,
    "tss_bench.domains": 0,
    "tss_bench.files": 0,
    "tss_bench.locks": 0,
    "tss_bench.paths": 0,
    "tss_bench.quotes": 0,
    "tss_bench.protocols": 0,
    "tss_bench.task_paths": 0,
    "tss_bench.types": 0,
    "tss_bench.data": 1,
    "tss_bench.decoding": 1,
    "tss_bench.scoring": 1,
    "tss_bench.search": 1,
    "tss_bench.weights": 1,
    "tss_bench.report": 2,
    "tss_bench.routing": 2,
    "tss_bench.training": 2,
    "model_adapters": 2,
    "tasks": 2,
    "tss_bench.answer_records": 3,
    "tss_bench.answer_steps": 3,
    "tss_bench.answer_view": 3,
    "tss_bench.api": 3,
    "tss_bench.__main__": 3,
    "tss_bench.bench": 3,
    "tss_bench.bench_domains": 3,
    "tss_bench.bench_evaluator": 3,
    "tss_bench.bench_heads": 3,
    "tss_bench.bench_layerskip": 3,
    "tss_bench.bench_report": 3,
    "tss_bench.bench_sam": 3,
    "tss_bench.batched_answers": 3,
    "tss_bench.batched_evaluator": 3,
    "tss_bench.build_sam": 3,
    "tss_bench.calibration": 3,
    "tss_bench.cli": 3,
    "tss_bench.commands": 3,
    "tss_bench.data_report": 3,
    "tss_bench.evaluators": 3,
    "tss_bench.executors": 3,
    "tss_bench.export_command": 3,
    "tss_bench.fidelity": 3,
    "tss_bench.fidelity_measure": 3,
    "tss_bench.fidelity_report": 3,
    "tss_bench.generate_command": 3,
    "tss_bench.harness": 3,
    "tss_bench.json_lines": 3,
    "tss_bench.machine": 3,
    "tss_bench.map_report": 3,
    "tss_bench.packaged_maps": 3,
    "tss_bench.ray_executor": 3,
    "tss_bench.ray_worker": 3,
    "tss_bench.route_report": 3,
    "tss_bench.route_test": 3,
    "tss_bench.run_command": 3,
    "tss_bench.run_choices": 3,
    "tss_bench.run_divergences": 3,
    "tss_bench.run_files": 3,
    "tss_bench.run_plan": 3,
    "tss_bench.run_records": 3,
    "tss_bench.search_command": 3,
    "tss_bench.search_plan": 3,
    "tss_bench.search_report": 3,
    "tss_bench.skip_plots": 3,
    "tss_bench.tolerance": 3,
    "tss_bench.tolerance_plan": 3,
    "tss_bench.tolerance_report": 3,
    "tss_bench.verify_timing": 3,
}
LAZY = {("tss_bench", "tss_bench.api")}
"""Imports that happen only when something is asked for: `tss_bench.generate` and its like."""
SIDEWAYS = {("tss_bench.weights", "tss_bench.decoding")}
STANDARD_LIBRARY_ONLY = {"tss_bench.search"} | {name for name, layer in LAYERS.items() if not layer}
BESIDE_STANDARD_LIBRARY = {
    ("tss_bench.locks", "filelock"),
    ("tss_bench.paths", "platformdirs"),
    ("tss_bench.search", "filelock"),
}
ONLY_IN = {
    "lm_eval": {"model_adapters", "tasks", "tss_bench.harness", "tss_bench.run_files"},
    "torch": {
        "model_adapters",
        "tss_bench.bench",
        "tss_bench.bench_layerskip",
        "tss_bench.batched_answers",
        "tss_bench.calibration",
        "tss_bench.decoding",
        "tss_bench.fidelity_measure",
        "tss_bench.harness",
        "tss_bench.machine",
        "tss_bench.ray_worker",
        "tss_bench.run_command",
        "tss_bench.run_plan",
        "tss_bench.training",
        "tss_bench.weights",
    },
}


def unit_of(dotted: str) -> str | None:
    """The row of LAYERS a module belongs to; None for a module that is not ours."""
    first, *rest = dotted.split(".")
    if first not in PACKAGES:
        return None
    second = f"{first}.{rest[0]}" if rest else first
    return second if second in LAYERS else first


def imports_of(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import, nested and literal dynamic ones included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _is_dynamic_import(node.func):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def _base(node: ast.ImportFrom, package: str) -> str:
    """The module that `from … import` names, its leading dots resolved inside `package`."""
    parts = package.split(".")
    parents = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*parents, *filter(None, [node.module])])


def _is_dynamic_import(function: ast.expr) -> bool:
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name in ("import_module", "__import__")


def violations(path: str, source: str) -> list[str]:
    """Broken rules of one module; `path` is relative to the project, with forward slashes."""
    parts = path.removesuffix(".py").split("/")
    unit = unit_of(".".join(parts))
    assert unit is not None
    if parts[-1] == "__init__":
        parts.pop()
    elif unit == parts[0] == "tss_bench":
        return [f"{path}: has no layer yet, give it one in LAYERS of tests/test_imports.py"]
    package = ".".join(parts if path.endswith("__init__.py") else parts[:-1])
    found = imports_of(source, package)
    return [f"{path}:{line}: {text}" for line, name in found for text in _broken_rules(unit, name)]


def _broken_rules(unit: str, name: str) -> Iterator[str]:
    top, target = name.split(".")[0], unit_of(name)
    if target is None:
        allowed = top in sys.stdlib_module_names or (unit, top) in BESIDE_STANDARD_LIBRARY
        if not allowed and unit in STANDARD_LIBRARY_ONLY:
            yield f"{unit} may import the standard library only, not {name}"
        if top in ONLY_IN and unit not in ONLY_IN[top]:
            yield f"{top} may be imported in {', '.join(sorted(ONLY_IN[top]))} only"
    elif (unit, target) in LAZY:
        return
    elif LAYERS[target] > LAYERS[unit]:
        yield f"layer {LAYERS[unit]} ({unit}) imports layer {LAYERS[target]} ({target})"
    elif LAYERS[unit] == LAYERS[target] == 1 and unit != target and (unit, target) not in SIDEWAYS:
        yield f"{unit} imports {target} of its own layer"


def modules() -> list[Path]:
    return sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def test_every_module_keeps_to_its_layer() -> None:
    broken = [
        text
        for path in modules()
        for text in violations(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not broken, "\n" + "\n".join(broken)
    assert len(modules()) > 10


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tss_bench/types.py", "import torch"),
        ("tss_bench/domains.py", "import numpy"),
        ("tss_bench/domains.py", "import platformdirs"),
        ("tss_bench/paths.py", "import filelock"),
        ("tss_bench/domains.py", "from tss_bench.scoring import pooled"),
        ("tss_bench/search/rules.py", "import numpy as np"),
        ("tss_bench/search/driver.py", "def f():\n    from tss_bench.decoding import replay"),
        ("tss_bench/decoding/target.py", "from tss_bench.weights import load_model"),
        ("tss_bench/decoding/target.py", "import importlib\nimportlib.import_module('lm_eval')"),
        ("tss_bench/decoding/target.py", "import tss_bench.cli"),
        ("tss_bench/data/rows.py", "from ..decoding import target"),
        ("tss_bench/data/rows.py", "from .. import decoding"),
        ("tss_bench/data/__init__.py", "from ..scoring import pooled"),
        ("tss_bench/scoring/pooled.py", "if True:\n    import torch.nn"),
        ("tss_bench/weights/load.py", "from tss_bench.training import eagle"),
        ("tss_bench/training/eagle.py", "from lm_eval.api.model import LM"),
        ("tss_bench/report/tables.py", "import torch"),
        ("tss_bench/cli.py", "import torch"),
        ("tss_bench/bench.py", "import lm_eval"),
        ("tasks/score.py", "from tss_bench.harness import run"),
        ("tasks/score.py", "import torch"),
        ("model_adapters/adapters.py", "from tss_bench import cli"),
        ("tss_bench/brand_new.py", "import json"),
    ],
)
def test_a_broken_rule_is_found(path: str, source: str) -> None:
    assert violations(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tss_bench/types.py", "from __future__ import annotations\nimport dataclasses, json"),
        ("tss_bench/domains.py", "from tss_bench.types import SkipSet"),
        ("tss_bench/paths.py", "def f():\n    import platformdirs"),
        ("tss_bench/decoding/generate.py", "import torch\nfrom tss_bench.decoding import verify"),
        (
            "tss_bench/decoding/drafters/eagle.py",
            "from .. import tree\nfrom ...types import SkipSet",
        ),
        ("tss_bench/decoding/drafters/__init__.py", "from .base import Drafter"),
        ("tss_bench/weights/load.py", "from tss_bench.decoding.target import Target"),
        ("tss_bench/scoring/pooled.py", "import sacrebleu\nfrom tss_bench import types"),
        ("tss_bench/cli.py", "from tss_bench import __version__\nfrom tss_bench import bench"),
        ("tss_bench/harness.py", "import lm_eval, torch\nimport model_adapters"),
        ("tasks/score.py", "import lm_eval\nfrom tss_bench.data.rows import Row"),
        ("model_adapters/adapters.py", "from tss_bench.routing import router"),
    ],
)
def test_an_allowed_import_passes(path: str, source: str) -> None:
    assert violations(path, source) == []


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["ray"]]
    declared = {_normal(re.split(r"[^\w.-]", text)[0]) for text in texts}
    distributions = importlib.metadata.packages_distributions()
    missing = set()
    for path in modules():
        for _, name in imports_of(path.read_text(encoding="utf-8"), "tss_bench"):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top in PACKAGES:
                continue
            if not {_normal(item) for item in distributions.get(top, [top])} & declared:
                missing.add(f"{path.relative_to(ROOT)}: {top}")
    assert not missing, "\n" + "\n".join(sorted(missing))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def unlisted(path: str, source: str) -> list[str]:
    """Imports that the module's own "May import" does not name; the standard library is free.

    A third-party import is named by its top-level name, one of ours by its row of LAYERS. The
    top layer may use all of tss_bench, so only third parties count there.
    """
    text = ast.get_docstring(ast.parse(source)) or ""
    words = set(re.findall(r"\w+", text.partition("May import:")[2]))
    if not words:
        return [f"{path}: its docstring has no 'May import: …'"]
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    package = ".".join(parts if path.endswith("__init__.py") else parts[:-1])
    unit = unit_of(".".join(parts))
    missing = set()
    for _, name in imports_of(source, package):
        top, target = name.split(".")[0], unit_of(name)
        ours = target is not None
        if top in sys.stdlib_module_names or target == unit or (ours and LAYERS[unit or ""] == 3):
            continue
        missing |= {target.split(".")[-1] if target else top} - words
    return [f"{path}: 'May import' does not name {name}" for name in sorted(missing)]


def test_every_module_names_what_it_imports() -> None:
    wrong = [
        text
        for path in modules()
        for text in unlisted(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("tss_bench/weights/hub.py", "import os", 1),
        ("tss_bench/weights/hub.py", '"""May import: torch."""\nimport torch.nn, tqdm', 1),
        ("tss_bench/weights/hub.py", '"""May import: types."""\nfrom tss_bench.types import X', 0),
        ("tss_bench/weights/hub.py", '"""May import: torch."""\nfrom tss_bench.types import X', 1),
        ("tss_bench/weights/hub.py", '"""May import: torch."""\nfrom .pypi import fetch', 0),
        ("tss_bench/bench.py", '"""May import: tss_bench."""\nfrom tss_bench import harness', 0),
        ("tss_bench/bench.py", '"""May import: tss_bench."""\nimport tqdm', 1),
        ("tss_bench/scoring/__init__.py", '"""May import: nothing."""\nfrom . import pooled', 0),
    ],
)
def test_an_import_that_is_not_named_is_found(path: str, source: str, count: int) -> None:
    assert len(unlisted(path, source)) == count
