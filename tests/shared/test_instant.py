"""An instant names the block that runs, and the module and the op in it."""

from __future__ import annotations

import pytest

from trainmem.instant import describe_instant


@pytest.mark.parametrize(
    ("module", "op", "words"),
    [
        ("layers.30", "layers.2.mlp.act: mul", "backward of block 30, at mlp.act: mul"),
        ("transformer.h.11.mlp.act", "mul", "backward of block 11, at mlp.act: mul"),
        (
            "base_model.model.model.layers.27.mlp.experts.3.up",
            "mm",
            "backward of block 27, at mlp.experts.3.up: mm",
        ),
        ("0", "addmm", "backward of block 0, at addmm"),
        ("model", "mul", "backward of model, at mul"),
        ("model.embed_tokens", "embedding", "backward of model.embed_tokens, at embedding"),
        ("", "mul", "backward, at mul"),
        ("layers.3", "", "backward of block 3"),
        ("", "", "backward"),
    ],
)
def test_where_it_is(module: str, op: str, words: str) -> None:
    assert describe_instant("backward", op, module) == words


@pytest.mark.parametrize("module", ["", "model", "base_model.model"])
def test_a_loss_is_named_wherever_the_model_computes_it(module: str) -> None:
    assert describe_instant("backward", "log_softmax backward", module).startswith(
        "start of backward, when the"
    )
