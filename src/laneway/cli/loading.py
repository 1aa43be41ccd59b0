"""Loads the application that a command names: `module:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from laneway import Laneway
from laneway.errors import LanewayError, UsageError
from laneway.printable import escaped, redacted, without_passwords
from laneway.working.user_imports import importing, own_lines


def load_app(target: str, *, shows_lines: bool = True) -> Laneway:
    """
    Import the `Laneway` of `module:attribute`, `module.attribute`, or a module that has only one.
    The current folder is searched first. `shows_lines`: if the program fails, write its lines of
    the traceback on standard error.
    """
    if "://" in target:  # it may have a password
        raise UsageError(
            f"{redacted(target)}: this is a store's URL; name the program, like shop:app, and give"
            " the store by --url"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    module_name, _, attribute = target.partition(":")
    if (
        not attribute
        and "." in module_name
        and not module_name.endswith(".py")
        and not _is_module(module_name)
    ):
        module_name, _, attribute = module_name.rpartition(".")
    module = _import(target, module_name, shows_lines=shows_lines)
    if not attribute:
        apps = {
            name: value
            for name, value in vars(module).items()
            if isinstance(_plain(value, finalize=False), Laneway)
        }
        if len(set(map(id, apps.values()))) != 1:
            found = ", ".join(apps) or "none"
            raise UsageError(
                f"{target}: name the application, like {module_name}:app; {module.__file__} has:"
                f" {found}"
            )
        return cast("Laneway", _plain(next(iter(apps.values()))))
    if not hasattr(module, attribute):
        apps_named = [name for name, value in vars(module).items() if isinstance(value, Laneway)]
        hint = f"; did you mean {module_name}:{apps_named[0]}?" if apps_named else ""
        raise UsageError(
            f'{target}: the module {module_name} ({module.__file__}) has no "{attribute}"{hint}'
        )
    app = _plain(getattr(module, attribute))
    if not isinstance(app, Laneway):
        raise UsageError(f"{target}: expected a Laneway application, found {type(app).__name__}")
    return app


def _plain(found: object, *, finalize: bool = True) -> object:
    """The Laneway inside an application of `laneway.compat.celery`."""
    celery = sys.modules.get("laneway.compat.celery")
    if celery is None or not isinstance(found, celery.Celery):
        return found
    if finalize:
        try:
            found.finalize()
        except ImportError as error:
            raise UsageError(
                f"importing a module that the application names failed: {error}"
            ) from error
    return found.laneway


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import(target: str, name: str, *, shows_lines: bool) -> ModuleType:
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        hint = Path(name).stem if name.endswith(".py") or os.sep in name else "module"
        raise UsageError(
            f"{target}: expected a module name as in an import, not a file; write {hint}:app for"
            f' the "app" in {hint}.py'
        )
    try:
        with importing(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(
                f'{target}: there is no module "{error.name}" in {os.getcwd()} or among the'
                " installed packages"
            ) from error
        raise UsageError(
            f'{target}: importing {name} failed: it needs the module "{error.name}", which is not'
            " installed"
        ) from error
    except LanewayError as error:
        raise UsageError(f"{target}: importing {name} failed: {error}") from error
    except Exception as error:
        if shows_lines:
            sys.stderr.write(escaped(without_passwords(own_lines(error)), lines=True))
        raise UsageError(
            f"{target}: importing {name} failed: {type(error).__name__}: {error}"
        ) from error
