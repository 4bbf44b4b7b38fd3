"""Stands in for a tokenized corpus."""

import torch
from torch.utils.data import Dataset


class RandomTokens(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (self.length,))
        return {"input_ids": ids, "labels": ids}
