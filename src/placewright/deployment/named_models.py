"""Models by name: a folder of transformers, a model of timm, or a function in a Python file.

`hf:PATH` is a local folder with a `config.json`; `timm:NAME` is built with random weights. Models
are built without data, and no code that comes with a folder is run.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.deployment.call_mix import Calls, Generate
from placewright.errors import ConfigError, FileError, MissingDependency, PlacewrightError
from placewright.frontends.model_spec import ModelSpec
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    import torch

HF, TIMM = "hf:", "timm:"
DEFAULT_SIZE = 3, 224, 224
"""Sizes of an image for a model of timm that does not say its own."""


@dataclass(frozen=True, eq=False)
class NamedModel:
    """A model that a text names.

    Args:
        model: On `meta`: it has sizes and no data.
        mix: The calls to plan for, if nothing else is requested.
        weights: The folder of its safetensors files, if there are any.
    """

    model: torch.nn.Module
    mix: Generate | Calls
    weights: Path | None = None


def is_library_model(text: str) -> bool:
    """Whether a text names a model of a library: `hf:PATH` or `timm:NAME`."""
    return text.startswith((HF, TIMM))


def build_named_model(text: str, batch: int = 1) -> NamedModel:
    """The model that a text names.

    Args:
        batch: Images of a call of a model of timm.

    Raises:
        FileError: There is no such folder or file, or it cannot be read.
        ConfigError: The text names no model that has calls.
        MissingDependency: A library is not installed.
    """
    torch = load_torch()
    if text.startswith(HF):
        return _transformers_model(Path(text.removeprefix(HF)).expanduser())
    if text.startswith(TIMM):
        return _timm_model(text.removeprefix(TIMM), batch)
    if ModelSpec.parse(text).is_python:
        from placewright.frontends.python_file import build_model

        model, args, kwargs = build_model(text)
        args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
        return NamedModel(model, Calls([(args, dict(kwargs))]))
    raise ConfigError(
        f"{text!r} has no calls to plan: expected hf:PATH, timm:NAME or model.py:build"
    )


def _transformers_model(folder: Path) -> NamedModel:
    if not (folder / "config.json").is_file():
        raise FileError(
            f"hf:{folder}: there is no config.json: expected a local folder of transformers"
        )
    torch, transformers = load_torch(), _import("transformers", "transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        model_class = _model_class(transformers, config, folder)
        with torch.device("meta"):
            model = model_class._from_config(config).eval()
    except PlacewrightError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise FileError(f"hf:{folder}: transformers cannot build it: {reason}") from error
    has_weights = any(folder.glob("*.safetensors"))
    return NamedModel(model, Generate(), folder if has_weights else None)


def _model_class(transformers: Any, config: Any, folder: Path) -> Any:
    """The class that the configuration names; one of the library's own."""
    for name in config.architectures or ():
        model_class = getattr(transformers, name, None)
        if isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel):
            return model_class
    named = ", ".join(config.architectures or ()) or "none"
    raise FileError(
        f"hf:{folder}: config.json names the architecture {named}: expected a model class of "
        "transformers; code of the folder is not run"
    )


def _timm_model(name: str, batch: int) -> NamedModel:
    torch, timm = load_torch(), _import("timm", "timm")
    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False).eval()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"timm:{name}: timm cannot build it: {reason}") from error
    settings = getattr(model, "default_cfg", None) or {}
    sizes = settings.get("input_size", DEFAULT_SIZE)
    return NamedModel(model, Calls([((torch.zeros(batch, *sizes),),)]))


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise MissingDependency(package, "torch") from None
        raise _broken(package, error) from error
    except Exception as error:
        raise _broken(package, error) from error


def _broken(package: str, error: Exception) -> ConfigError:
    reason = str(error).strip().partition("\n")[0]
    return ConfigError(
        f"{package} is installed but cannot be imported: {reason}; see that it, and torchvision "
        "where it needs that, are builds for the installed PyTorch"
    )
