"""Weight loading: an index names files of its own folder alone."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import save_file  # noqa: E402

from placewright.errors import FileError  # noqa: E402
from placewright.runtime.weight_loading import load_weights  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    """A folder with an index, and weights beside the folder that it must not read."""
    inner = tmp_path / "model"
    (inner / "parts").mkdir(parents=True)
    weights = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    for path in (tmp_path / "other.safetensors", inner / "parts" / "own.safetensors"):
        save_file(weights, path)

    def with_index(name):
        index = {"weight_map": dict.fromkeys(weights, name)}
        (inner / "model.safetensors.index.json").write_text(json.dumps(index))
        return inner

    return with_index


def meta_layer():
    with torch.device("meta"):
        return torch.nn.Linear(2, 2)


def test_files_below_the_index_are_read(folder):
    layer = meta_layer()
    load_weights(layer, folder("parts/own.safetensors"), {})
    assert (layer.weight == 1).all()


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "parts/../../other.safetensors", "ABSOLUTE", r"..\other.safetensors",
     r"C:\other.safetensors", "", "a\0b", 7, None],
)  # fmt: skip
def test_a_name_that_leaves_the_folder_is_refused(folder, tmp_path, name):
    name = str(tmp_path / "other.safetensors") if name == "ABSOLUTE" else name
    with pytest.raises(FileError, match="expected names of files in the index's folder"):
        load_weights(meta_layer(), folder(name), {})
