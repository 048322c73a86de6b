"""llama.cpp for `benchmarks.generate.measure`: a build of `llama-bench`, and a GGUF of the Llama.

    python -m benchmarks.generate.llama_cpp fetch    # needs a network: a source of 3 MB, a wheel
    python -m benchmarks.generate.llama_cpp build    # needs nvcc: under 4 minutes on 16 cores
    python -m benchmarks.generate.llama_cpp gguf     # 9 GB; --small a tiny one
    python -m benchmarks.generate.llama_cpp build --backend cpu --jobs 2

All is in `--folder`, which may be copied to another machine after `fetch`; what is there is not
made again. The source is that of
llama-cpp-python on PyPI, cut to what `llama-bench` needs; nothing of it is in this repository. The
GGUF has the weights and the settings of the model `llama` of `benchmarks.generate.models`, and no
vocabulary: `llama-bench` draws its tokens.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, make_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

FOLDER = ROOT / "out" / "llama.cpp"
SOURCE, PROGRAM = "source.tar.xz", "llama-bench"
PARTS = ("CMakeLists.txt", "LICENSE", "cmake", "common", "include", "src", "tools/llama-bench")
VENDOR = ("CMakeLists.txt", "cpp-httplib", "hash", "nlohmann", "sheredom", "stb", "miniaudio")
BACKENDS = ("ggml-cpu", "ggml-cuda")
"""Of ggml's backends, which are folders of `ggml/src`, these are kept."""
SETTINGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",  # one program, which can be copied
    "GGML_CUDA_FA": "OFF",
    "LLAMA_OPENSSL": "OFF",
    **{f"LLAMA_BUILD_{part}": "OFF" for part in ("TESTS", "EXAMPLES", "SERVER", "APP", "UI")},
}
LIBRARY_FOLDERS = (
    *("/usr/local/cuda*/lib64", "/usr/local/cuda*/lib64/stubs", "/usr/local/cuda*/targets/*/lib"),
    *("/usr/local/cuda*/targets/*/lib/stubs", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
)
"""Where a compiler's libraries are."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    actions = {"fetch": fetch, "build": build, "gguf": write_gguf}
    option = parser.add_argument
    option("action", choices=actions, help="what to do")
    option("--folder", type=Path, default=FOLDER, help="where everything is")
    option("--source", type=Path, help="folder of what `fetch` made, if it is another one")
    option("--backend", choices=["cuda", "cpu"], default="cuda", help="for which devices")
    option("--architectures", help="of CUDA, such as 90; else that of this machine's GPU")
    option("--jobs", type=int, default=os.cpu_count(), help="compilers at once")
    option("--small", action="store_true", help="a GGUF of the small Llama")
    option("--version", default="0.3.36", help="of llama-cpp-python")
    arguments = parser.parse_args(argv)
    arguments.folder = arguments.folder.absolute()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    arguments.source = (arguments.source or arguments.folder).absolute()
    began = time.perf_counter()
    path = actions[arguments.action](arguments)
    print(f"{path}: {path.stat().st_size:,} bytes, {time.perf_counter() - began:.1f} s")


# -- the source --------------------------------------------------------------------------------


def fetch(arguments: argparse.Namespace) -> Path:
    """The archive of the source, and the wheel of `gguf`, from PyPI."""
    path: Path = arguments.folder / SOURCE
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d"]
    if not list(arguments.folder.glob("gguf-*.whl")):
        subprocess.run([*download, str(arguments.folder), "gguf"], check=True)
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        package = f"llama-cpp-python=={arguments.version}"
        command = [*download, folder, "--no-binary", "llama-cpp-python", package]
        subprocess.run(command, check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        partial = path.with_suffix(".part")
        cut_source(archive, partial)
        partial.rename(path)
    return path


def cut_source(archive: Path, path: Path) -> None:
    """Copy what `llama-bench` needs out of the package's source."""
    with tarfile.open(archive) as package, tarfile.open(path, "w:xz") as cut:
        for member in package:
            _, _, name = member.name.partition("/vendor/llama.cpp/")
            if member.isfile() and is_needed(name):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = member.size, member.mtime, member.mode
                cut.addfile(entry, package.extractfile(member))


def is_needed(name: str) -> bool:
    """Whether `llama-bench` needs a file of llama.cpp."""
    if name.startswith("vendor/"):
        return name.split("/")[1] in VENDOR
    if name.startswith("ggml/src/ggml-") and name.count("/") > 2:
        return name.split("/")[2] in BACKENDS
    return name.startswith("ggml/") or any(name == p or name.startswith(f"{p}/") for p in PARTS)


def build(arguments: argparse.Namespace) -> Path:
    """The program, built from the archive; what is compiled already is kept."""
    folder = arguments.folder
    program: Path = folder / PROGRAM
    source, made = folder / "source", folder / f"build-{arguments.backend}"
    if program.exists():
        return program
    if not source.exists():
        partial = folder / "source.part"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(arguments.source / SOURCE) as archive:
            archive.extractall(partial, filter="data")
        (partial / "tools" / "CMakeLists.txt").write_text("add_subdirectory(llama-bench)\n")
        partial.rename(source)
    settings = dict(SETTINGS)
    if arguments.backend == "cuda":
        settings |= {"GGML_CUDA": "ON", **cublas_settings(LIBRARY_FOLDERS)}
        settings["CMAKE_CUDA_ARCHITECTURES"] = arguments.architectures or this_architecture()
    configure = ["cmake", "-S", str(source), "-B", str(made)]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    subprocess.run(
        [*configure, *(f"-D{key}={value}" for key, value in settings.items())], check=True
    )
    command = ["cmake", "--build", str(made), "--target", PROGRAM, "-j", str(arguments.jobs)]
    subprocess.run(command, check=True)
    shutil.copy(made / "bin" / PROGRAM, program)
    if shutil.which("strip"):
        subprocess.run(["strip", str(program)], check=True)
    return program


def cublas_settings(folders: Sequence[str]) -> dict[str, str]:
    """Where cuBLAS is, if none of the compiler's folders has it: among PyTorch's packages."""

    def has(name: str) -> bool:
        return any(next(Path("/").glob(f"{folder[1:]}/{name}"), None) for folder in folders)

    settings = {} if has("libcuda.so") else {"GGML_CUDA_NO_VMM": "ON"}  # which needs no driver
    package = importlib.util.find_spec("nvidia")
    if has("libcublas.so") or package is None:
        return settings
    for root in package.submodule_search_locations or ():
        for library in sorted(Path(root).rglob("libcublas.so*")):
            lt_library = library.with_name(library.name.replace("cublas", "cublasLt"))
            return settings | {
                "CUDA_cublas_LIBRARY": str(library),
                "CUDA_cublasLt_LIBRARY": str(lt_library),
                "CMAKE_CUDA_FLAGS": f"-isystem {library.parent.parent / 'include'}",
            }
    return settings


def this_architecture() -> str:
    """That of this machine's first GPU, such as 90."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"{major}{minor}"


# -- the model ---------------------------------------------------------------------------------

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Parts of transformers' Llama, and their names in a GGUF."""


def gguf_name(name: str) -> str:
    """The name of a weight in a GGUF."""
    part = name.removesuffix(".weight")
    if part in NAMES:
        return f"{NAMES[part]}.weight"
    layer, _, part = part.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.weight"


def write_gguf(arguments: argparse.Namespace) -> Path:
    """The model `llama` as a file: matrices in its dtype, vectors in float32."""
    from benchmarks.generate.models import build as build_model

    path: Path = arguments.folder / f"llama{'-small' if arguments.small else ''}.gguf"
    if path.exists():
        return path
    sys.path += [str(wheel) for wheel in arguments.source.glob("gguf-*.whl")]
    import gguf

    model: Any = build_model("llama", arguments.small)
    config = model.config
    partial = path.with_suffix(".part")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    kind = gguf.GGMLQuantizationType.F32 if arguments.small else gguf.GGMLQuantizationType.BF16
    writer.add_file_type(
        gguf.LlamaFileType.ALL_F32 if arguments.small else gguf.LlamaFileType.MOSTLY_BF16
    )
    for name, weight in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        values = interleave(weight, heads.get(name.split(".")[-2], 0))
        add_tensor(writer, gguf_name(name), values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.rename(path)


def interleave(weight: Any, heads: int) -> Any:
    """A projection whose rows are in llama.cpp's order of rotary pairs; others as they are."""
    if not heads:
        return weight
    halves = weight.view(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def add_tensor(writer: Any, name: str, weight: Any, kind: Any) -> None:
    """Add a tensor; numpy has no bfloat16, so that is passed as 16-bit integers."""
    import torch

    if weight.ndim == 1 or weight.dtype == torch.float32:
        writer.add_tensor(name, weight.float().numpy())
        return
    values = weight.contiguous().view(torch.int16).numpy()
    writer.add_tensor(name, values, raw_shape=values.shape, raw_dtype=kind)


if __name__ == "__main__":
    main()
