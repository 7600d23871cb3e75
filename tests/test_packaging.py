"""The start-up hook against stand-ins of lm-eval, and what the wheel holds.

The stand-ins run in bare interpreters (`python -S`), so no installed package plays a part.

May import: pytest, hatchling's output and the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from model_adapters.adapters import ADAPTERS

ROOT = Path(__file__).resolve().parent.parent
START_UP = ROOT / "tss_bench_autoload.pth"

REGISTRY = """
class Registry:
    def __init__(self):
        self.targets = {}
    def register(self, name, target):
        if self.targets.get(name, target) != target:
            raise ValueError(f"{name} already registered")
        self.targets[name] = target
    def __contains__(self, name):
        return name in self.targets
    def __iter__(self):
        return iter(self.targets)
model_registry = Registry()
"""

MODELS = """
MODEL_MAPPING = {"hf": "lm_eval.models.huggingface:HFLM"}
from lm_eval.api.registry import model_registry
for name, target in MODEL_MAPPING.items():
    model_registry.register(name, target=target)
"""

MANAGER = """
class TaskManager:
    def __init__(self, verbosity=None, include_path=None, include_defaults=True, metadata=None):
        self.include_path = include_path
        self.metadata = metadata
        self.scanned = ["built-in"] if include_defaults else []
        if include_path:
            several = isinstance(include_path, (list, tuple))
            self.scanned += map(str, include_path if several else [include_path])
"""

DISCOVERING_REGISTRY = (
    REGISTRY
    + """
def load_models():
    import importlib.metadata
    for entry in importlib.metadata.entry_points(group="lm_eval.models"):
        model_registry.targets.setdefault(entry.name, "found by lm-eval itself")
