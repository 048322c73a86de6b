"""The benchmark of models under a limit of memory: cells, lines and llama.cpp's output."""

from __future__ import annotations

import json
import sys

import pytest

torch = pytest.importorskip("torch")

from benchmarks.generate import llama_cpp, measure  # noqa: E402
from benchmarks.generate.measure import main  # noqa: E402
from benchmarks.generate.models import build  # noqa: E402


def test_a_cell_runs_once_and_its_line_is_kept(tmp_path, capsys, monkeypatch):
    pytest.importorskip("transformers")
    arguments = ["--small", "--models", "resnet-152", "--ways", "gpu", "--limits", "0.5"]
    path = tmp_path / "rows.jsonl"
    main([*arguments, "--out", str(path)])
    (row,) = map(json.loads, path.read_text().splitlines())
    assert (row["model"], row["limit_share"], row["way"], row["error"]) == (
        *("resnet-152", 0.5, "gpu", ""),
    )
    assert row["call_seconds"] > 0
    assert row["limit"] == row["weights"] // 2
    monkeypatch.setattr(measure, "run_child", None)
    main([*arguments, "--out", str(path)])
    assert "| resnet-152 | 0.5 | gpu |" in capsys.readouterr().out


def test_the_best_setting_of_llama_cpp_is_taken(tmp_path):
    program = tmp_path / "llama-bench"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "layers = int(sys.argv[sys.argv.index('-ngl') + 1])\n"
        "print(json.dumps([{'n_prompt': 512, 'n_gen': 0, 'avg_ts': 512.0 * layers},\n"
        "                  {'n_prompt': 0, 'n_gen': 16, 'avg_ts': 2.0 * layers}]))\n"
    )
    program.chmod(0o755)
    (tmp_path / "model.gguf").write_bytes(b"1234")
    arguments = ["--models", "llama", "--ways", "llama.cpp", "--limits", "0.5"]
    arguments += ["--llama-bench", str(program), "--gguf", str(tmp_path / "model.gguf")]
    main([*arguments, "--layers", "4,5", "--threads", "2", "--out", str(tmp_path / "rows.jsonl")])
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["error"] == ""
    assert row["note"] == "-ngl 5, 2 threads"
    assert (row["prompt_seconds"], row["token_seconds"]) == (0.2, 0.1)


def test_the_source_of_llama_cpp_is_cut_to_one_program_and_two_backends():
    needed = ["CMakeLists.txt", "ggml/src/ggml.c", "ggml/src/ggml-cuda/mmq.cu", "vendor/stb/a.h"]
    assert all(llama_cpp.is_needed(name) for name in [*needed, "tools/llama-bench/main.cpp"])
    others = ["ggml/src/ggml-vulkan/a.cpp", "tools/server/a.cpp", "vendor/x/a.h", "tests/a.cpp", ""]
    assert not any(llama_cpp.is_needed(name) for name in others)


def test_every_weight_of_the_llama_has_a_name_in_a_gguf():
    pytest.importorskip("transformers")
    names = build("llama", True, "meta").state_dict()
    made = {llama_cpp.gguf_name(name) for name in names}
    assert len(made) == len(names)
    assert {"token_embd.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"} <= made


def test_rows_of_rotary_projections_are_interleaved():
    rows = torch.arange(8).view(8, 1)  # two heads of four, in halves
    assert llama_cpp.interleave(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert llama_cpp.interleave(rows, 0) is rows


def test_cublas_is_taken_from_pytorchs_packages_where_the_compiler_has_none(tmp_path, monkeypatch):
    library = tmp_path / "site" / "nvidia" / "cu13" / "lib" / "libcublas.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    own = tmp_path / "toolkit" / "lib64"
    own.mkdir(parents=True)
    (own / "libcuda.so").touch()
    assert llama_cpp.cublas_settings([str(own)]) == {
        "CUDA_cublas_LIBRARY": str(library),
        "CUDA_cublasLt_LIBRARY": str(library.with_name("libcublasLt.so.13")),
        "CMAKE_CUDA_FLAGS": f"-isystem {library.parent.parent / 'include'}",
    }
    (own / "libcublas.so").touch()
    assert llama_cpp.cublas_settings([f"{tmp_path}/tool*/lib64"]) == {}
