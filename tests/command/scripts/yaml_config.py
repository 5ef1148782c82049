"""Train GPT-2 124M from scratch, configured by a YAML file.

python yaml_config.py gpt2.yaml --set train.batch_size=8 --set train.accumulation_steps=4
"""

import argparse

import torch
from omegaconf import OmegaConf
from synthetic_tokens import SyntheticTokens
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel


def load_config():
    parser = argparse.ArgumentParser()
    parser.add_argument("config", help="path of the YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value of it")
    args = parser.parse_args()
    return OmegaConf.merge(OmegaConf.load(args.config), OmegaConf.from_dotlist(args.set))


def train(config):
    torch.manual_seed(config.seed)
    model = GPT2LMHeadModel(GPT2Config(**config.model)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.train.learning_rate)
    loader = DataLoader(SyntheticTokens(), batch_size=config.train.batch_size, shuffle=True, drop_last=True)
    batches = iter(loader)
    for step in range(1, config.train.max_steps + 1):
        total = 0.0
        for _ in range(config.train.accumulation_steps):
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(**{name: tensor.cuda() for name, tensor in batch.items()}).loss
            loss = loss / config.train.accumulation_steps
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {total:.4f}")


if __name__ == "__main__":
    train(load_config())
