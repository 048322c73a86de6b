"""The CUDA kernels of the seq2seq placer's rollout, run on the host thread by thread."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from placewright.errors import ConfigError  # noqa: E402
from placewright.policies import placer_kernels  # noqa: E402
from placewright.policies.placer_kernels import (  # noqa: E402
    CudaKernels,
    TorchKernels,
    check_kernels,
    find_kernels,
    kernel_source,
)

if TYPE_CHECKING:
    from pathlib import Path

_HOST = """
#include <math.h>
#define __global__
#define __device__
#define __forceinline__ inline
struct float4 { float x, y, z, w; };
struct Index { unsigned x; };
static Index blockIdx, threadIdx, blockDim;
static float __fdividef(float one, float other) { return one / other; }
static float __int_as_float(unsigned) { return -INFINITY; }
"""
_LOOP = """
extern "C" void launch(void (*body)(void), unsigned grid, unsigned block) {
  blockDim.x = block;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) body();
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    """The kernels as C++ functions of one thread."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("kernels")
    source = folder / "kernels.cpp"
    source.write_text(_HOST + kernel_source() + _LOOP)
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
    subprocess.run([compiler, *options, "-o", folder / "kernels.so", source], check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))


@pytest.fixture
def host_kernels(library, monkeypatch) -> CudaKernels:
    """`CudaKernels` whose launches are loops on the host."""

    def launch(name, grid, block, args):
        values = [
            ctypes.c_void_p(each.data_ptr())
            if isinstance(each, torch.Tensor)
            else ctypes.c_int(each)
            for each in args
        ]
        body = ctypes.CFUNCTYPE(None)(lambda: getattr(library, name)(*values))
        library.launch(body, grid[0], block[0])

    def compile_kernel(source, name, nvcc_options):
        return partial(launch, name)

    monkeypatch.setattr(torch.cuda, "_compile_kernel", compile_kernel, raising=False)
    return CudaKernels()


def test_every_kernel_computes_what_pytorch_does(host_kernels):
    check_kernels(host_kernels, torch.device("cpu"), 8)


def test_parts_of_a_step_add_up_to_its_sums(host_kernels, monkeypatch):
    """150 episodes in parts of 40: four parts of each step, the last of 30."""
    monkeypatch.setattr(placer_kernels, "_PART_ROWS", 40)
    check_kernels(host_kernels, torch.device("cpu"), 8)


def test_a_kernel_that_is_wrong_is_found(host_kernels, monkeypatch):
    exact = host_kernels.lstm_backward

    def wrong(*arguments):
        exact(*arguments)
        arguments[-1][0, 0, 0] += 1.0

    monkeypatch.setattr(host_kernels, "lstm_backward", wrong)
    with pytest.raises(ConfigError, match="kernel's gate gradient differs from PyTorch's by"):
        check_kernels(host_kernels, torch.device("cpu"), 8)


def test_the_host_computes_in_pytorch():
    kernels, reason = find_kernels(torch.device("cpu"), 64)
    assert isinstance(kernels, TorchKernels)
    assert reason == "the device is cpu"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_nvcc_compiles_the_kernels(tmp_path: Path):
    source = tmp_path / "kernels.cu"
    source.write_text(kernel_source())
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", "-o", tmp_path / "out", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("hidden", [8, 64, 128])
def test_a_gpu_uses_the_kernels(hidden):
    kernels, reason = find_kernels(torch.device("cuda"), hidden)
    assert isinstance(kernels, CudaKernels), reason
