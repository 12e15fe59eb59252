"""From a name to an environment: Gymnasium ids, MODULE:NAME, FILE.py:NAME, environments and what builds one.

Only environments are ever called: a class that is one, or a function that builds one. Nothing of the standard library
is imported for a name, and every failure is one line with its place.
"""

from __future__ import annotations

import copy
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from tailsafe.envs.jax_env import JaxEnv
from tailsafe.errors import InputError, place_of

Factory = Callable[..., Any]


@dataclass(frozen=True)
class Source:
    """How another process builds an environment again.

    reference: a Gymnasium id, MODULE:NAME or FILE.py:NAME. arguments: of its constructor or function. folder: where
    MODULE was found, if that was beside the user and not among the installed ones.
    """

    reference: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None

    @property
    def names_code(self) -> bool:
        """Whether building it runs code that is not an installed environment's own, as registered."""
        return self.reference not in gymnasium.registry or bool(self.arguments)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"reference": self.reference, "arguments": dict(self.arguments), "folder": self.folder}

    @staticmethod
    def from_json(data: Any) -> Source:
        """What `to_json` wrote."""
        if not isinstance(data, Mapping):
            raise InputError("the source of the environment must be an object")
        reference, arguments, folder = (data.get(key) for key in ("reference", "arguments", "folder"))
        named = isinstance(reference, str) and (folder is None or isinstance(folder, str))
        if not named or not isinstance(arguments, dict):
            raise InputError("the source of the environment must have a reference, arguments and a folder")
        return Source(str(reference), arguments, folder)


@dataclass(frozen=True)
class Found:
    """make: builds the environment. text: its name for folders. source: None where no other process could find it."""

    make: Factory
    text: str
    source: Source | None

    @property
    def name(self) -> str:
        """For messages and files."""
        return self.text if self.source is None else self.source.reference


