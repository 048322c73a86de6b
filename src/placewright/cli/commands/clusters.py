"""`placewright clusters`: the devices and links that a cluster can name out."""

from placewright.cli import options
from placewright.units import format_bytes, format_seconds


def list_clusters(json: options.Json = False) -> None:
    """List the devices and links that a cluster string can name, and where the figures are from."""
    from placewright import presets
    from placewright.cli.render import tables
    from placewright.cli.render.json_output import print_json

    devices, links = presets.names(), presets.links()
    if json:
        print_json(
            {
                "devices": [
                    {
                        "name": each.name,
                        "also": list(each.also),
                        "kind": each.kind,
                        "memory": each.memory,
                        "reserve": each.reserve,
                        "rates": dict(each.rates),
                        "bandwidth": each.bandwidth,
                        "launch": each.launch,
                        "link": each.link,
                        "peer": each.peer or None,
                        "source": each.source,
                    }
                    for each in devices
                ],
                "links": [
                    {
                        "name": each.name,
                        "also": list(each.also),
                        "kind": each.kind,
                        "bandwidth": each.bandwidth,
                        "latency": each.latency,
                        "source": each.source,
                    }
                    for each in links
                ],
            }
        )
        return
    tables.print_table(
        ("device", "kind", "link", "peer", "memory", "float32", "float16", "GB/s", "launch"),
        [
            (
                each.name,
                each.kind,
                each.link,
                each.peer or "–",
                format_bytes(each.memory),
                f"{each.float32 / 1e12:.4g} T",
                f"{each.float16 / 1e12:.4g} T",
                _giga(each.bandwidth),
                format_seconds(each.launch),
            )
            for each in devices
        ],
        left=4,
        space=False,
    )
    tables.print_table(
        ("link", "kind", "GB/s", "latency"),
        [
            (each.name, each.kind, _giga(each.bandwidth), format_seconds(each.latency))
            for each in links
        ],
        left=2,
    )
    sources = [f"{each.name}: {each.source}" for each in devices]
    sources += [f"{each.name}: {each.source}" for each in links]
    about = "float32 and float16 are FLOP/s; GB/s is to memory, or over a link, one way."
    example = "Write clusters as in 2xP100+cpu, 8xA100-nvlink, 2x(4xV100-nvlink+cpu)@25GbE."
    tables.print_lines(["", about, example, "", "Sources", *sources])


def _giga(rate: float) -> str:
    return f"{rate / 1e9:,.4g}"
