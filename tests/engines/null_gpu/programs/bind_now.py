"""Import torch; the caller sets LD_BIND_NOW, so that a function which nothing defines ends the import."""

from __future__ import annotations

import torch
from reporting import leave_with

leave_with(available=torch.cuda.is_available(), workers=len(list(torch.utils.data.DataLoader(range(4), num_workers=2))))
