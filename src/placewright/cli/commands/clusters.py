"""`placewright clusters`: lists the devices and links that a cluster can name."""

from placewright.cli import options
from placewright.units import format_bytes, format_seconds


def list_clusters(json: options.Json = False) -> None:
    """List the devices and links that a cluster string can name, with their sources."""
    from placewright import presets
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json

    devices, links = presets.device_presets(), presets.link_presets()
    if json:
        print_json(
            {
                "devices": [
                    {
                        "name": preset.name,
                        "also": list(preset.also),
                        "kind": preset.kind,
                        "memory": preset.memory,
                        "reserve": preset.reserve,
                        "rates": dict(preset.rates),
                        "bandwidth": preset.bandwidth,
                        "launch": preset.launch,
                        "link": preset.link,
                        "peer": preset.peer or None,
                        "source": preset.source,
                    }
                    for preset in devices
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
                    for preset in links
                ],
            }
        )
        return
    tables.print_table(
        ("device", "kind", "link", "peer", "memory", "float32", "float16", "GB/s", "launch"),
        [
            (
                preset.name,
                preset.kind,
                preset.link,
                preset.peer or "–",
                format_bytes(preset.memory),
                f"{preset.float32 / 1e12:.4g} T",
                f"{preset.float16 / 1e12:.4g} T",
                _format_giga(preset.bandwidth),
                format_seconds(preset.launch),
            )
            for preset in devices
        ],
        text_columns=4,
        blank_line=False,
    )
    tables.print_table(
        ("link", "kind", "GB/s", "latency"),
        [
            (
                preset.name,
                preset.kind,
                _format_giga(preset.bandwidth),
                format_seconds(preset.latency),
            )
            for preset in links
        ],
        text_columns=2,
    )
    sources = [f"{preset.name}: {preset.source}" for preset in devices]
    sources += [f"{preset.name}: {preset.source}" for preset in links]
    about = "float32 and float16 are FLOP/s; GB/s is to memory, or over a link in one direction."
    example = "Clusters: 2xP100+cpu, 8xA100-nvlink, '2x(4xV100-nvlink+cpu)@25GbE' (quoted)."
    tables.print_lines(["", about, example, "", "Sources", *sources])


def _format_giga(rate: float) -> str:
    return f"{rate / 1e9:,.4g}"
