"""Out of memory as a result: sizes are tried until one does not fit, and what is left is cleared after the handler."""

import gc

import torch


def try_size(model, optimizer, make_batch, size):
    try:
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            model(make_batch(size)).loss.backward()
            optimizer.step()
    except torch.OutOfMemoryError:
        return False
    finally:
        optimizer.zero_grad(set_to_none=True)
    return True


def largest(model, optimizer, make_batch, limit):
    low, high = 0, 1
    while high <= limit:
        fits = try_size(model, optimizer, make_batch, high)
        gc.collect()
        torch.cuda.empty_cache()
        if not fits:
            break
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        fits = try_size(model, optimizer, make_batch, middle)
        gc.collect()
        torch.cuda.empty_cache()
        low, high = (middle, high) if fits else (low, middle)
    return low
