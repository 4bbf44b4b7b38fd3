"""The models and jobs that questions are about: real ones, so that each opens in the calculator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainmem.buckets import Bucket
from trainmem.job import Optimizer, Precision, TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.model.catalogue import find
from trainmem.quiz.question import Step
from trainmem.whiteboard import Term, Whiteboard, whiteboard

__all__ = [
    "GATED",
    "LARGE",
    "OPTIMIZER_NAMES",
    "PLAIN",
    "PRECISION_NAMES",
    "ROTARY",
    "SMALL",
    "Case",
    "Model",
    "count_in_words",
    "step_of",
]


@dataclass(frozen=True, slots=True)
class Model:
    """A catalogue model under the name people use."""

    name: str
    title: str

    @property
    def architecture(self) -> Architecture:
        """Its dimensions and parameters."""
        return _architecture(self.name)

    @property
    def sized(self) -> str:
        """The name with its size: "Llama 3.2 1B, 1.24 billion parameters"."""
        return f"{self.title}, {count_in_words(self.architecture.parameter_count)} parameters"


@cache
def _architecture(name: str) -> Architecture:
    return find(name).architecture("causal_lm")


PLAIN = (
    Model("gpt2-124m", "GPT-2 124M"),
    Model("gpt2-355m", "GPT-2 355M"),
    Model("gpt2-774m", "GPT-2 774M"),
    Model("gpt2-1558m", "GPT-2 1.5B"),
)
"""Blocks of the textbook: 34 s b h."""
ROTARY = (
    Model("pythia-410m", "Pythia 410M"),
    Model("pythia-1.4b", "Pythia 1.4B"),
    Model("pythia-2.8b", "Pythia 2.8B"),
)
"""Plain blocks without a position table, for sequences beyond GPT-2's 1,024."""
GATED = (
    Model("llama3.2-1b", "Llama 3.2 1B"),
    Model("llama3.2-3b", "Llama 3.2 3B"),
    Model("llama3.1-8b", "Llama 3.1 8B"),
    Model("llama2-7b", "Llama 2 7B"),
    Model("mistral-7b", "Mistral 7B"),
    Model("qwen2.5-1.5b", "Qwen2.5 1.5B"),
    Model("qwen2.5-7b", "Qwen2.5 7B"),
)
"""Llama's kind of block, with a gate in the MLP."""
SMALL = (*PLAIN, Model("llama3.2-1b", "Llama 3.2 1B"), Model("qwen2.5-0.5b", "Qwen2.5 0.5B"))
LARGE = (
    Model("llama2-7b", "Llama 2 7B"),
    Model("llama3.1-8b", "Llama 3.1 8B"),
    Model("llama2-13b", "Llama 2 13B"),
    Model("qwen2.5-14b", "Qwen2.5 14B"),
    Model("qwen2.5-32b", "Qwen2.5 32B"),
    Model("llama3.1-70b", "Llama 3.1 70B"),
)

_TITLES = {model.name: model for model in (*PLAIN, *ROTARY, *GATED, *SMALL, *LARGE)}

PRECISION_NAMES: dict[Precision, str] = {
    "fp32": "fp32 throughout",
    "amp_bf16": "torch autocast to bf16 over fp32 weights (AMP)",
    "amp_fp16": "torch autocast to fp16 over fp32 weights (AMP)",
    "bf16": "pure bf16: weights, gradients and optimizer state",
    "bf16_kahan": "pure bf16 with Kahan compensation",
    "bf16_stochastic": "pure bf16 with stochastic rounding",
    "bf16_master": "classic mixed precision: bf16 weights and gradients, fp32 master weights",
    "bf16_master_fp32_grads": "bf16 weights, fp32 gradients, fp32 master weights",
    "fsdp_mp_bf16": "FSDP2's bf16 mixed precision over fp32 shards",
}
OPTIMIZER_NAMES: dict[Optimizer, str] = {
    "adamw": "AdamW",
    "adamw_fused": "fused AdamW",
    "adamw_loop": "AdamW, one tensor at a time",
    "adamw8bit": "8-bit AdamW",
    "paged_adamw8bit": "paged 8-bit AdamW",
    "lion8bit": "8-bit Lion",
    "sgd": "SGD without momentum",
    "sgd_momentum": "SGD with momentum",
    "adafactor": "Adafactor",
    "muon": "Muon",
}


