"""Trainer: LoRA with dropout on a 16-bit base."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from random_tokens import RandomTokens
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
adapters = LoraConfig(r=16, target_modules="all-linear", lora_dropout=0.05, task_type="CAUSAL_LM")
Trainer(
    model=get_peft_model(model, adapters),
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4,
        optim="adamw_torch_fused",
        bf16=True,
        max_steps=4,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=RandomTokens(1024),
).train()
