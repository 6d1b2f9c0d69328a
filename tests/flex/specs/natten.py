"""A 5 x 5 neighbourhood on a grid 12 wide, clamped at the borders."""

import torch

HEIGHT, WIDTH, SIZE = 12, 12, 5


def mask_mod(b, h, q_idx, kv_idx):
    row, column = q_idx // WIDTH, q_idx % WIDTH
    middle_row = row.clamp(SIZE // 2, HEIGHT - 1 - SIZE // 2)
    middle_column = column.clamp(SIZE // 2, WIDTH - 1 - SIZE // 2)
    near = (middle_row - kv_idx // WIDTH).abs() <= SIZE // 2
    return near & ((middle_column - kv_idx % WIDTH).abs() <= SIZE // 2)


def example_inputs():
    return tuple(torch.randn(1, 4, HEIGHT * WIDTH, 64, dtype=torch.float16) for _ in range(3))
