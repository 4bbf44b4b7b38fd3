"""Trainer's FSDP2: two micro batches a step, fused AdamW."""

import sys

import torch
from random_tokens import RandomTokens
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        fsdp="full_shard auto_wrap",
        fsdp_config={"fsdp_version": 2, "cpu_ram_efficient_loading": False},
        optim="adamw_torch_fused",
        bf16=True,
        max_steps=4,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=RandomTokens(1024),
).train()
