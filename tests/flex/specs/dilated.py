"""Every third key of a window of 24 to either side."""


def mask_mod(b, h, q_idx, kv_idx):
    distance = q_idx - kv_idx
    return (distance.abs() <= 24) & (distance % 3 == 0)
