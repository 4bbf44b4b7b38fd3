"""accelerate: autocast, accumulation, clipped gradients, a schedule."""

import sys

import torch
from accelerate import Accelerator
from random_tokens import RandomTokens
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 10)
batches = DataLoader(RandomTokens(1024), batch_size=2)
model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
for number, batch in enumerate(batches):
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if number == 7:
        break
