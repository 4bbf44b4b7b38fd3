"""What each value of each lever does to memory, in one line; the documentation is made from it."""

from __future__ import annotations

LEVER_TEXTS: dict[str, dict[str, str]] = {
    "task": {
        "causal_lm": "logits over the whole vocabulary for every token",
        "sequence_classification": "a head with two labels: almost no logits",
    },
    "precision": {
        "fp32": "16 bytes a parameter with AdamW; activations of 4 bytes",
        "amp_bf16": "autocast: fp32 weights, a 16-bit copy of each during a step; the residual path stays fp32",
        "amp_fp16": "the same with a loss scaler of a few bytes",
        "bf16": "8 bytes a parameter with AdamW, everything in 16 bits",
        "bf16_kahan": "bf16 with a 2-byte compensation a parameter, so that small updates are not lost",
        "bf16_stochastic": "bf16 with stochastic rounding: no more state",
        "bf16_master": "bf16 weights and gradients, fp32 masters: gradients are widened one by one before the step",
        "bf16_master_fp32_grads": "the same with gradients widened as soon as backward makes them",
        "fsdp_mp_bf16": "FSDP2's mixed precision: fp32 shards, gathered and computed in bf16",
    },
    "optimizer": {
        "adamw": "two moments; torch's default on a GPU (foreach) makes one more temporary the size of all parameters",
        "adamw_fused": "two moments, no temporary",
        "adamw_loop": "two moments, temporaries of one tensor at a time",
        "adamw8bit": "two moments of one byte, with scales (bitsandbytes)",
        "paged_adamw8bit": "the same outside torch's allocator; on a machine with one pool it is the same memory",
        "lion8bit": "one moment of one byte",
        "sgd": "no state",
        "sgd_momentum": "one moment",
        "adafactor": "a row and a column vector a matrix; a temporary the size of the largest tensor",
        "muon": "one moment a matrix, AdamW for the rest",
    },
    "attention": {
        "sdpa": "a fused kernel keeps the output and one number a row",
        "eager": "every score is kept: grows with the square of the length",
    },
    "checkpointing": {
        "none": "everything backward needs is kept",
        "full": "one tensor a block is kept; each block runs a second time in backward",
        "selective": "matrix products and attention are kept, the rest runs again",
        "sqrt": "one tensor every sqrt(L) blocks is kept; a segment runs again at once",
    },
    "loss": {
        "standard": "transformers' loss: logits in 16 bits, in fp32, their log-probabilities and gradients",
        "liger_fused": "logits a chunk of tokens at a time; gradients of head and input are made in forward",
    },
    "zero_grad": {
        "none": "gradients are freed between steps",
        "zeros": "gradients stay allocated through the next forward: one more copy at its peak",
    },
    "base_quantization": {
        "none": "the base stays in the weights' precision: fp32 under autocast, though most load it in bf16",
        "nf4": "0.516 bytes a parameter of the linear layers (double quantised); the rest stays in the weights' "
        "precision, and PEFT's `prepare_model_for_kbit_training` makes that fp32: `amp_bf16`",
        "int8": "one byte a parameter of the linear layers",
    },
    "sharding.mode": {
        "none": "one device has it all",
        "ddp": "a full copy each, and buckets of gradients",
        "zero1": "optimizer state divided by the ranks",
        "zero2": "gradients divided too",
        "zero3": "weights divided too, gathered block by block",
        "fsdp2": "PyTorch's own: weights, gradients and state divided, gathered block by block",
    },
    "sharding.offload": {
        "none": "everything on the device",
        "cpu": "optimizer state in the host's memory; on a machine with one pool nothing is gained",
        "nvme": "optimizer state on disk",
    },
}
