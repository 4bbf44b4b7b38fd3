"""accelerate's FSDP2: every layer sharded and checkpointed, clipped gradients."""

import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from random_tokens import RandomTokens
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    activation_checkpointing=True,
    cpu_ram_efficient_loading=False,
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
batches = DataLoader(RandomTokens(2048), batch_size=2)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for number, batch in enumerate(batches):
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if number == 3:
        break
accelerator.end_training()