def count_in_words(count: float) -> str:
    """A count of parameters to three digits: "774 million", "8.03 billion"."""
    size, word = (1e9, "billion") if count >= 1e9 else (1e6, "million")
    number = count / size
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {word}".replace(".0 ", " ")


@dataclass(frozen=True, slots=True)
class Case:
    """One job with its model, its board, and the sentences that describe it."""

    job: TrainingJob

    @property
    def model(self) -> Model:
        """The model under its usual name."""
        name = self.job.model or ""
        return _TITLES.get(name, Model(name, name))

    @property
    def architecture(self) -> Architecture:
        """The model's dimensions."""
        return self.model.architecture

    @property
    def parameters(self) -> int:
        """The model's parameters, adapters apart."""
        return self.architecture.parameter_count

    def board(self, **changes: object) -> Whiteboard:
        """The whiteboard for this job with some levers changed."""
        return whiteboard(self.job.with_(**changes) if changes else self.job, self.architecture)

    def bytes(self, *buckets: Bucket, **changes: object) -> int:
        """The board's bytes in some buckets (in all when none is named), with some levers changed."""
        board = self.board(**changes)
        return sum(board.buckets[b] for b in buckets) if buckets else board.peak_bytes

    def term_bytes(self, name: str, **changes: object) -> int:
        """The bytes of the board's line of this name, 0 when there is none."""
        return sum(t.bytes for t in self.board(**changes).terms if t.name == name)

    def terms(self, *buckets: Bucket, **changes: object) -> tuple[Step, ...]:
        """The board's lines for some buckets, ready to be shown."""
        return tuple(step_of(t) for t in self.board(**changes).terms if not buckets or t.bucket in buckets)

    @property
    def size_line(self) -> str:
        """The model and its parameters."""
        return self.model.sized

    @property
    def _shape(self) -> str:
        a = self.architecture
        parts = [f"{a.layers} layers", f"hidden size {a.hidden_size:,}", f"{a.heads} heads"]
        if a.extra.get("gated"):
            parts += [f"{a.kv_heads} key and value heads", f"intermediate size {a.intermediate_size:,}"]
        return ", ".join([*parts, f"vocabulary {a.vocab_size:,}"])

    @property
    def shape_line(self) -> str:
        """Layers, width, heads, MLP and vocabulary."""
        return f"{self.model.title}: {self._shape}"

    @property
    def model_line(self) -> str:
        """The model, its parameters and its shape."""
        return f"{self.model.sized}: {self._shape}"

    @property
    def batch_line(self) -> str:
        """Micro batch and sequence length, and accumulation when there is any."""
        line = f"micro batch {self.job.micro_batch}, sequence length {self.job.sequence_length:,}"
        return line if self.job.accumulation == 1 else f"{line}, {self.job.accumulation} micro batches a step"

    @property
    def recipe_line(self) -> str:
        """Optimizer and precision."""
        return f"{OPTIMIZER_NAMES[self.job.optimizer]}; {PRECISION_NAMES[self.job.precision]}"

    @property
    def levers_line(self) -> str:
        """Attention and checkpointing."""
        attention = "fused attention" if self.job.attention == "sdpa" else "eager attention"
        kept = {
            "none": "no checkpointing",
            "full": "every block checkpointed",
            "sqrt": "checkpoints every √L blocks",
            "selective": "selective recomputation",
        }
        return f"{attention}, {kept[self.job.checkpointing]}"


def step_of(term: Term) -> Step:
    """A line of the board as a line of an explanation."""
    return Step(term.name, term.substituted)
