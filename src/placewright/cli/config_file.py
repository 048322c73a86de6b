"""`placewright.toml`: defaults of options, for all commands that plan and for each command.

Keys are the long names of options and arguments. Those above all sections are for the commands that
take a model and build a problem of it; a section such as `[place]` is for its command. What is
typed goes before the section, and that before the keys above all sections.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cli.general_options import CONFIG_KEY, META_KEY
from placewright.errors import ConfigError, FileError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE_NAME = "placewright.toml"
_NOT_DEFAULTS = frozenset({"help", "version", "config", "install-completion", "show-completion"})
_PATHS = frozenset({"FILE", "DIR", "PATH", "PLAN", "RESULT"})  # metavars of paths
_MODEL_SUFFIXES = (".py", ".json", ".toml", ".gz", ".txt", ".onnx", ".pb", ".pbtxt")
# A file that names its problem, or a saved run, has options of its own, which go first.
_SAVED_OPTIONS = ("resume",)
_SHARED = ("store",)  # keys above all sections that are for every command that has the option


@dataclass(frozen=True)
class ConfigFile:
    """A file of defaults.

    Args:
        values: What it sets above all sections, by key.
        sections: What it sets for single commands, by their names.
    """

    path: Path
    values: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]

    def defaults(self, name: str, command: Any, typed: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults of a command's parameters, by their names in Python.

        Args:
            typed: What is on the command line.

        Raises:
            ConfigError: A value is of another kind than its option.
        """
        chosen = dict(self.sections.get(name, {}))
        if plans_model(command) and not any(typed.get(each) for each in _SAVED_OPTIONS):
            chosen = {**self.values, **chosen}
        chosen = {**{key: self.values[key] for key in _SHARED if key in self.values}, **chosen}
        found = {}
        for parameter in command.params:
            key = key_of(parameter)
            if key in chosen:
                found[parameter.name] = self._read_value(parameter, key, chosen[key])
        return found

    def _read_value(self, parameter: Any, key: str, value: object) -> Any:
        if getattr(parameter, "is_flag", False):
            if not isinstance(value, bool):
                raise self._mismatch(key, value, "true or false")
            return value
        is_list = parameter.nargs != 1 or getattr(parameter, "multiple", False)
        if is_list:
            items = value if isinstance(value, list) else [value]
            return [self._read_text(parameter, key, item) for item in items]
        return self._read_text(parameter, key, value)

    def _read_text(self, parameter: Any, key: str, value: object) -> str | int | float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._mismatch(key, value, "text or a number")
        if not isinstance(value, str):
            return value if getattr(parameter, "count", False) else str(value)
        return self._resolve(parameter, key, value)

    def _resolve(self, parameter: Any, key: str, text: str) -> str:
        """A path in the file is relative to the file."""
        head = text.partition(":")[0]
        folder = self.path.parent
        if key in ("model", "on"):
            is_path = head.endswith(_MODEL_SUFFIXES) or "/" in head or (folder / head).exists()
            is_path = is_path and not (key == "model" and _is_built_in(head))
        else:
            is_path = (parameter.metavar or "").strip("[].") in _PATHS and head != "here"
            is_path = is_path and not (key == "store" and (text == "none" or "://" in text))
        if not is_path or os.path.isabs(text) or folder.resolve() == Path.cwd():
            return text
        return os.path.relpath(folder / text)

    def _mismatch(self, key: str, value: object, expected: str) -> ConfigError:
        return ConfigError(f"{self.path}: {key} is {value!r}: expected {expected}")


def use_config(command: Any, context: Any, arguments: Sequence[str]) -> None:
    """Let the file that is named or found set the defaults of a command.

    Raises:
        PlacewrightError: The file is missing or malformed, or sets what there is not.
    """
    typed, _, _ = command.make_parser(context).parse_args(args=list(arguments))
    if "help" in typed:
        return
    named = typed.get("config") or context.meta.get(META_KEY, {}).get("config")
    path = find_config(Path.cwd()) if named is None else Path(named)
    if path is not None:
        config = read_config(path, context.parent.command.commands)
        context.default_map = config.defaults(context.info_name, command, typed)
        context.meta[CONFIG_KEY] = (
            path,
            tuple(name for name in context.default_map if typed.get(name) is None),
        )


def find_config(folder: Path) -> Path | None:
    """The file in this folder or in the nearest one above it.

    Raises:
        ConfigError: It belongs to another user, who would choose what is run here.
    """
    for each in (folder, *folder.parents):
        path = each / FILE_NAME
        if path.is_file():
            owner = path.stat().st_uid
            if hasattr(os, "getuid") and owner not in (0, os.getuid()):
                raise ConfigError(
                    f"{path}: belongs to another user: add --config {path} if you trust it"
                )
            return path
    return None


def read_config(path: Path, commands: Mapping[str, Any]) -> ConfigFile:
    """A file of defaults, all of whose keys are options of these commands.

    Raises:
        FileError: It cannot be read, or is not TOML.
        ConfigError: A key is unknown.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: is not TOML: {error}") from None
    everywhere = {
        key for each in commands.values() if plans_model(each) for key in _known_keys(each)
    }
    values: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            if name not in commands:
                raise ConfigError(
                    f"{path}: no command is named {name!r}: {nearest(name, commands)}"
                )
            known = _known_keys(commands[name])
            sections[name] = {_checked_key(path, key, known, name): value[key] for key in value}
        else:
            values[_checked_key(path, name, everywhere, "")] = value
    return ConfigFile(path, values, sections)


def plans_model(command: Any) -> bool:
    """Whether a command takes a model as an argument and builds a problem of it."""
    kinds = {parameter.name: parameter.param_type_name for parameter in command.params}
    return kinds.get("model") == "argument" and {"on", "pin"} <= kinds.keys()


def key_of(parameter: Any) -> str:
    """A parameter's key: its long name on the command line, or that of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.name).replace("_", "-")
    return str(max(parameter.opts, key=len).lstrip("-"))


def _known_keys(command: Any) -> set[str]:
    shown = (each for each in command.params if not getattr(each, "hidden", False))
    return {key_of(parameter) for parameter in shown} - _NOT_DEFAULTS


def _checked_key(path: Path, key: str, known: set[str], section: str) -> str:
    name = key.replace("_", "-")
    if name not in known:
        owner = f"[{section}] has" if section else "commands that plan have"
        raise ConfigError(f"{path}: {owner} no option {key!r}: {nearest(name, sorted(known))}")
    return name


def _is_built_in(name: str) -> bool:
    from placewright import zoo

    return name in zoo.ENTRIES
