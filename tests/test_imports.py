"""Imports: no cycle between modules, with the imports inside functions counted."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "placewright").rglob("*.py")
}
COMPILED = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in (SOURCE / "placewright").rglob("*.pyi")
}


class _Imports(ast.NodeVisitor):
    """Collects the modules of this package that one module imports at run time."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.targets: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.targets |= {alias.name for alias in node.names if alias.name in MODULES}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"{self.module} has a relative import"
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            if submodule in MODULES:  # the package itself is loaded, but nothing is read from it
                self.targets.add(submodule)
            elif node.module in MODULES and submodule not in COMPILED:
                self.targets.add(node.module)


def imports_of(module: str) -> set[str]:
    """The modules that a module imports, at its top or in a function."""
    imports = _Imports(module)
    imports.visit(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return imports.targets - {module}


def find_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """One cycle for each import that leads back to a module on the path to it."""
    state: dict[str, str] = {}
    cycles: list[list[str]] = []

    def visit(module: str, path: list[str]) -> None:
        state[module] = "open"
        for target in sorted(graph[module]):
            if state.get(target) == "open":
                cycles.append([*path[path.index(target) :], target])
            elif target not in state:
                visit(target, [*path, target])
        state[module] = "closed"

    for module in sorted(graph):
        if module not in state:
            visit(module, [module])
    return cycles


def test_a_cycle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert find_cycles(graph) == [["b", "c", "b"]]
    assert find_cycles({"a": {"b"}, "b": set()}) == []


def test_there_are_imports_to_check():
    assert "placewright.presets" in imports_of("placewright.cluster")
    assert "placewright.runtime.eager_fallback" not in imports_of("placewright.cluster")


def test_no_module_imports_itself_by_way_of_others():
    cycles = find_cycles({module: imports_of(module) for module in MODULES})
    assert cycles == [], "\n".join(" -> ".join(cycle) for cycle in cycles)
