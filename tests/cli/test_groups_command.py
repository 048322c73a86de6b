"""`placewright groups`: groupings compared under one search."""

from __future__ import annotations


def test_every_grouping_is_searched_with_the_same_budget(run):
    found = run(
        "groups", "branches:modules=2", "--on", "2xP100+cpu", "--evaluations", "300", "--json"
    )
    rows = {row["grouping"]: row for row in found.data["groupings"]}
    assert list(rows) == ["none", "colocation", "module", "coarse"]
    assert {row["evaluations"] for row in rows.values()} == {300}
    assert all(row["step_time"] <= found.data["single"] for row in rows.values())
    assert rows["coarse"]["convex"]
    assert rows["colocation"]["groups"] < rows["none"]["groups"]


def test_the_table_names_the_objective(run):
    ran = run("groups", "chain", "--on", "2xP100", "--objective", "period", "--evaluations", "70")
    assert ran.status == 0
    assert ran.out.splitlines()[2].split()[:4] == ["grouping", "groups", "convex", "period"]
    assert "best single device: " in ran.out
