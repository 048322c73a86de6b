"""Names that the help lists: the library's registries take too long to import for that."""

METHOD_NAMES = (
    *("single", "cpu-only", "expert", "accelerate", "random", "round-robin", "balanced", "heft"),
    *("cpop", "m-topo", "m-etf", "m-sct", "streamed", "metis", "kahip", "scotch", "mincut"),
    *("metis-repaired", "kahip-repaired", "scotch-repaired", "mincut-repaired", "cuts", "ideals"),
    *("baselines", "annealing", "auto", "islands", "exact", "lns", "local-search", "genetic"),
    *("cross-entropy", "population-annealing", "order-search"),
)
"""Those of `placewright.solvers.METHODS`."""
POLICY_NAMES = ("pair", "placeto", "go")
"""Those of `placewright.training.policy_solver.POLICY_SOLVERS`."""
RECIPE_NAMES = (
    *("colocrl", "colocrl-paper", "go", "go-paper", "hierarchical", "hierarchical-joint"),
    *(
        "hierarchical-paper",
        "hierarchical-open",
        "pair",
        "placeto",
        "placeto-steps",
        "placeto-paper",
    ),
    *("placeto-any", "placeto-joint"),
)
"""Those of `placewright.training.RECIPES`."""
TARGET_NAMES = (
    *("accelerate", "pipelining", "onnxruntime", "onnx", "openvino", "llama.cpp", "vllm"),
    "tensorflow",
)
"""Those of `placewright.exporters.TARGETS`."""
