def instruction_sets() -> list[str]: ...
def multiply(
    dtype: int,
    x: int,
    rows: int,
    depth: int,
    x_row_stride: int,
    x_stride: int,
    weight: int,
    columns: int,
    weight_stride: int,
    transposed: bool,
    bias: int,
    out: int,
    out_stride: int,
    launcher: int,
    threads: int,
    instructions: str = "",
) -> None: ...
def read(from_address: int, bytes: int, launcher: int, threads: int) -> int: ...