def find_environment(task: Any, arguments: Mapping[str, Any] | None = None) -> Found:
    """What `task` stands for: a name, a `Source`, an environment, or a function or class that builds one."""
    arguments = dict(arguments or {})
    if isinstance(task, str):
        task = Source(_absolute(task), _checked(arguments), _folder_of(task))
    if isinstance(task, Source):
        text = Path(task.reference).stem + "." + task.reference.rpartition(":")[2] if _is_file(task.reference) else ""
        text = text or task.reference.replace(":", ".").replace("/", ".")
        return Found(functools.partial(_factory(task), **task.arguments), text, task)
    if isinstance(task, gymnasium.Env | JaxEnv):
        if arguments:
            raise InputError("arguments are for what builds an environment; this one is built already")
        return _of_object(task)
    if callable(task):
        name = getattr(task, "__qualname__", type(task).__name__).rpartition(".")[2].strip("<>")
        reference = _reference(task)
        source = None if reference is None else Source(reference, _checked(arguments), _folder_of(reference))
        return Found(functools.partial(task, **arguments), name, source)
    raise InputError(f"task must be a name, an environment or what builds one, got {type(task).__name__}")


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE` of the command line; numbers, true, false, null and JSON lists are read as such, others as text."""
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise InputError(f"--env-arg {text!r}: write NAME=VALUE, as in size=5")
        try:
            arguments[name.strip()] = json.loads(value)
        except ValueError:
            arguments[name.strip()] = value
    return arguments


def nearest(name: str, known: Sequence[str]) -> str:
    """`; did you mean ...?` or nothing."""
    near = difflib.get_close_matches(name, [*known, *gymnasium.registry], n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def misfit(make: Factory) -> str:
    """`; its arguments ...` where what builds an environment was called with the wrong ones, or nothing."""
    built, given = (make.func, make.keywords) if isinstance(make, functools.partial) else (make, {})
    try:
        signature = inspect.signature(built)
    except (TypeError, ValueError):  # written in C
        return ""
    try:
        signature.bind(**given)
    except TypeError:
        names = ", ".join(map(str, signature.parameters.values())) or "none"
        return f"; its arguments (--env-arg NAME=VALUE) are: {names}"
    return ""


# --- names ------------------------------------------------------------------------------------------------------------


def _factory(source: Source) -> Factory:
    """What builds a source, without its arguments."""
    reference = source.reference
    if reference in gymnasium.registry:
        # Our own adapter checks more than the passive checker does.
        return functools.partial(gymnasium.make, reference, disable_env_checker=True)
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise InputError(f"{reference!r} is neither a Gymnasium id nor of the form MODULE:CLASS or FILE.py:CLASS")
    module = _from_file(Path(place)) if _is_file(reference) else _from_module(place, source.folder)
    if reference in gymnasium.registry:  # MODULE:ID, registered by importing the module
        return functools.partial(gymnasium.make, reference, disable_env_checker=True)
    try:
        found = operator.attrgetter(name)(module)
    except AttributeError:
        near = difflib.get_close_matches(name, [key for key in vars(module) if not key.startswith("_")], n=1)
        raise InputError(f"{place} has no {name!r}" + (f"; did you mean {near[0]}?" if near else "")) from None
    inner = found.func if isinstance(found, functools.partial) else found
    is_class = isinstance(inner, type) and issubclass(inner, gymnasium.Env | JaxEnv)
    if not (is_class or inspect.isfunction(inner)):
        raise InputError(f"{reference!r} is neither a Gymnasium environment nor a function that builds one")
    return found  # type: ignore[no-any-return]


def _from_module(name: str, folder: str | None) -> ModuleType:
    root = name.partition(".")[0]
    if root in sys.stdlib_module_names:
        raise InputError(f"{name!r} is a module of Python itself; no environment is in it")
    stale = sys.modules.get(root)
    if folder is not None and stale is not None and not _inside(stale, folder):
        # Another folder's module of the same name.
        for key in [key for key in sys.modules if key == root or key.startswith(root + ".")]:
            del sys.modules[key]
    with _first_on_path(folder):
        module: ModuleType = _imported(name, lambda: importlib.import_module(name))
        return module


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    # Not its own name: a file may be called as a module that others need.
    name = f"_tailsafe_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader
    sys.modules[name] = module
    try:
        with _first_on_path(str(path.parent)):
            _imported(str(path), lambda: loader.exec_module(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _imported(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            near = difflib.get_close_matches(name, sorted(path.stem for path in Path.cwd().glob("*.py")), n=1)
            advice = f"; did you mean {near[0]}?" if near else ""
            reason = f"there is no module {missing!r} in {Path.cwd()}, and none is installed{advice}"
            raise InputError(f"cannot import {name!r}: {reason}") from error
        raise InputError(f"cannot import {name!r}: {place_of(error)}") from error


@contextmanager
def _first_on_path(folder: str | None) -> Iterator[None]:
    """`folder` comes first while a module is imported, and last afterwards, for what it imports later."""
    if folder is None:
        yield
        return
    importlib.invalidate_caches()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _is_file(reference: str) -> bool:
    return reference.rpartition(":")[0].endswith(".py")


def _absolute(name: str) -> str:
    """FILE.py:NAME by the absolute path, so that it is found from any folder."""
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{attribute}" if _is_file(name) else name


def _folder_of(name: str) -> str | None:
    """The folder that MODULE of MODULE:NAME is found in: the one the user is in, or one that was added to the path."""
    module, _, _ = name.rpartition(":")
    if not module or _is_file(name) or name in gymnasium.registry:
        return None
    root = module.partition(".")[0]
    for folder in (os.getcwd(), *sys.path):
        here = Path(folder or os.getcwd())
        if (here / f"{root}.py").is_file() or (here / root).is_dir():
            return None if "site-packages" in here.parts else str(here.resolve())
    return None


def _inside(module: ModuleType, folder: str) -> bool:
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(place is not None and Path(place).resolve().is_relative_to(folder) for place in places)


# --- objects ----------------------------------------------------------------------------------------------------------


def _of_object(env: Any) -> Found:
    if isinstance(env, JaxEnv):  # pure functions: no state to copy
        return Found(lambda: env, type(env).__name__, None)
    identity = _identity(env)
    return Found(lambda: _copied(env), type(env.unwrapped).__name__, None if identity is None else Source(identity))


def _reference(factory: Any) -> str | None:
    """MODULE:NAME if that is where another process would find it."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    if not module or module == "__main__" or getattr(sys.modules.get(module), name, None) is not factory:
        return None
    return f"{module}:{name}"


def _identity(env: gymnasium.Env[Any, Any]) -> str | None:
    """The Gymnasium id of an environment that is what `gymnasium.make(id)` builds, no more and no less."""
    spec = env.spec
    plain = spec is not None and not spec.additional_wrappers and spec == gymnasium.registry.get(spec.id)
    return spec.id if spec is not None and plain else None


def _copied(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """A copy of an environment object, each with a state of its own."""
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise InputError(
            f"{type(env.unwrapped).__name__} cannot be copied ({error}); pass what builds it instead: task=lambda: ..."
        ) from None


def _checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a file can hold."""
    try:
        json.dumps(dict(arguments), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the environment's arguments must be plain values: {error}") from None
    return dict(arguments)
