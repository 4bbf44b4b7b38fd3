"""Preferences by hand (DPO): a policy that trains beside a frozen reference."""

import sys

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

policy = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).cuda()
reference = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).cuda().eval().requires_grad_(False)
policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)


def log_likelihood(model, ids):
    scores = model(input_ids=ids).logits[:, :-1]
    return torch.gather(scores.log_softmax(-1), 2, ids[:, 1:, None]).squeeze(2).sum(1)


for _ in range(3):
    chosen = torch.randint(0, 1000, (2, 512), device="cuda")
    rejected = torch.randint(0, 1000, (2, 512), device="cuda")
    ids = torch.cat([chosen, rejected])
    with torch.no_grad():
        before = log_likelihood(reference, ids)
    gained = log_likelihood(policy, ids) - before
    loss = -F.logsigmoid(0.1 * (gained[:2] - gained[2:])).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
