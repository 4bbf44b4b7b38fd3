"""fp16 autocast with a scaler, eager attention, SGD with momentum."""

import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
scaler = torch.amp.GradScaler()
for _ in range(4):
    ids = torch.randint(0, 1000, (2, 1024), device="cuda")
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=ids, labels=ids).loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
