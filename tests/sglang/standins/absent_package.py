"""Packages that SGLang imports and a text model on a CPU never calls: any name can be had, none works.

`pretend(__name__)` in a package's `__init__.py` makes the package and all its submodules such.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Absent(type):
    """A class whose attributes exist (members of enumerations are keys) and which cannot be called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Absent(f"{cls.__name__}.{name}", (), {})
        setattr(cls, name, value)
        return value

    def __call__(cls, *_args: Any, **_options: Any) -> Any:
        raise RuntimeError(f"{cls.__name__} is not here: this package is a stand-in")


class _AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Absent(f"{self.__name__}.{name}", (), {})
        setattr(self, name, value)
        return value


class _Submodules(MetaPathFinder, Loader):
    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith(self._prefix) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


def pretend(package: str) -> None:
    """Make the package being imported, and whatever is asked for below it, a stand-in."""
    sys.modules[package].__class__ = _AbsentModule
    sys.meta_path.append(_Submodules(package))
