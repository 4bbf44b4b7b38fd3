"""A loop by hand: 16-bit weights, checkpointing, clipped gradients."""

import sys

import torch
from random_tokens import RandomTokens
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).cuda()
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
total = 0.0
for number, batch in enumerate(DataLoader(RandomTokens(2048), batch_size=4)):
    batch = {name: value.cuda(non_blocking=True) for name, value in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
    if number == 3:
        break
