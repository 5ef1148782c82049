"""Token sequences drawn from a seeded generator, the same ones in every run."""

import torch
from torch.utils.data import Dataset


class SyntheticTokens(Dataset):
    def __init__(self, vocab_size=50257, sequence_length=1024, num_samples=100_000, seed=0):
        self.vocab_size = vocab_size
        self.sequence_length = sequence_length
        self.num_samples = num_samples
        self.seed = seed

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index)
        input_ids = torch.randint(self.vocab_size, (self.sequence_length,), generator=generator)
        return {"input_ids": input_ids, "labels": input_ids.clone()}
