"""Trainer: 16-bit weights, checkpointing, fused AdamW."""

import sys

import torch
from random_tokens import RandomTokens
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

Trainer(
    model=AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16),
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=2,
        gradient_checkpointing=True,
        optim="adamw_torch_fused",
        bf16=True,
        max_steps=4,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=RandomTokens(1536),
).train()