"""
)

DISCOVERING_MANAGER = MANAGER + '\nGROUPS = ("lm_eval.tasks",)\n'


class Site:
    """A folder of importable files with a stand-in of lm-eval, and a bare interpreter on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("lm_eval", "lm_eval/api"):
            self.write(f"{name}/__init__.py", "")
        self.write("lm_eval/api/registry.py", REGISTRY)
        self.write("lm_eval/models/__init__.py", MODELS)
        self.write("lm_eval/tasks/__init__.py", "from lm_eval.tasks.manager import TaskManager\n")
        self.write("lm_eval/tasks/manager.py", MANAGER)

    def write(self, path: str, text: str) -> Path:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text), encoding="utf-8")
        return target

    def install(self, name: str, entry_points: str) -> None:
        """Metadata of an installed package with these entry points."""
        info = f"{name}-1.0.dist-info"
        self.write(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        self.write(f"{info}/entry_points.txt", entry_points)

    def run(self, script: str, *, package: Path | None = ROOT, **env: str) -> Result:
        """Run `script` after `install()`; what it puts into `out` comes back."""
        paths = [str(self.folder), *([str(package)] if package else [])]
        code = textwrap.dedent(script) + "\nimport json; print(json.dumps(out))"
        done = subprocess.run(
            [sys.executable, "-S", "-c", code],
            env={**_clean_environment(), "PYTHONPATH": os.pathsep.join(paths), **env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return Result(json.loads(done.stdout.splitlines()[-1]), done.stderr)


class Result:
    """What a script put into `out`, and its stderr."""

    def __init__(self, out: Any, stderr: str) -> None:
        self.out = out
        self.stderr = stderr


def _clean_environment() -> dict[str, str]:
    drop = ("PYTHON", "TSS_BENCH")
    return {name: value for name, value in os.environ.items() if not name.startswith(drop)}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


INSTALL = "from tss_bench import autoload; autoload.install()\n"
MODEL_TARGETS = INSTALL + (
    "import lm_eval.models; from lm_eval.api.registry import model_registry; "
    "out = model_registry.targets"
)
SCANNED = INSTALL + "from lm_eval.tasks import TaskManager; out = TaskManager().scanned"
HF = {"hf": "lm_eval.models.huggingface:HFLM"}


def test_models_of_every_installed_package_are_registered_as_text(site: Site) -> None:
    site.install("ours", "[lm_eval.models]\ntss_eagle = model_adapters.adapters:TssEagle\n")
    site.install("theirs", "[lm_eval.models]\ntheir-model = their_package.lm:Their.LM [extra]\n")
    result = site.run(MODEL_TARGETS)
    assert result.out == HF | {
        "tss_eagle": "model_adapters.adapters:TssEagle",
        "their-model": "their_package.lm:Their.LM",
    }
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("entry_points", "told"),
    [
        ("hf = their_package.lm:HF", "lm-eval has one of that name"),
        ("whole = their_package.lm", "names no class"),
    ],
)
def test_a_model_that_cannot_be_used_is_named(site: Site, entry_points: str, told: str) -> None:
    site.install("theirs", f"[lm_eval.models]\n{entry_points}\ngood = their_package.lm:LM\n")
    result = site.run(MODEL_TARGETS)
    assert result.out == HF | {"good": "their_package.lm:LM"}
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_of_two_packages_with_one_model_name_the_first_wins_and_the_other_is_named(
    site: Site,
) -> None:
    site.install("one", "[lm_eval.models]\nfast = a_package:LM\n")
    site.install("two", "[lm_eval.models]\nfast = b_package:LM\n")
    result = site.run(MODEL_TARGETS)
    assert result.out["fast"] == "a_package:LM"
    assert "model fast of b_package:LM is ignored" in result.stderr


def test_a_model_registered_before_by_its_decorator_stays(site: Site) -> None:
    site.install("ours", "[lm_eval.models]\ntss_ar = model_adapters.adapters:TssAR\n")
    before = (
        "from lm_eval.api.registry import model_registry as early\nearly.register('tss_ar', 7)\n"
    )
    assert site.run(before + MODEL_TARGETS).out == HF | {"tss_ar": 7}


def test_task_folders_come_between_the_built_in_and_the_asked_ones(site: Site) -> None:
    plugin = site.write("their_package/tasks/one.yaml", "task: one").parent
    site.write(
        "their_package/__init__.py",
        "from pathlib import Path\ndef folder(): return Path(__file__).parent / 'tasks'\n",
    )
    site.install("theirs", "[lm_eval.tasks]\ntheirs = their_package:folder\n")
    asked = site.folder / "asked"
    result = site.run(
        SCANNED
        + f"""
managers = {{
    "none": TaskManager(),
    "text": TaskManager(include_path={str(asked)!r}, metadata=3),
    "list": TaskManager(None, [{str(asked)!r}, "other"]),
    "same": TaskManager(include_path={str(plugin)!r}),
    "empty": TaskManager(include_path=""),
    "only": TaskManager(include_path={str(asked)!r}, include_defaults=False),
}}
out = {{name: [m.scanned, m.include_path, m.metadata] for name, m in managers.items()}}
"""
    )
    assert result.out == {
        "none": [["built-in", str(plugin)], None, None],
        "text": [["built-in", str(plugin), str(asked)], str(asked), 3],
        "list": [["built-in", str(plugin), str(asked), "other"], [str(asked), "other"], None],
        "same": [["built-in", str(plugin)], str(plugin), None],
        "empty": [["built-in", str(plugin)], "", None],
        "only": [[str(asked)], str(asked), None],
    }
    assert result.stderr == ""


@pytest.mark.parametrize(
    "body",
    [
        "here = str(Path(__file__).parent / 'tasks')",
        "here = Path(__file__).parent / 'tasks'",
        "def here(): return [str(Path(__file__).parent / 'tasks')]",
        "import their_package.tasks as here",
    ],
)
def test_a_task_target_may_be_a_path_a_function_or_a_package(site: Site, body: str) -> None:
    site.write("their_package/tasks/__init__.py", "")
    site.write("their_package/__init__.py", f"from pathlib import Path\n{body}\n")
    site.install("theirs", "[lm_eval.tasks]\ntheirs = their_package:here\n")
    assert site.run(SCANNED).out == ["built-in", str(site.folder / "their_package" / "tasks")]


def test_a_broken_task_plugin_is_named_and_the_others_stay(site: Site) -> None:
    site.write("good_package/__init__.py", "")
    site.write("gone_package.py", "folder = '/there/is/no/such/folder'\n")
    entries = "broken = no_such_package:folder\ngone = gone_package:folder\ngood = good_package"
    site.install("theirs", f"[lm_eval.tasks]\n{entries}\n")
    result = site.run(SCANNED)
    assert result.out == ["built-in", str(site.folder / "good_package")]
    first, second = result.stderr.splitlines()
    assert "tasks of broken (no_such_package:folder) are ignored" in first
    assert "no folder /there/is/no/such/folder" in second


def test_stands_aside_for_models_where_lm_eval_reads_their_group(site: Site) -> None:
    site.write("lm_eval/api/registry.py", DISCOVERING_REGISTRY)
    site.install("ours", "[lm_eval.models]\ntss_ar = model_adapters.adapters:TssAR\n")
    assert site.run(MODEL_TARGETS).out == HF
    loaded = MODEL_TARGETS + "; from lm_eval.api.registry import load_models; load_models()"
    assert site.run(loaded).out["tss_ar"] == "found by lm-eval itself"


def test_stands_aside_for_tasks_alone_where_lm_eval_reads_only_their_group(site: Site) -> None:
    site.write("lm_eval/tasks/manager.py", DISCOVERING_MANAGER)
    site.write("their_package/__init__.py", "")
    site.install("theirs", "[lm_eval.tasks]\nt = their_package\n[lm_eval.models]\nm = a:B\n")
    assert site.run(SCANNED).out == ["built-in"]
    assert site.run(MODEL_TARGETS).out == HF | {"m": "a:B"}


@pytest.mark.parametrize("value", ["0", "false", "No", " off "])
def test_the_switch_turns_it_off(site: Site, value: str) -> None:
    site.install("ours", "[lm_eval.models]\ntss_ar = model_adapters.adapters:TssAR\n")
    assert site.run(MODEL_TARGETS, TSS_BENCH_AUTOLOAD=value).out == HF


@pytest.mark.parametrize("value", ["1", "", "yes"])
def test_other_values_of_the_switch_leave_it_on(site: Site, value: str) -> None:
    site.install("ours", "[lm_eval.models]\ntss_ar = model_adapters.adapters:TssAR\n")
    assert "tss_ar" in site.run(MODEL_TARGETS, TSS_BENCH_AUTOLOAD=value).out


def test_works_on_an_lm_eval_that_is_already_imported(site: Site) -> None:
    site.write("their_package/__init__.py", "")
    site.install("theirs", "[lm_eval.tasks]\nt = their_package\n[lm_eval.models]\nm = a:B\n")
    early = "import lm_eval.models, lm_eval.tasks\n"
    assert site.run(early + MODEL_TARGETS).out == HF | {"m": "a:B"}
    assert site.run(early + SCANNED).out == ["built-in", str(site.folder / "their_package")]


def test_a_second_install_adds_nothing(site: Site) -> None:
    site.write("their_package/__init__.py", "")
    site.install("theirs", "[lm_eval.tasks]\nt = their_package\n")
    again = INSTALL + SCANNED + "\nimport sys; out.append(len(sys.meta_path))"
    once = SCANNED + "\nimport sys; out.append(len(sys.meta_path))"
    assert site.run(again).out == site.run(once).out


def test_a_changed_lm_eval_still_runs_and_one_line_says_what_is_missing(site: Site) -> None:
    site.write(
        "lm_eval/tasks/manager.py",
        "class TaskManager:\n    def __init__(self, roots=()): self.scanned = list(roots)\n",
    )
    result = site.run(SCANNED)
    assert result.out == []
    assert "cannot add installed plugins to lm_eval.tasks.manager" in result.stderr
    assert "TSS_BENCH_AUTOLOAD=0" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_start_up_file_is_one_import_line_that_installs_the_hook(site: Site) -> None:
    text = START_UP.read_text(encoding="utf-8")
    assert text.startswith("import ")
    assert text.count("\n") == 1
    site.write("site-packages/start.pth", text)
    site.install("ours", "[lm_eval.models]\ntss_ar = model_adapters.adapters:TssAR\n")
    start = f"import site; site.addsitedir({str(site.folder / 'site-packages')!r})\n"
    result = site.run(start + MODEL_TARGETS.removeprefix(INSTALL))
    assert result.out == HF | {"tss_ar": "model_adapters.adapters:TssAR"}


def test_the_start_up_file_is_silent_when_the_package_is_gone(site: Site) -> None:
    site.write("site-packages/start.pth", START_UP.read_text(encoding="utf-8"))
    start = f"import site; site.addsitedir({str(site.folder / 'site-packages')!r})\n"
    script = start + "import sys; out = [str(f) for f in sys.meta_path if 'tss' in str(f)]"
    result = site.run(script, package=None)
    assert (result.out, result.stderr) == ([], "")


def test_the_start_up_file_loads_little_in_under_five_milliseconds(site: Site) -> None:
    script = f"""
import os, sys, time
line = open({str(START_UP)!r}).read()
before = set(sys.modules)
start = time.perf_counter()
exec(line)
out = [time.perf_counter() - start, sorted(set(sys.modules) - before)]
"""
    runs = [site.run(script).out for _ in range(5)]
    assert all(loaded == ["__future__", "tss_bench", "tss_bench.autoload"] for _, loaded in runs)
    assert min(seconds for seconds, _ in runs) < 0.005


def test_the_installed_lm_eval_gets_the_models(tmp_path: Path) -> None:
    """The real lm-eval, not a stand-in: in a version that reads the group itself it does it."""
    pytest.importorskip("lm_eval")
    site = Site(tmp_path / "stand-in")
    path = str(site.folder / "only-metadata")
    info = "only-metadata/theirs-1.0.dist-info"
    site.write(f"{info}/METADATA", "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    site.write(f"{info}/entry_points.txt", "[lm_eval.models]\ntheir-model = their_model:LM\n")
    site.write(
        "only-metadata/their_model.py",
        "from lm_eval.api.registry import register_model\n"
        "from lm_eval.models.dummy import DummyLM\n"
        "@register_model('their-model')\nclass LM(DummyLM): pass\n",
    )
    code = INSTALL + (
        "from lm_eval.api.registry import get_model; print(get_model('their-model').__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**_clean_environment(), "PYTHONPATH": os.pathsep.join([path, str(ROOT)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1:] == ["their_model"], done.stderr


def test_every_declared_model_is_a_class_under_its_name() -> None:
    models = _project()["entry-points"]["lm_eval.models"]
    assert set(models) == set(ADAPTERS)
    drafters = [
        "ar",
        "eagle",
        "token_recycling",
        "samd",
        "prompt_lookup",
        "draft_model",
        "layerskip",
    ]
    paired = {f"{kind}_{drafter}" for kind in ("native", "tss") for drafter in drafters}
    assert set(models) == paired | {"early_exit"}
    for target in models.values():
        module, name = target.split(":")
        found = getattr(importlib.import_module(module), name)
        assert (found.__module__, found.__name__) == (module, name)


def test_the_declared_task_target_gives_the_task_folder() -> None:
    (target,) = _project()["entry-points"]["lm_eval.tasks"].values()
    module, name = target.split(":")
    assert getattr(importlib.import_module(module), name)() == ROOT / "tasks"


@pytest.mark.slow
def test_the_wheel_holds_packages_tasks_assets_and_the_start_up_file(tmp_path: Path) -> None:
    names = _build("build_wheel", tmp_path)
    expected = {
        path.replace("tasks/", "tss_bench/tasks/", 1) if path.startswith("tasks/") else path
        for folder in ("tss_bench", "model_adapters", "tasks")
        for path in _files(folder)
    }
    assert any(name.startswith("tss_bench/assets/maps/") for name in expected)
    assert any(name.endswith(".yaml") for name in expected)
    assert {name for name in names if ".dist-info/" not in name} == {*expected, START_UP.name}
    assert any(name.endswith("/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_editable_wheel_holds_a_path_file_that_sorts_before_the_start_up_file(
    tmp_path: Path,
) -> None:
    names = sorted(name for name in _build("build_editable", tmp_path) if ".dist-info/" not in name)
    assert names == ["_tss_bench.pth", START_UP.name]


def _build(hook: str, folder: Path) -> list[str]:
    """Names in the wheel that hatchling's `hook` builds from this checkout."""
    subprocess.run(
        [sys.executable, "-c", f"from hatchling.build import {hook}; {hook}({str(folder)!r})"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _files(folder: str) -> list[str]:
    """Files of a folder of the checkout, caches left out."""
    return [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]


def _project() -> dict[str, Any]:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project: dict[str, Any] = data["project"]
    return project
