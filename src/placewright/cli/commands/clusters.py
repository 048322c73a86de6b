"""`placewright clusters`: lists the devices and links that can be named, or shows one cluster."""

from typing import Annotated

import typer

from placewright.cli import options, panels
from placewright.cli.paths import find_cluster, find_machine, is_this_machine
from placewright.units import format_bytes, format_seconds


def list_clusters(
    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLUSTER]",
            help="A cluster to show: a file, or a string such as '2xRTX4090+cpu'. Quote one with "
            "parentheses: '2x(4xV100)@25GbE', 'MyGPU(24GB,82TF,1008GB/s)+cpu'.",
            show_default=False,
        ),
    ] = None,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources",
            help="Also show where the figures are from.",
            rich_help_panel=panels.OUTPUT,
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """List the devices and links that a cluster can name, or show the devices of one cluster."""
    from placewright.cli.render.json_output import print_json

    if cluster is not None:
        from placewright.cli.render.clusters import print_cluster
        from placewright.files.cluster import cluster_data

        machine = find_machine(cluster).cluster if is_this_machine(cluster) else None
        described = machine or find_cluster(cluster)
        if json:
            print_json(cluster_data(described))
        else:
            print_cluster(described, sources)
        return
    if json:
        print_json(_presets_data())
    else:
        _print_presets(sources)


def _presets_data() -> dict[str, object]:
    from placewright import presets

    return {
        "devices": [
            {
                "name": preset.name,
                "also": list(preset.also),
                "kind": preset.kind,
                "memory": preset.memory,
                "sizes": list(preset.sizes),
                "unified": preset.unified,
                "reserve": preset.reserve,
                "rates": dict(preset.rates),
                "bandwidth": preset.memory_bandwidth,
                "launch": preset.launch_overhead,
                "link": preset.link,
                "peer": preset.peer or None,
                "source": preset.source,
            }
            for preset in presets.device_presets()
        ],
        "links": [
            {
                "name": preset.name,
                "also": list(preset.also),
                "kind": preset.kind,
                "bandwidth": preset.bandwidth,
                "latency": preset.latency,
                "source": preset.source,
            }
            for preset in presets.link_presets()
        ],
    }


def _print_presets(sources: bool) -> None:
    from placewright import presets
    from placewright.cli.render import tables
    from placewright.cli.render.clusters import format_giga

    devices, links = presets.device_presets(), presets.link_presets()
    tables.print_table(
        ("device", "kind", "link", "memory", "float32", "float16", "GB/s", "launch"),
        [
            (
                preset.name,
                preset.kind,
                preset.link,
                format_bytes(preset.memory),
                f"{preset.float32 / 1e12:.4g} T",
                f"{preset.float16 / 1e12:.4g} T",
                format_giga(preset.memory_bandwidth),
                format_seconds(preset.launch_overhead),
            )
            for preset in devices
        ],
        text_columns=3,
        blank_line=False,
    )
    tables.print_table(
        ("link", "kind", "GB/s", "latency"),
        [
            (
                preset.name,
                preset.kind,
                format_giga(preset.bandwidth),
                format_seconds(preset.latency),
            )
            for preset in links
        ],
        text_columns=2,
    )
    lines = [
        "",
        "float32 and float16 are FLOP/s; GB/s is to memory, or over a link one way.",
        "Clusters: 2xRTX4090+cpu, 8xA100-nvlink, M2-Max-64GB; with quotes in a shell:",
        "'2x(4xV100-nvlink+cpu)@25GbE', 'MyGPU(24GB,82TF,1008GB/s)+cpu'.",
    ]
    if sources:
        lines += ["", "Sources", *(f"{preset.name}: {preset.source}" for preset in devices)]
        lines += [f"{preset.name}: {preset.source}" for preset in links]
    else:
        lines.append("--sources shows where the figures are from, and which are unverified.")
    tables.print_lines(lines)
