"""Start-up hook: lm-eval finds installed models and task folders by their entry points.

lm-eval 0.4.13 knows only what lies in its own source tree; its main branch reads the entry-point
group `lm_eval.models`, and a group `lm_eval.tasks` is proposed. `tss_bench_autoload.pth` calls
`install()` at every start of Python in this environment. `install` adds one import hook that
brings this discovery to the lm-eval at hand, for every installed package, once lm-eval imports
`lm_eval.models` and `lm_eval.tasks.manager`. Where lm-eval reads a group itself the hook leaves
that group alone. `TSS_BENCH_AUTOLOAD=0` switches it off.

May import: the standard library only, and at import time only what a bare interpreter has loaded.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from importlib.metadata import EntryPoint
    from pathlib import Path
    from types import CodeType, ModuleType
    from typing import Any

SWITCH = "TSS_BENCH_AUTOLOAD"
MODEL_GROUP = "lm_eval.models"
TASK_GROUP = "lm_eval.tasks"

_OFF = ("0", "false", "no", "off")
_MODEL_READERS = ("lm_eval.models", "lm_eval.api.registry")
_TASK_READERS = (
    "lm_eval.tasks",
    "lm_eval.tasks.manager",
    "lm_eval.tasks._index",
    "lm_eval.api.registry",
)


def install() -> None:
    """Add the import hook, once; does nothing when `TSS_BENCH_AUTOLOAD` is 0, false, no or off."""
    if os.environ.get(SWITCH, "").strip().lower() in _OFF:
        return
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in _EXTENSIONS:
        if name in sys.modules:
            _extend(sys.modules[name])


class _Finder:
    """Meta-path finder that lets the finders after it find, and extends two modules of lm-eval."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _EXTENSIONS:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    _extend_after_import(spec.loader)
                return spec
        return None


def _extend_after_import(loader: Any) -> None:
    run_module = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run_module(module)
        _extend(module)

    loader.exec_module = exec_module


def _extend(module: ModuleType) -> None:
    try:
        _EXTENSIONS[module.__name__](module)
    except Exception as error:  # lm-eval must go on without plugins, whatever changed in it
        _warn(
            f"cannot add installed plugins to {module.__name__} of this lm-eval: "
            f"{type(error).__name__}: {error}. {SWITCH}=0 switches the attempt off"
        )


def _add_models(models: ModuleType) -> None:
    """Register the `lm_eval.models` entry points as text: a module loads when its model is used."""
    if _is_read_by(MODEL_GROUP, _MODEL_READERS):
        return
    registry = sys.modules["lm_eval.api.registry"].model_registry
    targets: dict[str, str] = {}
    for entry in _entry_points(MODEL_GROUP):
        target = f"{entry.module}:{entry.attr}"
        if not entry.attr:
            _warn(f"model {entry.name} is ignored: {entry.value!r} names no class (module:Class)")
        elif entry.name in models.MODEL_MAPPING:
            _warn(f"model {entry.name} of {target} is ignored: lm-eval has one of that name")
        elif targets.setdefault(entry.name, target) != target:
            _warn(f"model {entry.name} of {target} is ignored: {targets[entry.name]} has that name")
        elif entry.name not in registry:
            registry.register(entry.name, target=target)


def _add_task_folders(manager: ModuleType) -> None:
    """Let every new TaskManager scan the `lm_eval.tasks` folders after lm-eval's own.

    Order: built-in tasks, plugins, the user's `include_path`; later ones win. A manager made
    with `include_defaults=False` sees no plugin.
    """
    if _is_read_by(TASK_GROUP, _TASK_READERS):
        return
    import functools
    import inspect

    original = manager.TaskManager.__init__
    signature = inspect.signature(original)
    if not {"include_path", "include_defaults"} <= signature.parameters.keys():
        raise TypeError("TaskManager takes no include_path and include_defaults")

    @functools.wraps(original)
    def with_plugins(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        asked = call.arguments["include_path"]
        if call.arguments["include_defaults"]:
            call.arguments["include_path"] = _task_folders(asked) or None
        original(*call.args, **call.kwargs)
        self.include_path = asked

    manager.TaskManager.__init__ = with_plugins


_EXTENSIONS: dict[str, Callable[[ModuleType], None]] = {
    "lm_eval.models": _add_models,
    "lm_eval.tasks.manager": _add_task_folders,
}


def _task_folders(asked: str | Path | Sequence[str | Path] | None) -> list[Path]:
    """Plugin folders, then the `asked` ones; a plugin folder that was asked for comes once."""
    from pathlib import Path

    if isinstance(asked, (str, os.PathLike)):
        asked = [asked] if asked else []
    own = [Path(folder) for folder in asked or ()]
    taken = {folder.resolve() for folder in own}
    plugins = []
    for entry in _entry_points(TASK_GROUP):
        for folder in _folders_of(entry):
            if folder.resolve() not in taken:
                taken.add(folder.resolve())
                plugins.append(folder)
    return plugins + own


def _folders_of(entry: EntryPoint) -> Iterator[Path]:
    """Folders of one entry point: a path, a package, or a function that returns a path or paths."""
    from pathlib import Path

    try:
        found: Any = entry.load()
        if callable(found):
            found = found()
        found = getattr(found, "__path__", found)
        folders: list[Any] = [found] if isinstance(found, (str, os.PathLike)) else list(found)
    except Exception as error:  # one broken plugin must not take the other tasks away
        _warn(f"tasks of {entry.name} ({entry.value}) are ignored: {type(error).__name__}: {error}")
        return
    for folder in (Path(name) for name in folders):
        if folder.is_dir():
            yield folder
        else:
            _warn(f"tasks of {entry.name} ({entry.value}) are ignored: no folder {folder}")


def _entry_points(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))


def _is_read_by(group: str, modules: Sequence[str]) -> bool:
    """Whether the code of one of these loaded modules holds the group's name as a constant."""
    loaded = (sys.modules[name] for name in modules if name in sys.modules)
    return any(_has_constant(_code_of(module), group) for module in loaded)


def _code_of(module: ModuleType) -> CodeType | None:
    loader: Any = getattr(module.__spec__, "loader", None)
    return loader.get_code(module.__name__) if hasattr(loader, "get_code") else None


def _has_constant(value: object, text: str) -> bool:
    nested = getattr(value, "co_consts", value)
    if isinstance(nested, (tuple, frozenset)):
        return any(_has_constant(item, text) for item in nested)
    return isinstance(nested, str) and nested == text


def _warn(message: str) -> None:
    import logging

    logging.getLogger(__name__).warning("tss-bench: %s", message)
