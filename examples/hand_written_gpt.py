"""A small GPT with a training loop of its own, written for CUDA; it has three habits that cost memory.

``python -m trainmem trace examples/hand_written_gpt.py`` shows what each costs, with no GPU:
``--late-zero-grad`` drops gradients after the forward instead of before it, ``--clip`` clips them, and
``--keep-logits`` keeps the logits by a name until the next step.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(width, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary=32_000, width=512, heads=8, layers=6, positions=512):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    for habit in ("late-zero-grad", "clip", "keep-logits"):
        parser.add_argument(f"--{habit}", action="store_true")
    habits = parser.parse_args()
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(100):
        ids = torch.randint(0, 32_000, (8, 512), device="cuda")
        if not habits.late_zero_grad:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
        if not habits.keep_logits:
            del logits
        if habits.late_zero_grad:
            optimizer.zero_grad()
        loss.backward()
        if habits.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(step, loss.item(), torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
