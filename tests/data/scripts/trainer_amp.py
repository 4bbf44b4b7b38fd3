"""Trainer: fp32 weights under autocast, two micro batches a step."""

import sys

import torch
from random_tokens import RandomTokens
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

Trainer(
    model=AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32),
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        optim="adamw_torch",
        bf16=True,
        max_steps=3,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=RandomTokens(1024),
).train()
