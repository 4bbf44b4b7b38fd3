"""What a trace of training steps does not see of transformers' Trainer: the logits that its evaluation keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from trainmem.units import format_bytes
from trainmem_backend.trace.stand_ins import stand_ins

__all__ = ["telling_of_evaluation"]


def telling_of_evaluation(note: Callable[[str], None]) -> AbstractContextManager[None]:
    """Inside, a Trainer that is to evaluate while it trains tells ``note`` what that will hold on the GPU."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is None:
        return stand_ins(())
    train = trainer.train

    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept = _kept_bytes(self)
        if kept:
            note(
                "Trainer: its evaluation keeps the logits of the whole evaluation set on the GPU, "
                f"{format_bytes(kept)} at the end and twice that while they are joined, beside weights and "
                "optimizer; this is no part of the peak above (eval_accumulation_steps or "
                "preprocess_logits_for_metrics keep them small)"
            )
        return train(self, *args, **kwargs)

    return stand_ins((("transformers.trainer", "Trainer.train", told),))


def _kept_bytes(trainer: Any) -> int:
    """Bytes of all logits (rows x sequence length x vocabulary); 0 where they are not kept, or their size not known.

    `Trainer.evaluation_loop` (transformers 5.17): kept where metrics ask for them, until eval_accumulation_steps.
    """
    arguments = trainer.args
    keeps = (
        str(getattr(arguments.eval_strategy, "value", arguments.eval_strategy)) != "no"
        and trainer.compute_metrics is not None
        and not arguments.prediction_loss_only
        and not arguments.batch_eval_metrics
        and arguments.eval_accumulation_steps is None
        and trainer.preprocess_logits_for_metrics is None
    )
    vocabulary = getattr(getattr(trainer.model, "config", None), "vocab_size", None)
    is_language_model = getattr(trainer.model, "get_output_embeddings", lambda: None)() is not None
    if not keeps or not is_language_model or not isinstance(vocabulary, int):
        return 0
    try:
        rows, length = len(trainer.eval_dataset), len(trainer.eval_dataset[0]["input_ids"])
    except (TypeError, KeyError, IndexError):
        return 0
    # accelerate hands results of mixed precision on in fp32
    itemsize = 4 if arguments.bf16 or arguments.fp16 else trainer.model.dtype.itemsize
    return int(rows * length * vocabulary * itemsize)
