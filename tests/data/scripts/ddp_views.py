"""DistributedDataParallel whose gradients are views of its buckets: 16-bit weights, checkpointing, accumulation."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).to(device)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()
model = DistributedDataParallel(
    model, device_ids=[device.index], gradient_as_bucket_view=True, bucket_cap_mb=50
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for _ in range(4):
    for micro_batch in range(2):
        ids = torch.randint(0, 1000, (2, 1536), device=device)
        with model.no_sync() if micro_batch == 0 else contextlib.nullcontext():
            (model(input_ids=ids, labels=ids).loss / 2).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
dist.destroy_process_group()
