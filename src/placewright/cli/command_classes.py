"""The classes of commands: help in panels and 80 columns, defaults from a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from placewright.cli.config_file import use_config
from placewright.cli.general_options import CONFIG_KEY
from placewright.cli.panels import GENERAL, PANELS
from placewright.cli.wrapping import NO_BREAK_SPACE, keep_units

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_WIDTH = 80
_HYPHEN = "\u2011"

# Ranges say what an error says better: "[x>=1]", or after a default "; x>=1".
_RANGE = re.compile(r"\s*\[[\d.]*<?=?x[<>]=?[\d.]+\]|; x[<>]=?[\d.]+(?=[\];])")


class PanelCommand(TyperCommand):
    """A command whose help has a section per panel."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Such as `[OPTIONS] PLAN [MODEL]`."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_argument_usage, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the options of each panel."""
        arguments: list[tuple[str, str]] = []
        panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            text = _RANGE.sub("", record[1])
            if parameter.param_type_name == "argument":
                text = text.removesuffix("[required]").rstrip()
                arguments.append((_argument_name(parameter), text))
            else:
                panels[getattr(parameter, "rich_help_panel", None) or GENERAL].append(
                    (record[0], text)
                )
        _write_sections(formatter, {"Arguments": arguments, **panels})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, with the defaults of a configuration file."""
        if not ctx.resilient_parsing:
            use_config(self, ctx, args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            source = error.param and ctx.get_parameter_source(error.param.name)
            if source is not None and source.name == "DEFAULT_MAP":
                error.message += f" It is set in {ctx.meta[CONFIG_KEY][0]}."
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, with names and figures whole."""
        super().format_help(ctx, formatter)
        _restore_spaces(formatter)


class PanelGroup(TyperGroup):
    """The root command, whose help has a section per panel of commands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands first, since their names are what a reader looks for."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                panels.setdefault(panel, []).append((name, command.get_short_help_str(60)))
        records = (parameter.get_help_record(ctx) for parameter in self.get_params(ctx))
        options = [record for record in records if record is not None]
        _write_sections(formatter, {**panels, "Options": options})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, with names and figures whole."""
        super().format_help(ctx, formatter)
        _restore_spaces(formatter)


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()).strip("[]")


def _argument_usage(parameter: Any) -> str:
    name = _argument_name(parameter) + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def _write_sections(formatter: Any, sections: dict[str, Sequence[tuple[str, str]]]) -> None:
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl([(name, _join_words(text)) for name, text in records])


def _join_words(text: str) -> str:
    """Names with hyphens and figures with units must not be parted at the end of a line."""
    return keep_units(re.sub(r"(?<=\w)-(?=\w)", _HYPHEN, text))


def _restore_spaces(formatter: Any) -> None:
    formatter.buffer[:] = [
        piece.replace(_HYPHEN, "-").replace(NO_BREAK_SPACE, " ") for piece in formatter.buffer
    ]
