"""DistributedDataParallel by hand: autocast, a distributed sampler, clipped gradients."""

import os
import sys

import torch
import torch.distributed as dist
from random_tokens import RandomTokens
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM

dist.init_process_group("nccl")
device = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(device)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).to(device)
model = DistributedDataParallel(model, device_ids=[device])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
tokens = RandomTokens(1024)
for number, batch in enumerate(DataLoader(tokens, batch_size=2, sampler=DistributedSampler(tokens))):
    batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
    if number == 3:
        break
dist.destroy_process_group()
