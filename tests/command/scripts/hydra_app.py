"""Train GPT-2 124M from scratch, configured with Hydra.

python hydra_app.py train.batch_size=8 train.accumulation_steps=4
"""

import logging

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from synthetic_tokens import SyntheticTokens
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    log.info("configuration:\n%s", OmegaConf.to_yaml(cfg))
    torch.manual_seed(cfg.seed)
    device = torch.device("cuda")

    model = GPT2LMHeadModel(GPT2Config(**cfg.model)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), **OmegaConf.to_container(cfg.optimizer))
    loader = DataLoader(
        SyntheticTokens(sequence_length=cfg.data.sequence_length),
        batch_size=cfg.train.batch_size,
        num_workers=cfg.data.num_workers,
        shuffle=True,
        pin_memory=True,
        drop_last=True,
    )

    model.train()
    step = 0
    while step < cfg.train.max_steps:
        for index, batch in enumerate(loader):
            input_ids = batch["input_ids"].to(device, non_blocking=True)
            labels = batch["labels"].to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids, labels=labels).loss
            (loss / cfg.train.accumulation_steps).backward()
            if (index + 1) % cfg.train.accumulation_steps != 0:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.train.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % cfg.train.log_every == 0:
                log.info("step %d: loss %.4f", step, loss.item())
            if step == cfg.train.max_steps:
                break

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
