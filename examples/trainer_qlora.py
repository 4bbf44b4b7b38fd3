"""QLoRA with transformers' Trainer, as a script for one GPU.

    trainmem trace examples/trainer_qlora.py Qwen/Qwen2.5-7B

reports its memory with no GPU and without the weights: the model's config.json is enough. A folder that holds one
will do in place of the Hugging Face id.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

LENGTH = 2048


class RandomTokens(Dataset):
    """Stands in for a tokenized corpus: memory asks for its shapes alone."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (LENGTH,))
        return {"input_ids": ids, "labels": ids}


packed = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], quantization_config=packed, device_map={"": 0})
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))

Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        gradient_checkpointing=True,
        bf16=True,
        optim="paged_adamw_8bit",
        max_steps=100,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=RandomTokens(),
).train()
