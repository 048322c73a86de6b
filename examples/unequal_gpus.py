"""A pipeline over unequal GPUs: the time per step once it is full, and where the cuts are.

    python examples/unequal_gpus.py
    placewright place transformer:blocks=24,tokens=512 --on RTX4090+2xRTX3060+cpu --objective period

Needs nothing but the core. A stage of a slow GPU has fewer layers, so that no GPU waits for
another. `auto` gains a little more, with stages that are not contiguous.
"""

from __future__ import annotations

import placewright as pw


def main() -> None:
    graph = pw.zoo.load("transformer:blocks=24,tokens=512")
    cluster = pw.Cluster.parse("RTX4090+2xRTX3060+cpu")
    problem = pw.Problem(graph, cluster, objective="period")
    comparison = pw.compare(problem, methods=["single", "balanced", "cuts"])
    print(comparison)

    best = comparison.best
    for number, device in enumerate(cluster.devices):
        modules = [
            graph.ops[op].module.split(".") for op in (best.plan.placement == number).nonzero()[0]
        ]
        layers = sorted({int(module[1]) for module in modules if module[0] == "blocks"})
        stage = f"layers {layers[0]} to {layers[-1]}" if layers else "no layer"
        print(f"{device.name} ({device.model}): {stage}")

    steps = pw.simulate_in_flight(problem, best.plan, steps=16)
    single = comparison.single_device
    print(
        f"a step every {1e3 * steps.interval:.1f} ms; on {comparison.single_device_name} alone one "
        f"every {1e3 * single.period:.1f} ms"
    )
    assert steps.interval < single.period


if __name__ == "__main__":
    main()
