"""Tell the reserve space and the weight buffer of the recurrent networks whose sizes were printed from a real card."""

from __future__ import annotations

import torch
from reporting import leave_with
from torch import nn

MODES = {nn.LSTM: 2, nn.GRU: 3}
answer = {}
for cell, mode in MODES.items():
    model = cell(123, 320, 4).cuda()
    x = torch.randn(250, 100, 123, device="cuda")
    h = torch.zeros(4, 100, 320, device="cuda")
    c = h if cell is nn.LSTM else None
    torch.cuda.reset_peak_memory_stats()
    sizes = (mode, 320, 0, 4)
    flags = {"batch_first": False, "dropout": 0.0, "train": True, "bidirectional": False}
    outputs = torch._cudnn_rnn(
        x, model._flat_weights, 4, None, h, c, *sizes, **flags, batch_sizes=[], dropout_state=None
    )  # fmt: skip
    answer[cell.__name__] = {
        "reserve": outputs[3].numel(),
        "weights": outputs[4].numel() * 4,
        "parameters": sum(p.numel() for p in model.parameters()) * 4,
        "transient": torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated(),
    }
leave_with(**answer)
