"""Ways to train, from the most bytes a parameter to the least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainmem.job import BaseQuantization, Lora, Optimizer, Precision, TrainingJob

__all__ = ["METHODS", "Kind", "Method", "method_of"]

Kind = Literal["full", "lora", "qlora"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One way to train; ``kind`` is the word the rules of thumb use."""

    key: str
    title: str
    kind: Kind
    precision: Precision
    optimizer: Optimizer = "adamw"
    lora: Lora | None = None
    base_quantization: BaseQuantization = "none"

    def apply(self, job: TrainingJob) -> TrainingJob:
        """``job`` trained this way; everything else stays."""
        return job.with_(
            precision=self.precision,
            optimizer=self.optimizer,
            lora=self.lora,
            base_quantization=self.base_quantization,
        )


METHODS: tuple[Method, ...] = (
    Method(key="bf16_master", title="Full, bf16 + fp32 master, AdamW", kind="full", precision="bf16_master"),
    Method(key="fp32", title="Full, fp32, AdamW", kind="full", precision="fp32"),
    Method(key="amp", title="Full, AMP, AdamW", kind="full", precision="amp_bf16"),
    Method(
        key="amp_fused",
        title="Full, AMP, fused AdamW",
        kind="full",
        precision="amp_bf16",
        optimizer="adamw_fused",
    ),
    Method(
        key="amp_8bit",
        title="Full, AMP, AdamW 8-bit",
        kind="full",
        precision="amp_bf16",
        optimizer="adamw8bit",
    ),
    Method(key="bf16_kahan", title="Full, pure bf16 + Kahan, AdamW", kind="full", precision="bf16_kahan"),
    Method(key="bf16", title="Full, pure bf16, AdamW", kind="full", precision="bf16"),
    Method(
        key="bf16_8bit",
        title="Full, pure bf16, AdamW 8-bit",
        kind="full",
        precision="bf16",
        optimizer="adamw8bit",
    ),
    Method(key="lora", title="LoRA, 16-bit base", kind="lora", precision="bf16", lora=Lora()),
    Method(
        key="qlora",
        title="QLoRA, NF4 base",
        kind="qlora",
        precision="bf16",
        lora=Lora(),
        base_quantization="nf4",
    ),
)


def method_of(job: TrainingJob) -> Method | None:
    """The method that ``job`` uses, whatever the adapters' rank and layers; None for another recipe."""
    for method in METHODS:
        alike = (
            job.precision == method.precision
            and job.optimizer == method.optimizer
            and (job.lora is None) == (method.lora is None)
            and job.base_quantization == method.base_quantization
        )
        if alike:
            return method
    return None
