"""Scores over the vocabulary and their loss are logits, whatever a program's own model calls its last layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainmem.recording import counters, read_step
from trainmem_backend.trace.program import trace_program

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

pytestmark = pytest.mark.torch

VOCABULARY, WIDTH, ROWS = 8192, 64, 512
SCORES = ROWS * VOCABULARY * 4


class Model(nn.Module):
    def __init__(self, head: str, loss_inside: bool) -> None:
        super().__init__()
        self.head_name, self.loss_inside = head, loss_inside
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.block = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
        if head:
            self.add_module(head, nn.Linear(WIDTH, VOCABULARY, bias=False))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.block(self.embedding(ids))
        scores = getattr(self, self.head_name)(hidden) if self.head_name else hidden @ self.embedding.weight.T
        return cross_entropy(scores, ids) if self.loss_inside else scores


def buckets(head: str, loss: Callable[..., torch.Tensor] | None, dtype: torch.dtype | None) -> dict[str, int]:
    def program() -> None:
        model = Model(head, loss is None).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            ids = torch.randint(0, VOCABULARY, (ROWS,), device="cuda")
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                scores = model(ids)
                result = scores if loss is None else loss(scores, ids)
            result.backward()
            optimizer.step()
            optimizer.zero_grad()
            del scores, result

    recording = trace_program(program, steps=2)
    return dict(read_step(recording, counters(recording), 2).buckets_at_peak)


@pytest.mark.parametrize("head", ["unembed", ""])
@pytest.mark.parametrize(
    "loss", [cross_entropy, nn.CrossEntropyLoss(), None], ids=["function", "module", "inside"]
)
def test_all_scores_are_logits(head: str, loss: Callable[..., torch.Tensor] | None) -> None:
    found, named = (buckets(name, loss, None) for name in (head, "lm_head"))
    assert found["logits"] == pytest.approx(named["logits"], rel=0.001)
    assert found["logits"] >= 3 * SCORES
    assert found["activations"] == pytest.approx(named["activations"], rel=0.01)


@pytest.mark.parametrize("head", ["unembed", ""])
def test_so_are_their_copies_under_autocast(head: str) -> None:
    found, named = (buckets(name, cross_entropy, torch.bfloat16) for name in (head, "lm_head"))
    assert found["logits"] == pytest.approx(named["logits"], rel=0.001)
    assert found["activations"] < SCORES // 2
